"""What happens when ranks contradict each other, or two saves meet?"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import shardkeep as sk
from shardkeep.boxes import Box
from shardkeep.errors import (
    ConflictError,
    RankFailedError,
    RankInputError,
    RanksDisagreeError,
    ShardkeepError,
    StorageError,
)
from shardkeep.layouts import Layout, Mesh, Replicate, Split
from shardkeep.storage import LocalStorage, MemoryStorage
from shardkeep.testing.layout_strategies import distinct_values, raw
from tests.transfer.worlds import (
    Laid,
    all_well,
    fresh_memory,
    kept_by,
    load_held,
    memory,
    names,
    new_store,
    run_ranks,
    save_kept,
)


def save_states(states: dict[int, Any], storage: Any, **options: Any) -> dict[int, Any]:
    """Save a state of each rank's own."""
    store = options.pop("store", None)
    return run_ranks(
        lambda rank, council: sk.save(states[rank], storage, group=council, **options),
        tuple(states),
        store=store,
    )


def assert_refused(states: dict[int, Any], *texts: str) -> None:
    """All ranks raise, the text is in each message, and nothing is left."""
    with memory() as storage:
        store = new_store()
        found = save_states(states, storage, store=store)
        for rank, error in found.items():
            assert isinstance(error, ConflictError | RankInputError), (rank, error)
            for text in texts:
                assert text in str(error), (rank, str(error))
        assert names(storage) == []
        assert store.num_keys() == 0


def test_another_shape_is_refused() -> None:
    assert_refused(
        {0: {"w": torch.zeros(2)}, 1: {"w": torch.zeros(3)}, 2: {"w": torch.zeros(2)}},
        "'w'",
        "(2,) on ranks 0, 2",
        "(3,) on rank 1",
    )


def test_another_dtype_is_refused() -> None:
    assert_refused(
        {0: {"w": torch.zeros(2)}, 1: {"w": torch.zeros(2).double()}}, "'w'", "F32", "F64", "rank 1"
    )


@pytest.mark.parametrize("shape", [(5,), (300, 300)])
def test_replicas_that_differ_are_refused(shape: tuple[int, ...]) -> None:
    one, other = torch.zeros(shape), torch.zeros(shape)
    other.view(-1)[-1] = 1
    assert_refused(
        {0: {"a": torch.ones(2), "w": one}, 1: {"a": torch.ones(2), "w": other}},
        "different values: w ",
        "ranks 0-1",
        "per_rank",
    )


def test_replicas_are_not_compared_if_that_is_not_wanted() -> None:
    with memory() as storage:
        states = {0: {"w": torch.zeros(5)}, 1: {"w": torch.ones(5)}}
        all_well(save_states(states, storage, check_replicas="none"))


def test_values_that_differ_are_refused() -> None:
    assert_refused(
        {0: {"a": {"seed": 1}}, 1: {"a": {"seed": 2}}}, "'a.seed'", "per_rank(value)", "rank 1"
    )


def test_a_tensor_here_and_a_value_there_is_refused() -> None:
    assert_refused({0: {"a": 1}, 1: {"a": torch.zeros(1)}}, "'a'", "rank 1")


def test_lists_of_other_lengths_are_refused() -> None:
    assert_refused({0: {"a": [1]}, 1: {"a": [1, 2]}}, "'a'", "a list of 2", "use a dict")


def test_each_rank_keeps_its_own_values() -> None:
    with memory() as storage:
        states = {rank: {"seed": sk.per_rank(rank * 10), "x": 1} for rank in range(3)}
        all_well(save_states(states, storage))
        with sk.open(storage) as checkpoint:
            assert [checkpoint.per_rank("seed", rank) for rank in range(3)] == [0, 10, 20]
        targets: dict[int, Any] = {rank: {"seed": None, "x": None} for rank in range(3)}
        all_well(run_ranks(lambda rank, council: sk.load(storage, targets[rank], group=council), 3))
        assert targets == {rank: {"seed": rank * 10, "x": 1} for rank in range(3)}
        # A fourth rank has none.
        found = run_ranks(
            lambda rank, council: sk.load(storage, {"seed": 0, "x": 0}, group=council), 4
        )
        assert "rank 3 saved none" in str(found[3])
        assert isinstance(found[0], RankFailedError)


def test_different_keys_on_each_rank_make_one_checkpoint() -> None:
    states = {
        rank: {
            "layers": {rank: torch.full((3,), float(rank)), "n": 3},
            "shared": torch.arange(4),
            f"only{rank}": {"v": rank},
        }
        for rank in range(3)
    }
    with memory() as storage:
        store = new_store()
        all_well(save_states(states, storage, store=store))
        assert store.num_keys() == 0
        found = sk.load(storage)
    assert sorted(found) == ["layers", "only0", "only1", "only2", "shared"]
    assert torch.equal(found["shared"], torch.arange(4))
    for rank in range(3):
        assert torch.equal(found["layers"][rank], torch.full((3,), float(rank)))
        assert found[f"only{rank}"] == {"v": rank}


def test_views_that_tile_a_tensor_together_make_it_up() -> None:
    """Each pair of ranks knows only its own half, as a norm sharded over dp under tp."""
    whole = distinct_values((8, 3))
    halves = [
        Layout.listed((8, 3), [(0, Box((0, 0), (2, 3))), (1, Box((2, 0), (4, 3)))]),
        Layout.listed((8, 3), [(2, Box((4, 0), (6, 3))), (3, Box((6, 0), (8, 3)))]),
    ]
    with memory() as storage:
        all_well(
            save_kept(lambda rank: kept_by(rank, {"w": Laid(whole, halves[rank // 2])}), storage, 4)
        )
        assert torch.equal(sk.load(storage)["w"], whole)


def test_a_gap_between_views_is_refused() -> None:
    whole = distinct_values((8, 3))
    parts = [
        Layout.listed((8, 3), [(0, Box((0, 0), (2, 3)))]),
        Layout.listed((8, 3), [(1, Box((4, 0), (8, 3)))]),
    ]
    with memory() as storage:
        found = save_kept(lambda rank: kept_by(rank, {"w": Laid(whole, parts[rank])}), storage, 2)
        for error in found.values():
            assert isinstance(error, ConflictError | RankInputError)
            assert "'w'" in str(error)
            assert "experts" in str(error)
        assert names(storage) == []


def pair_layouts() -> list[Layout]:
    """Two meshes of two ranks, each of which holds the whole."""
    return [Layout.on_mesh((8, 3), Mesh.line(pair), (Split(0),)) for pair in ([0, 1], [2, 3])]


def test_equal_replicas_on_two_meshes_are_written_once() -> None:
    whole, layouts = distinct_values((8, 3)), pair_layouts()
    with memory() as storage:
        all_well(
            save_kept(
                lambda rank: kept_by(rank, {"w": Laid(whole, layouts[rank // 2])}), storage, 4
            )
        )
        target = {"w": Laid(whole, Layout.replicated((8, 3), [0]))}
        load_held(storage, target, 0)
        assert torch.equal(sk.load(storage)["w"], whole)
        with sk.open(storage) as checkpoint:
            assert len(checkpoint.info("w").chunks) == 2


def test_experts_that_collide_are_refused() -> None:
    """Two pairs of ranks keep different tensors of one shape under one key."""
    layouts = pair_layouts()
    wholes = [distinct_values((8, 3)), distinct_values((8, 3)) + 1]
    with memory() as storage:
        found = save_kept(
            lambda rank: kept_by(rank, {"w": Laid(wholes[rank // 2], layouts[rank // 2])}),
            storage,
            4,
        )
        for error in found.values():
            assert isinstance(error, ConflictError | RankInputError), error
            assert "different values: w." in str(error)
            assert "ranks 0-1 and ranks 2-3" in str(error)
        assert names(storage) == []


@pytest.mark.parametrize("check", ["all", "sample"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bool, torch.bfloat16, torch.complex128, torch.float8_e5m2]
)
def test_equal_replicas_that_are_cut_differently_agree(check: str, dtype: torch.dtype) -> None:
    """One pair of ranks holds rows, the other columns, a fifth the whole."""
    whole = distinct_values((40, 30), dtype)
    layouts = [
        Layout.on_mesh((40, 30), Mesh.line([0, 1]), (Split(0),)),
        Layout.on_mesh((40, 30), Mesh.line([2, 3]), (Split(1),)),
        Layout.replicated((40, 30), [4]),
    ]
    changed = whole.clone()
    changed[39, 29] = changed[0, 0] if changed[0, 0] != changed[39, 29] else changed[0, 1]
    for other in (whole, changed):
        wholes = [whole, other, whole]
        with memory() as storage:
            found = save_kept(
                lambda rank, wholes=wholes: kept_by(
                    rank, {"w": Laid(wholes[rank // 2], layouts[rank // 2])}
                ),
                storage,
                5,
                check_replicas=check,
            )
            failed = [isinstance(result, BaseException) for result in found.values()]
            assert failed == [not torch.equal(raw_of(other), raw_of(whole))] * 5


def raw_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(raw(tensor))


def test_a_mesh_of_which_ranks_are_absent_is_refused() -> None:
    whole = distinct_values((8, 3))
    layout = Layout.on_mesh((8, 3), Mesh.line([0, 1]), (Split(0),))
    lone = Layout.on_mesh((8, 3), Mesh.line([0, 1]), (Replicate(),))
    for one in (layout, lone):
        laid = {"w": Laid(whole, one)}
        with memory() as storage:
            found = save_kept(
                lambda rank, laid=laid: kept_by(rank, laid if rank == 0 else {}), storage, 2
            )
            assert isinstance(found[0], RanksDisagreeError)
            assert "rank 1 did not bring it" in str(found[0])


def test_ranks_that_save_to_different_places_are_told() -> None:
    first, second = fresh_memory(), fresh_memory()
    found = run_ranks(
        lambda rank, council: sk.save({"a": 1}, (first, second)[rank], group=council), 2
    )
    for error in found.values():
        assert "different places" in str(error)
        assert second.location in str(error)


class Elsewhere(MemoryStorage):
    """A disk of a node's own under a path that all nodes have."""

    @property
    def location(self) -> str:
        return "/scratch/ckpt"


def test_storage_that_ranks_do_not_share_is_refused() -> None:
    disks = [Elsewhere("disk-0"), Elsewhere("disk-1")]
    states = [{"w": torch.zeros(2)}, {"v": torch.zeros(2)}]
    found = run_ranks(lambda rank, council: sk.save(states[rank], disks[rank], group=council), 2)
    assert isinstance(found[0], StorageError)
    assert isinstance(found[1], RankFailedError)
    for error in found.values():
        assert "does not see what rank 1 wrote" in str(error)
        assert "storage that all ranks share" in str(error)
    assert names(disks[0]) == names(disks[1]) == []


def test_a_checkpoint_is_replaced_only_if_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    sk.save({"w": torch.zeros(3)}, path, durable=False)
    before = names(str(path))
    with pytest.raises(ConflictError, match=r"holds a checkpoint already.*overwrite=True"):
        sk.save({"w": torch.ones(3)}, path, durable=False)
    assert names(str(path)) == before
    assert torch.equal(sk.load(path)["w"], torch.zeros(3))
    sk.save({"w": torch.ones(3)}, path, durable=False, overwrite=True)
    assert torch.equal(sk.load(path)["w"], torch.ones(3))
    after = names(str(path))
    assert len(after) == 2
    assert set(after) & set(before) == {"manifest.json"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_saves_to_one_path_one_wins(tmp_path: Path, overwrite: bool) -> None:
    path = tmp_path / "ckpt"
    if overwrite:
        sk.save({"w": torch.zeros(3)}, path, durable=False)
    begun = threading.Barrier(2)
    results: dict[int, Any] = {}

    class Slow(LocalStorage):
        """Both have looked for a checkpoint before either writes."""

        def create(self, key: str) -> Any:
            if key.endswith(".safetensors"):
                begun.wait(20)
            return super().create(key)

    def run(number: int) -> None:
        with Slow(path, create=True, durable=False) as storage:
            try:
                state = {"w": torch.full((3,), float(number))}
                results[number] = sk.save(state, storage, overwrite=overwrite)
            except ShardkeepError as error:
                results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    losers = [n for n, result in results.items() if isinstance(result, ConflictError)]
    assert len(losers) == 1
    assert "another save to the same path was committed" in str(results[losers[0]])
    winner = 3 - losers[0]
    assert torch.equal(sk.load(path)["w"], torch.full((3,), float(winner)))
    assert len(names(str(path))) == 2
