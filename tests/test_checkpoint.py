"""Does a state come back as it was, and does a load say what did not fit?"""

from __future__ import annotations

import math
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import shardkeep as sk
from shardkeep.errors import ConflictError, InvalidError, LayoutError, NotFoundError
from shardkeep.storage import LocalStorage
from shardkeep.testing.layout_strategies import distinct_values, raw
from shardkeep.transfer.write import BLOCK_NBYTES
from tests.storage.faulty_calls import FaultyCalls


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ckpt"


def back(state: Any, path: Path, **options: Any) -> Any:
    """The state, saved and loaded."""
    sk.save(state, path, durable=False)
    return sk.load(path, **options)


VALUES: list[Any] = [
    None,
    True,
    0,
    -5,
    2**53,
    -(2**200),
    0.1,
    -0.0,
    math.inf,
    -math.inf,
    1e308,
    "",
    'text "with" \\ and \x01 and 💾',
    b"",
    b"\x00\xff",
    1 + 2j,
    complex(math.inf, -0.0),
    torch.float32,
    torch.bfloat16,
    torch.device("cpu"),
    torch.device("cuda:3"),
    torch.Size([2, 3]),
    torch.Size([]),
    np.float32(1.5),
    np.int64(-3),
    np.uint64(2**63 + 1),
    np.bool_(True),
    np.complex64(1 - 2j),
    np.str_("s"),
    np.bytes_(b"b"),
    [],
    (),
    {},
    OrderedDict(),
    [1, (2, [3]), {"a": ()}],
    OrderedDict(b=1, a=2),
    {3: "x", "3": "y", -1: "z"},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_a_value_comes_back_with_its_type(value: Any, path: Path) -> None:
    found = back({"v": value}, path)["v"]
    assert type(found) is type(value)
    assert repr(found) == repr(value)
    filled: dict[str, Any] = {"v": value}
    sk.load(path, filled)
    assert repr(filled["v"]) == repr(value)


def test_nan_comes_back(path: Path) -> None:
    found = back({"nan": math.nan, "c": complex(math.nan, 1)}, path)
    assert math.isnan(found["nan"])
    assert math.isnan(found["c"].real)
    assert found["c"].imag == 1


BASE = distinct_values((4, 6))
TENSORS: dict[str, torch.Tensor] = {
    "strided": BASE[::2, 1::2],
    "transposed": BASE.t(),
    "expanded": BASE[:, :1].expand(4, 5),
    "conj": distinct_values((3, 2), torch.complex64).conj(),
    "conj128": distinct_values((3, 2), torch.complex128).conj(),
    "negative": distinct_values((3,), torch.complex64).conj().imag,
    "channels_last": distinct_values((2, 3, 4, 5)).contiguous(memory_format=torch.channels_last),
    "scalar": torch.tensor(7, dtype=torch.int16),
    "empty": torch.empty(3, 0, 2),
    "parameter": nn.Parameter(BASE.clone()),
    "view": BASE[1],
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_of_any_strides_comes_back(name: str, path: Path) -> None:
    tensor = TENSORS[name]
    found = back({"t": tensor}, path)["t"]
    assert found.dtype == tensor.dtype
    np.testing.assert_array_equal(raw(found), raw(tensor))
    # In place, into memory that lies as strangely; an expanded one holds equal cells.
    target = {"t": torch.zeros_like(tensor.detach()) if name != "expanded" else tensor.clone()}
    if name.startswith("conj"):
        target = {"t": torch.zeros_like(tensor).resolve_conj().conj()}
    sk.load(path, target)
    np.testing.assert_array_equal(raw(target["t"]), raw(tensor))


def test_a_tensor_and_its_conjugate_are_not_taken_for_one(path: Path) -> None:
    x = distinct_values((3,), torch.complex64)
    found = back({"x": x, "conj": x.conj(), "imag": x.imag, "neg": x.conj().imag}, path)
    assert torch.equal(found["x"], x)
    assert torch.equal(found["conj"], x.conj())
    assert torch.equal(found["neg"], -x.imag)


def test_tied_tensors_are_stored_once_and_come_back_tied(path: Path) -> None:
    x = torch.arange(1000.0)
    found = back({"a": x, "b": {"c": x}, "d": x[:10], "e": nn.Parameter(x)}, path)
    assert found["a"].data_ptr() == found["b"]["c"].data_ptr() == found["e"].data_ptr()
    assert found["d"].data_ptr() != found["a"].data_ptr()
    with sk.open(path) as checkpoint:
        assert list(checkpoint) == ["a", "d"]


ARRAYS: dict[str, Any] = {
    "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bool": np.array([True, False]),
    "u64": np.array([2**63 + 5], np.uint64),
    "c128": np.array([1 + 2j]),
    "scalar": np.array(3.5),
    "empty": np.empty((0, 2)),
    "reversed": np.arange(5)[::-1],
    "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "read_only": np.broadcast_to(np.arange(3), (2, 3)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_numpy_array_comes_back_as_one(name: str, path: Path) -> None:
    array = ARRAYS[name]
    found = back({"a": array}, path)["a"]
    assert type(found) is np.ndarray
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    target = {"a": np.zeros_like(np.array(array))}
    sk.load(path, target)
    np.testing.assert_array_equal(target["a"], array)


def test_an_array_that_cannot_be_filled_is_refused(path: Path) -> None:
    sk.save({"a": np.arange(3)}, path, durable=False)
    fixed = np.arange(3)
    fixed.flags.writeable = False
    for target in (fixed, np.arange(3)[::-1]):
        with pytest.raises(ConflictError, match="'a' is an array that cannot be filled"):
            sk.load(path, {"a": target})


DENSE = torch.tensor([[0.0, 2.0, 0, 0], [3.0, 0, 0, 4.0]])
SPARSE = {
    "coo": DENSE.to_sparse_coo(),
    "uncoalesced": torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 4)),  # pyright: ignore[reportArgumentType]
    "csr": DENSE.to_sparse_csr(),
    "csc": DENSE.to_sparse_csc(),
    "bsr": DENSE.to_sparse_bsr((1, 2)),
    "bsc": DENSE.to_sparse_bsc((1, 2)),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_tensor_comes_back(name: str, path: Path) -> None:
    tensor = SPARSE[name]
    found = back({"s": tensor}, path)["s"]
    assert found.layout == tensor.layout
    assert torch.equal(found.to_dense(), tensor.to_dense())
    if tensor.layout is torch.sparse_coo:
        assert found.is_coalesced() == tensor.is_coalesced()
    target = {"s": tensor * 0}
    report = sk.load(path, target)
    assert torch.equal(target["s"].to_dense(), tensor.to_dense())
    assert report.nbytes_read == sk.explain(path, {"s": tensor}).nbytes_read > 0
    for wrong in (DENSE, 3, torch.zeros(3, 3).to_sparse(), tensor.double()):
        with pytest.raises(ConflictError, match=r"'s' (is|has)"):
            sk.load(path, {"s": wrong})


def test_parts_of_a_sparse_tensor_never_share_a_key_with_another(path: Path) -> None:
    state = {"s": SPARSE["coo"], "s.values": torch.arange(9.0)}
    found = back(state, path)
    assert torch.equal(found["s.values"], torch.arange(9.0))
    assert torch.equal(found["s"].to_dense(), DENSE)


def test_modules_and_optimizers_stand_in_the_tree(path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optim = torch.optim.Adam(model.parameters(), lr=0.1)
    step(model, optim)
    sk.save({"model": model, "optim": optim}, path, durable=False)
    expected = {key: value.clone() for key, value in model.state_dict().items()}
    moment = optim.state_dict()["state"][0]["exp_avg"].clone()
    weight = model[0].weight
    step(model, optim)
    assert not torch.equal(expected["0.weight"], weight)  # pyright: ignore[reportArgumentType]
    sk.load(path, {"model": model, "optim": optim})
    assert model[0].weight is weight
    for key, value in model.state_dict().items():
        assert torch.equal(value, expected[key]), key
    assert torch.equal(optim.state_dict()["state"][0]["exp_avg"], moment)
    assert weight.requires_grad


def step(model: nn.Module, optim: torch.optim.Optimizer) -> None:
    optim.zero_grad()
    model(torch.randn(8, 3)).square().sum().backward()
    optim.step()


def test_a_module_on_the_meta_device_gets_memory(path: Path) -> None:
    model = nn.Linear(3, 4)
    sk.save({"m": model}, path, durable=False)
    with torch.device("meta"):
        shell = nn.Linear(3, 4)
    sk.load(path, {"m": shell})
    assert torch.equal(shell.weight, model.weight)
    assert shell.weight.requires_grad
    tree = {"w": torch.empty(4, 3, device="meta"), "b": torch.empty(4, device="meta")}
    sk.save({"w": model.weight, "b": model.bias}, path, durable=False, overwrite=True)
    sk.load(path, tree)
    assert torch.equal(tree["w"], model.weight)


class Odd:
    pass


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
UNSUPPORTED: list[Any] = [
    Odd(),
    Odd,
    lambda: 0,
    {1, 2},
    nn.Linear,
    np.array(["a"]),
    np.array([object()]),
    np.arange(3, dtype=">i4"),
    np.ma.masked_array([1, 2], [True, False]),
    torch.zeros(2, dtype=torch.complex32),
    torch.empty(2, device="meta"),
    torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.quint8),
    torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
    sk.per_rank(Odd()),
    sk.per_rank(torch.zeros(2)),
    sk.per_rank(sk.per_rank(1)),
    {1.5: 0},
    {True: 0},
    {(1, 2): 0},
]


@pytest.mark.parametrize("value", UNSUPPORTED, ids=lambda value: repr(value)[:25])
def test_what_cannot_be_kept_is_refused_by_its_path(value: Any, path: Path) -> None:
    with pytest.raises(InvalidError, match=r"deep\.0\.here"):
        sk.save({"deep": [{"here": value}]}, path, durable=False)
    assert not path.exists() or not list(path.iterdir())


def test_a_partial_dtensor_is_refused(path: Path) -> None:
    from torch.distributed.tensor import Partial

    from tests.state.fake_world import dtensor, fake_world

    with fake_world():
        from shardkeep.state.keeping import keep_state

        leaf = dtensor(torch.ones(2), Partial())
        with pytest.raises(LayoutError, match="'grad'"):
            keep_state({"grad": leaf})


def test_registered_types_come_back(path: Path) -> None:
    class Money:
        def __init__(self, cents: int) -> None:
            self.cents = cents

    sk.register_value_type(
        "tests.money", Money, lambda money: [money.cents], lambda data: Money(*data)
    )
    assert back({"m": Money(42)}, path)["m"].cents == 42


def saved(path: Path) -> dict[str, Any]:
    state = {"a": distinct_values((4, 3)), "b": {"c": torch.arange(5), "d": 7}, "t": (1, [2])}
    sk.save(state, path, durable=False, metadata={"step": 5})
    return state


def test_a_load_says_what_it_did(path: Path) -> None:
    saved(path)
    target = {"a": torch.zeros(4, 3), "b": {"c": torch.zeros(5).long(), "d": 0}, "t": (0, [0])}
    tensor = target["a"]
    report = sk.load(path, target)
    assert target["a"] is tensor
    assert target["t"] == (1, [2])
    assert target["b"]["d"] == 7
    assert sorted(report.loaded) == ["a", "b.c", "b.d", "t.0", "t.1.0"]
    assert (report.missing, report.unexpected, report.cast) == ([], [], [])
    assert report.metadata == {"step": 5}
    assert report.nbytes_read == 4 * 12 + 8 * 5


def test_keys_that_do_not_match_are_named(path: Path) -> None:
    saved(path)
    target = {"a": torch.zeros(4, 3), "new": torch.ones(2)}
    with pytest.raises(NotFoundError, match=r"1 not in the checkpoint: new; 4 in .* only: b\.c"):
        sk.load(path, target)
    assert torch.equal(target["a"], torch.zeros(4, 3))
    report = sk.load(path, target, strict=False)
    assert report.missing == ["new"]
    assert sorted(report.unexpected) == ["b.c", "b.d", "t.0", "t.1.0"]
    assert report.loaded == ["a"]
    assert torch.equal(target["new"], torch.ones(2))


def test_only_what_matches_a_pattern_is_loaded(path: Path) -> None:
    state = saved(path)
    target = {"a": torch.zeros(4, 3), "b": {"c": torch.zeros(5).long(), "d": 0}, "t": (0, [0])}
    report = sk.load(path, target, keys=["b.*", "t.1*"])
    assert sorted(report.loaded) == ["b.c", "b.d", "t.1.0"]
    assert torch.equal(target["a"], torch.zeros(4, 3))
    assert target["t"] == (0, [2])
    found = sk.load(path, keys=["b.c", "t.1.0"])
    assert list(found) == ["b", "t"]
    assert torch.equal(found["b"]["c"], state["b"]["c"])
    assert found["t"] == {1: [2]}


MISFITS: list[tuple[Any, str]] = [
    (torch.zeros(3, 4), r"'a' has shape \(3, 4\) here, \(4, 3\) in the checkpoint"),
    (torch.zeros(12), r"'a' has shape \(12,\) here"),
    (torch.zeros(4, 3).double(), r"'a' is torch.float64 here, torch.float32 in the checkpoint"),
    (7, "'a' is a int here, a tensor in the checkpoint"),
    (torch.zeros(4, 3).to_sparse(), "'a' is torch.sparse_coo here"),
]


@pytest.mark.parametrize(("leaf", "message"), MISFITS)
def test_what_does_not_fit_is_refused(leaf: Any, message: str, path: Path) -> None:
    saved(path)
    with pytest.raises(ConflictError, match=message):
        sk.load(path, {"a": leaf}, keys=["a"])
    explanation = sk.explain(path, {"a": leaf}, keys=["a"])
    assert explanation.conflicts or explanation.cast == ["a"]


def test_a_value_in_place_of_a_tensor_is_refused(path: Path) -> None:
    saved(path)
    with pytest.raises(ConflictError, match=r"'b.d' is a tensor here, a value in the checkpoint"):
        sk.load(path, {"b": {"d": torch.zeros(1)}}, keys=["b.d"])


def test_a_cast_is_made_when_it_is_asked_for(path: Path) -> None:
    state = saved(path)
    target = {"a": torch.zeros(4, 3, dtype=torch.bfloat16)}
    report = sk.load(path, target, keys=["a"], cast=True)
    assert report.cast == ["a"]
    assert torch.equal(target["a"], state["a"].bfloat16())


def test_slices_read_only_their_blocks(path: Path) -> None:
    whole = distinct_values((1024, 1024))
    sk.save({"w": whole, "s": torch.tensor(2.5)}, path, durable=False)
    with sk.open(path) as checkpoint:
        stored = checkpoint["w"]
        assert (stored.shape, stored.dtype, stored.nbytes) == ((1024, 1024), "F32", 4 << 20)
        for index in [
            (slice(3, 7), slice(2, 5)),
            (5, 6),
            (-1,),
            (..., 3),
            (slice(900, None), 0),
            (slice(5, 2),),
            (slice(None, -1000), ..., slice(1, 1)),
            (...,),
        ]:
            assert torch.equal(stored[index], whole[index]), index
            np.testing.assert_array_equal(stored.numpy(index), whole.numpy()[index])
        assert torch.equal(checkpoint["s"][()], torch.tensor(2.5))
        assert checkpoint["s"].numpy().shape == ()
        for wrong in [1024, (0, 0, 0), True, None, "a", slice(0, 9, 2)]:
            with pytest.raises(IndexError, match=r"(index|indices|slices)"):
                stored[wrong]
        with pytest.raises(KeyError, match="nothing"):
            checkpoint["nothing"]
    calls = FaultyCalls()
    with LocalStorage(path, calls=calls) as storage, sk.open(storage) as checkpoint:
        read: list[int] = []
        calls.before("preadv", lambda fd, views, offset: read.append(sum(v.nbytes for v in views)))
        assert torch.equal(checkpoint["w"][0:2], whole[0:2])
        assert sum(read) <= 2 * BLOCK_NBYTES


def test_a_tensor_of_one_chunk_is_mapped(path: Path) -> None:
    state = saved(path)
    with sk.open(path) as checkpoint:
        mapped = checkpoint["a"].mapped()
        assert not mapped.flags.writeable
        np.testing.assert_array_equal(mapped, state["a"].numpy())


def test_a_checkpoint_tells_what_is_in_it(path: Path) -> None:
    state: dict[str, Any] = {
        "a": distinct_values((4, 3)),
        "n": np.arange(4),
        "s": SPARSE["coo"],
        "v": (1, None),
        "r": sk.per_rank({"seed": 3}),
    }
    sk.save(state, path, durable=False, metadata={"x": [1]})
    with sk.open(path) as checkpoint:
        info = checkpoint.info("a")
        assert (info.dtype, info.shape, info.nbytes) == ("F32", (4, 3), 48)
        ((box, file),) = info.chunks
        assert box.shape == (4, 3)
        assert (path / file).exists()
        tree = checkpoint.tree()
        assert tree["v"] == (1, None)
        assert tree["a"].key == "a"
        assert tree["n"].shape == (4,)
        assert sorted(tree["s"]) == ["indices", "values"]
        assert checkpoint.per_rank("r", 0) == {"seed": 3}
        with pytest.raises(NotFoundError, match="rank 1 saved none"):
            checkpoint.per_rank("r", 1)
        assert checkpoint.metadata == {"x": [1]}
        assert len(checkpoint) == 4
        assert "4 tensors" in repr(checkpoint)
    assert sk.load(path)["r"] == {"seed": 3}


def test_numpy_alone_is_enough_to_read(path: Path) -> None:
    saved(path)
    code = (
        "import sys\n"
        "from shardkeep.storage import LocalStorage\n"
        "from shardkeep.transfer.lazy import Checkpoint\n"
        "from shardkeep.transfer.opened import open_committed\n"
        f"opened = open_committed(LocalStorage({str(path)!r}))\n"
        "with Checkpoint(opened, threads=1, owns_storage=True) as c:\n"
        "    print(c['a'].numpy().sum(), c.verify().problems, c.info('a').shape)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["78.0 () (4, 3)", "False"], done.stdout + done.stderr


def test_an_explanation_of_a_load_says_what_happens(path: Path) -> None:
    whole = distinct_values((700, 1000))
    sk.save({"w": whole, "b": torch.arange(9), "x": 1}, path, durable=False)
    target = {"w": torch.zeros(700, 1000), "b": torch.zeros(9), "new": 0}
    explained = sk.explain(path, target)
    assert (explained.missing, explained.unexpected) == (["new"], ["x"])
    assert explained.cast == ["b"]
    assert explained.nbytes_wanted == whole.nbytes + 72
    assert "reads" in str(explained)
    calls = FaultyCalls()
    read: list[int] = []
    with LocalStorage(path, calls=calls) as storage:
        calls.before("preadv", lambda fd, views, offset: read.append(sum(v.nbytes for v in views)))
        report = sk.load(storage, target, strict=False, cast=True)
    assert report.nbytes_read == explained.nbytes_read == sum(read)
    assert explained.files == 1


def test_an_explanation_of_a_save_says_what_happens(path: Path) -> None:
    state = {"w": distinct_values((70, 10)), "b": torch.arange(9), "x": 1, "r": sk.per_rank(2)}
    explained = sk.explain_save(state)
    result = sk.save(state, path, durable=False)
    files = list(path.glob("*.safetensors"))
    assert explained.files == len(files) == 1
    assert explained.nbytes == {0: 70 * 40 + 72}
    assert explained.chunks == {0: 2}
    assert explained.tensors == 2
    assert result.nbytes == result.total_nbytes == files[0].stat().st_size
    assert set(result.seconds) >= {"plan", "write", "commit"}
    assert explained.balance == 1.0


def test_a_state_of_values_alone_is_saved(path: Path) -> None:
    assert back({"a": 1}, path) == {"a": 1}
    with sk.open(path) as checkpoint:
        names = {"manifest.json", f"{checkpoint.save_id}-report.json"}
    assert {file.name for file in path.iterdir()} == names
    sk.save({"r": sk.per_rank(1)}, path, durable=False, overwrite=True)
    assert sk.load(path) == {"r": 1}


@pytest.mark.parametrize("threads", [0, -1])
def test_options_that_make_no_sense_are_refused(threads: int, path: Path) -> None:
    with pytest.raises(ValueError, match="threads must be at least 1"):
        sk.save({}, path, threads=threads)
    with pytest.raises(ValueError, match="check_replicas"):
        sk.save({}, path, check_replicas="maybe")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="metadata"):
        sk.save({}, path, metadata={"x": object()})  # type: ignore[dict-item]


def test_progress_ends_at_the_whole(path: Path) -> None:
    seen: list[tuple[int, int]] = []
    state = {"w": distinct_values((300, 1000))}
    sk.save(state, path, durable=False, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (1_200_000, 1_200_000)
    seen.clear()
    sk.load(path, state, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] >= 1_200_000
