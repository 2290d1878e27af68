"""Is memory fresh where it should be, shared where it should be, and filled as asked?"""

import io
from typing import Any

import pytest
import torch

from shardkeep.errors import CompanionMismatch, InvalidError, UnsupportedError
from shardkeep.sharded.leaves import leaf_kind, local_tensors
from shardkeep.state.companion import same_layout
from shardkeep.state.copying import (
    copy_state_dict,
    create_cpu_state_dict,
    offload_state_dict_to_cpu,
)
from tests.state.fake_world import (
    dtensor,
    numbers,
    sharded,
    shardless,
    torch_chunks,
    torch_shardless,
)
from tests.state.tensors import awkward_tensors, bits
from tests.state.trees import Pair

# PyTorch warns at every use of its own ShardedTensor.
pytestmark = pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")

AWKWARD = list(awkward_tensors())
PACKED = ("column", "expanded")


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def distributed_leaves() -> dict[str, torch.Tensor]:
    """One leaf of every kind that is divided among ranks."""
    return {
        "dtensor": dtensor(numbers(2, 3)),
        "0-dim dtensor": dtensor(torch.tensor(3.5)),
        "empty dtensor": dtensor(torch.empty(0, 3)),
        "sharded": sharded(numbers(2, 3, start=10)),
        "shardless": shardless(8, 2),
        "torch sharded": torch_chunks(numbers(2, 3, start=20)),
        "torch shardless": torch_shardless(8, 2),
    }


@pytest.mark.parametrize("name", AWKWARD)
def test_offloading_copies_every_tensor(name):
    source = awkward_tensors()[name]
    (copy,) = offload_state_dict_to_cpu([source])
    assert copy.shape == source.shape
    assert copy.dtype == source.dtype
    assert torch.equal(bits(copy), bits(source))
    assert not copy.requires_grad
    assert not source.numel() or storage(copy) != storage(source)


def test_offloading_without_copy_returns_cpu_tensors_themselves():
    parameter = torch.nn.Parameter(numbers(2))
    result = offload_state_dict_to_cpu({"a": Pair(parameter, 1)}, copy=False)
    assert result["a"].left is parameter
    assert type(result["a"]) is Pair


def test_ties_survive_offloading():
    weight = numbers(4)
    result = offload_state_dict_to_cpu({"a": weight, "b": weight, "tail": weight[2:]})
    result["a"].fill_(9)
    assert result["b"].tolist() == [9] * 4
    assert result["tail"].tolist() == [9, 9]
    assert weight.tolist() == [0, 1, 2, 3]


def test_offloading_copies_a_stream():
    stream = io.BytesIO(b"x")
    result = offload_state_dict_to_cpu({"s": stream})
    assert result["s"] is not stream
    assert result["s"].getvalue() == b"x"


def test_offloading_refuses_other_values_unless_told():
    with pytest.raises(InvalidError, match=r"'a' is a builtins\.set"):
        offload_state_dict_to_cpu({"a": {1}})
    assert offload_state_dict_to_cpu({"a": {1}}, type_check=False) == {"a": {1}}


@pytest.mark.usefixtures("rank_one_of_four")
def test_offloading_gives_nothing_to_ranks_that_are_not_listed():
    assert offload_state_dict_to_cpu({"a": numbers(2)}, ranks_only=(0,)) == {}
    assert offload_state_dict_to_cpu({"a": 3}, ranks_only=(0, 1)) == {"a": 3}


@pytest.mark.usefixtures("rank_one_of_four")
@pytest.mark.parametrize("make", [offload_state_dict_to_cpu, create_cpu_state_dict])
def test_distributed_leaves_get_fresh_memory_in_the_same_layout(make):
    source = distributed_leaves()
    result = make(source)
    for name, leaf in source.items():
        copy = result[name]
        assert copy is not leaf
        assert leaf_kind(copy) == leaf_kind(leaf)
        assert (copy.shape, copy.dtype) == (leaf.shape, leaf.dtype)
        assert same_layout(copy, leaf)
        for part, original in zip(local_tensors(copy), local_tensors(leaf), strict=True):
            assert part.shape == original.shape
            assert not part.numel() or storage(part) != storage(original)


@pytest.mark.usefixtures("rank_one_of_four")
def test_offloading_copies_what_this_rank_holds():
    source = distributed_leaves()
    result = offload_state_dict_to_cpu(source)
    for name, leaf in source.items():
        for part, original in zip(local_tensors(result[name]), local_tensors(leaf), strict=True):
            assert torch.equal(part, original)


@pytest.mark.parametrize("name", AWKWARD)
def test_a_mirror_has_shape_dtype_and_strides(name):
    source = awkward_tensors()[name]
    (mirror,) = create_cpu_state_dict([source])
    assert mirror.shape == source.shape
    assert mirror.dtype == source.dtype
    if name not in PACKED:
        assert mirror.stride() == source.stride()
    assert not mirror.requires_grad
    assert not source.numel() or storage(mirror) != storage(source)


@pytest.mark.parametrize("name", AWKWARD)
def test_a_mirror_can_be_filled(name):
    source = awkward_tensors()[name]
    mirror = create_cpu_state_dict({"x": source})
    assert copy_state_dict({"x": source}, mirror)["x"] is mirror["x"]
    assert torch.equal(bits(mirror["x"]), bits(source))


def test_a_mirror_keeps_ties_and_copies_values():
    weight, values = numbers(3), [1, {2}]
    mirror = create_cpu_state_dict({"a": weight, "b": weight, "v": values})
    mirror["a"].fill_(4)
    assert mirror["b"].tolist() == [4, 4, 4]
    assert mirror["v"] == values
    assert mirror["v"][1] is not values[1]


def test_a_mirror_of_a_meta_tensor_has_memory():
    meta = torch.empty(2, 3, device="meta")
    mirror = create_cpu_state_dict([meta.t(), meta[:0]])
    assert [twin.device.type for twin in mirror] == ["cpu", "cpu"]
    assert mirror[0].fill_(2).sum() == 12
    assert mirror[0].stride() == (1, 3)


def test_a_shared_mirror_lies_in_shared_memory():
    source = {"a": numbers(2, 3), "scalar": torch.tensor(1.0), "empty": torch.empty(0)}
    mirror = create_cpu_state_dict(source, share_memory=True)
    assert mirror["a"].is_shared()
    assert mirror["scalar"].is_shared()
    assert copy_state_dict(source, mirror)["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="memory can be pinned here")
def test_pinning_without_an_accelerator_is_refused():
    for share_memory in (False, True):
        with pytest.raises(RuntimeError, match="pin_memory=True needs an accelerator"):
            create_cpu_state_dict({}, pin_memory=True, share_memory=share_memory)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.eye(3).to_sparse(), r"'x' is a torch\.sparse_coo tensor"),
        (lambda: torch.nested.nested_tensor([numbers(2), numbers(3)]), "'x' is a nested tensor"),
        (lambda: torch.quantize_per_tensor(numbers(2), 1, 0, torch.qint8), "'x' is a quantized"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_more_than_one_piece_of_memory_are_refused(make, message):
    with pytest.raises(UnsupportedError, match=message):
        create_cpu_state_dict({"x": make()})


def test_copying_fills_the_tensors_of_the_other():
    target = {"a": [torch.zeros(3)], "n": 0}
    result = copy_state_dict({"a": (numbers(3),), "n": 7}, target)
    assert result["a"][0] is target["a"][0]
    assert target["a"][0].tolist() == [0, 1, 2]
    assert (result["n"], type(result["a"])) == (7, tuple)


@pytest.mark.usefixtures("rank_one_of_four")
def test_copying_fills_distributed_leaves():
    source = distributed_leaves()
    mirror = create_cpu_state_dict(source)
    result = copy_state_dict(source, mirror)
    for name, leaf in source.items():
        assert result[name] is mirror[name]
        for part, original in zip(local_tensors(mirror[name]), local_tensors(leaf), strict=True):
            assert torch.equal(part, original)


MISFITS: list[Any] = [torch.zeros(1), torch.zeros(2, 1), torch.zeros(2).double(), None, 3, [0]]


@pytest.mark.parametrize("last", MISFITS, ids=str)
def test_nothing_is_copied_unless_everything_fits(last):
    target = {"a": torch.zeros(2), "z": last}
    with pytest.raises(CompanionMismatch, match="'z' does not fit its companion"):
        copy_state_dict({"a": torch.ones(2), "z": torch.ones(2)}, target)
    assert target["a"].tolist() == [0, 0]


def test_none_is_no_state_dict_to_copy_into():
    with pytest.raises(CompanionMismatch, match=r"the root .* dict opposite NoneType"):
        copy_state_dict({"a": 1}, None)


def test_copying_checks_values_unless_told():
    with pytest.raises(InvalidError, match=r"'a' is a builtins\.set"):
        copy_state_dict({"a": {1}}, {"a": {2}})
    assert copy_state_dict({"a": {1}}, {"a": {2}}, type_check=False) == {"a": {1}}
