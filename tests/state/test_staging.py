"""Does a snapshot stay as it was, whatever happens to its source and to later snapshots?"""

import copy
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from shardkeep.errors import InvalidError, UnsupportedError
from shardkeep.sharded.leaves import leaf_kind, local_tensors
from shardkeep.state.companion import same_layout
from shardkeep.state.staging import Stager
from tests.state.fake_world import (
    dtensor,
    numbers,
    sharded,
    shardless,
    torch_chunks,
    torch_shardless,
)
from tests.state.tensors import awkward_tensors, bits
from tests.state.trees import Pair, assert_same_tree, trees

# PyTorch warns at every use of its own ShardedTensor.
pytestmark = pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")

AWKWARD = list(awkward_tensors())


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("name", AWKWARD)
def test_a_snapshot_is_equal_and_in_other_memory(name):
    source = awkward_tensors()[name]
    twin = Stager().stage({"x": source}).tree["x"]
    assert (twin.shape, twin.dtype) == (source.shape, source.dtype)
    if name != "column":
        assert twin.stride() == source.stride()
    assert torch.equal(bits(twin), bits(source))
    assert not twin.requires_grad
    assert not source.numel() or storage(twin) != storage(source)


@pytest.mark.parametrize("name", AWKWARD)
def test_a_snapshot_does_not_change_with_its_source(name):
    source = awkward_tensors()[name]
    before = bits(source).clone()
    snapshot = Stager().stage([source])
    # Whatever the strides, every byte of the source changes.
    raw = torch.empty(0, dtype=torch.uint8).set_(source.detach().untyped_storage())
    raw.bitwise_xor_(255)
    assert not source.numel() or not torch.equal(bits(source), before)
    assert torch.equal(bits(snapshot.tree[0]), before)


@given(trees)
def test_a_snapshot_has_the_same_containers_and_values(tree):
    assert_same_tree(Stager().stage(tree).tree, tree)


@dataclass
class Counter:
    steps: list[int]


def test_values_are_deep_copied():
    counter = Counter([1])
    source = {"a": counter, "b": counter, "state": OrderedDict()}
    source["state"]._metadata = {"version": [1]}  # type: ignore[union-attr]
    tree = Stager().stage(source).tree
    counter.steps.append(2)
    source["state"]._metadata["version"].append(2)  # type: ignore[union-attr]
    assert tree["a"].steps == [1]
    assert tree["a"] is tree["b"]
    assert tree["state"]._metadata == {"version": [1]}


def test_a_value_that_cannot_be_copied_is_named():
    with pytest.raises(InvalidError, match=r"'a\.0' is a lock, which cannot be copied"):
        Stager().stage({"a": [threading.Lock()]})


def test_tied_tensors_come_back_tied():
    weight = numbers(2, 3)
    tree = Stager().stage({"a": weight, "b": weight, "t": weight.t(), "row": weight[1]}).tree
    tree["a"].add_(10)
    assert tree["b"].tolist() == [[10, 11, 12], [13, 14, 15]]
    assert tree["t"].tolist() == [[10, 13], [11, 14], [12, 15]]
    assert tree["row"].tolist() == [13, 14, 15]
    assert weight.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_storage_is_copied_once():
    weight = numbers(1000)
    snapshot = Stager().stage([weight, weight.view(10, 100), weight[5:], weight.view(torch.int32)])
    assert snapshot.nbytes == 4000
    assert len({storage(tensor) for tensor in snapshot.tree}) == 1


def test_only_the_used_bytes_of_a_big_storage_are_copied():
    big = numbers(1_000_000)
    snapshot = Stager().stage({"a": big[500_000:500_100], "b": big[500_050:500_200]})
    assert snapshot.nbytes == 800
    assert snapshot.tree["a"].untyped_storage().nbytes() == 800
    assert snapshot.tree["b"][0] == 500_050


def test_distant_views_share_one_compact_storage():
    big = numbers(1_000_000)
    snapshot = Stager().stage([big[:10], big[-10:]])
    assert snapshot.nbytes == 80
    assert storage(snapshot.tree[0]) == storage(snapshot.tree[1])
    assert snapshot.tree[1].tolist() == list(range(999_990, 1_000_000))


def test_a_lone_column_of_a_matrix_is_packed():
    snapshot = Stager().stage([numbers(1000, 1000)[:, 7]])
    assert snapshot.nbytes == 4000
    assert snapshot.tree[0].tolist() == list(range(7, 1_000_000, 1000))


def test_tensors_on_memory_of_another_library_are_tied_too():
    array = numbers(4).numpy()
    tree = Stager().stage([torch.from_numpy(array), torch.from_numpy(array)[1:]]).tree
    tree[0].fill_(8)
    assert tree[1].tolist() == [8, 8, 8]


@st.composite
def views(draw: st.DrawFn) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]:
    """A dtype, shape, strides and offset that fit into 64 bytes."""
    dtype = draw(st.sampled_from((torch.uint8, torch.int16, torch.int32, torch.int64)))
    room = 64 // dtype.itemsize
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    strides = tuple(draw(st.integers(0, room // 4)) for _ in shape)
    reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True) if n)
    if reach >= room:
        strides = (0,) * len(shape)
        reach = 0
    return dtype, shape, strides, draw(st.integers(0, room - 1 - reach))


@given(st.lists(views(), min_size=1, max_size=5), st.integers(0, 4))
def test_writing_to_a_snapshot_has_the_effect_that_it_has_on_a_deep_copy(found, chosen):
    base = torch.arange(64, dtype=torch.uint8)
    source = [
        base.view(dtype).as_strided(shape, strides, offset)
        for dtype, shape, strides, offset in found
    ]
    ours, theirs = Stager().stage(source).tree, copy.deepcopy(source)
    for tensors in (ours, theirs):
        target = tensors[chosen % len(tensors)]
        for index in range(target.numel()):
            place = tuple(int(i) for i in torch.unravel_index(torch.tensor(index), target.shape))
            target[place] = 100 + index
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
    assert base.tolist() == list(range(64))


@pytest.mark.usefixtures("rank_one_of_four")
def test_distributed_leaves_are_staged():
    source = {
        "d": dtensor(numbers(2, 3)),
        "0-dim": dtensor(torch.tensor(2.5)),
        "s": sharded(numbers(2, 3, start=10)),
        "none": shardless(8, 2),
        "f": torch_chunks(numbers(2, 3, start=20)),
        "fnone": torch_shardless(8, 2),
    }
    before = {name: [part.clone() for part in local_tensors(x)] for name, x in source.items()}
    tree = Stager().stage(source).tree
    for leaf in source.values():
        for part in local_tensors(leaf):
            part.zero_()
    for name, leaf in source.items():
        assert leaf_kind(tree[name]) == leaf_kind(leaf)
        assert tree[name].shape == leaf.shape
        assert same_layout(tree[name], leaf)
        parts = local_tensors(tree[name])
        assert len(parts) == len(before[name])
        assert all(torch.equal(*pair) for pair in zip(parts, before[name], strict=True))


@pytest.mark.usefixtures("rank_one_of_four")
def test_a_tie_between_a_tensor_and_a_dtensor_is_kept():
    local = numbers(2, 3)
    tree = Stager().stage({"d": dtensor(local), "t": local}).tree
    tree["t"].fill_(4)
    assert local_tensors(tree["d"])[0].tolist() == [[4] * 3] * 2


def addresses(tree: Any) -> list[int]:
    return [tensor.data_ptr() for tensor in tree.values()]


def state(start: int) -> dict[str, torch.Tensor]:
    """Two tensors of the same size and one of another."""
    return {
        "a": numbers(50, start=start),
        "b": numbers(50, start=start + 50),
        "c": numbers(7, start=start + 100),
    }


def test_released_buffers_are_used_again_for_the_same_leaves():
    stager = Stager()
    with stager.stage(state(0)) as first:
        before = addresses(first.tree)
    with stager.stage(state(1000)) as second:
        assert addresses(second.tree) == before
        assert second.tree["b"].tolist() == list(range(1050, 1100))


def test_a_held_snapshot_is_never_overwritten():
    stager = Stager()
    first, second = stager.stage(state(0)), stager.stage(state(1000))
    third = stager.stage(state(2000))
    assert len({*addresses(first.tree), *addresses(second.tree), *addresses(third.tree)}) == 9
    second.release()
    fourth = stager.stage(state(3000))
    for snapshot, start in ((first, 0), (third, 2000), (fourth, 3000)):
        assert snapshot.tree["a"].tolist() == list(range(start, start + 50))
        assert snapshot.tree["c"].tolist() == list(range(start + 100, start + 107))


def test_a_released_snapshot_cannot_be_read():
    snapshot = Stager().stage(state(0))
    snapshot.release()
    assert snapshot.nbytes == 0
    with pytest.raises(InvalidError, match="the snapshot was released"):
        _ = snapshot.tree


def test_releasing_twice_hands_the_memory_on_once():
    stager = Stager()
    first = stager.stage(state(0))
    first.release()
    first.release()
    second, third = stager.stage(state(1000)), stager.stage(state(2000))
    assert not {*addresses(second.tree)} & {*addresses(third.tree)}


def test_memory_of_tensors_that_are_gone_is_freed():
    stager = Stager()
    stager.stage(state(0)).release()
    small = stager.stage({"c": numbers(7)})
    assert small.nbytes == 28
    small.release()
    assert [[buffer.nbytes for buffer in free] for free in stager._pool._free] == [[28]]
    stager.clear()
    assert stager._pool._free == []


def test_a_failed_stage_leaves_the_stager_usable():
    stager = Stager()
    stager.stage(state(0)).release()
    with pytest.raises(UnsupportedError, match=r"'z' is a torch\.sparse_coo tensor"):
        stager.stage(state(0) | {"z": torch.eye(2).to_sparse()})
    with stager.stage(state(5)) as snapshot:
        assert snapshot.tree["a"][0] == 5


def test_staging_on_one_thread_and_releasing_on_others():
    stager, held, lock = Stager(), list[Any](), threading.Lock()
    wrong: list[Any] = []
    done = threading.Event()

    def check_and_release() -> None:
        while not (done.is_set() and not held):
            with lock:
                found = held.pop(0) if held else None
            if found:
                start, snapshot = found
                if snapshot.tree["a"].tolist() != list(range(start, start + 50)):
                    wrong.append(start)
                snapshot.release()

    threads = [threading.Thread(target=check_and_release) for _ in range(3)]
    for thread in threads:
        thread.start()
    for start in range(300):
        snapshot = stager.stage(state(start))
        with lock:
            held.append((start, snapshot))
    done.set()
    for thread in threads:
        thread.join(timeout=30)
    assert not wrong
    assert not held


def test_two_threads_that_release_at_once_do_so_once():
    stager = Stager()
    for _ in range(50):
        snapshot, barrier = stager.stage(state(0)), threading.Barrier(2)

        def release(snapshot: Any = snapshot, barrier: Any = barrier) -> None:
            barrier.wait(10)
            snapshot.release()

        threads = [threading.Thread(target=release) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
        assert len(stager._pool._free) == 1


def test_a_namedtuple_of_tensors_is_staged():
    tree = Stager().stage(Pair(numbers(2), numbers(3))).tree
    assert type(tree) is Pair
    assert tree.right.tolist() == [0, 1, 2]


def test_a_meta_tensor_stays_on_meta():
    tree = Stager().stage([torch.empty(2, 3, device="meta").t()]).tree
    assert tree[0].is_meta
    assert tree[0].stride() == (1, 3)


def test_snapshots_can_lie_in_shared_memory():
    snapshot = Stager(share_memory=True).stage(state(0))
    assert snapshot.tree["a"].is_shared()
    assert snapshot.tree["b"][0] == 50


@pytest.mark.skipif(torch.accelerator.is_available(), reason="memory can be pinned here")
def test_a_stager_that_cannot_pin_says_so():
    with pytest.raises(RuntimeError, match="pin_memory=True needs an accelerator"):
        Stager(pin_memory=True)
