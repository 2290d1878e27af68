"""Does what was saved from any layout load into any other, cell by cell?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.strategies import DrawFn

from shardkeep.layouts import Layout
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.storage import Storage
from shardkeep.testing.example_counts import examples
from shardkeep.testing.layout_strategies import distinct_values, held_by, layouts, raw, shapes
from shardkeep.transfer import planning
from shardkeep.transfer.lazy import Checkpoint
from shardkeep.transfer.opened import open_committed
from tests.transfer.worlds import (
    Laid,
    all_well,
    data_files,
    kept_by,
    load_held,
    memory,
    new_store,
    save_in_turn,
    save_kept,
)

TENSORS_AT_ONCE = 4
Moves = dict[str, tuple[torch.Tensor, Layout, Layout]]


@pytest.fixture(scope="module", autouse=True)
def files_for_small_states() -> Iterator[None]:
    """As many files as threads, though the tensors of a property are small."""
    patch = pytest.MonkeyPatch()
    patch.setattr(planning, "_MIN_NBYTES_FOR_FILES", 0)
    yield
    patch.undo()


@st.composite
def laid_out(draw: DrawFn, sources: int, targets: int) -> tuple[torch.Tensor, Layout, Layout]:
    whole = distinct_values(draw(shapes()), draw(st.sampled_from(list(TORCH_DTYPES.values()))))
    shape = tuple(whole.shape)
    source = draw(layouts(shape, range(sources)))
    return whole, source, draw(layouts(shape, range(targets)))


@st.composite
def moves(draw: DrawFn) -> Moves:
    """Several tensors, each with a layout to save from and one to load into."""
    sources, targets = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    return {f"t{number}": draw(laid_out(sources, targets)) for number in range(TENSORS_AT_ONCE)}


def world_of(tensors: Mapping[str, Laid]) -> int:
    return 1 + max(max(laid.layout.ranks) for laid in tensors.values())


@given(moves=moves(), threads=st.integers(1, 3), saved_reverse=st.booleans(), reverse=st.booleans())
@settings(max_examples=examples(250), suppress_health_check=list(HealthCheck))  # pyright: ignore[reportArgumentType]
def test_any_layout_loads_into_any_other(
    moves: Moves, threads: int, saved_reverse: bool, reverse: bool
) -> None:
    """250 saves of 4 tensors each: 1,000 pairs of layouts; ranks plan and write in turn."""
    sources = {key: Laid(whole, source) for key, (whole, source, _) in moves.items()}
    with memory() as storage:
        save_in_turn(
            lambda rank: kept_by(rank, sources, reverse=saved_reverse),
            storage,
            world_of(sources),
            file_count=threads,
        )
        assert_comes_back(storage, moves, reverse=reverse)


@given(moves=moves(), threads=st.integers(1, 3))
@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))  # pyright: ignore[reportArgumentType]
def test_any_layout_loads_into_any_other_when_ranks_agree_over_a_store(
    moves: Moves, threads: int
) -> None:
    """25 saves of 4 tensors each, by ranks in threads."""
    sources = {key: Laid(whole, source) for key, (whole, source, _) in moves.items()}
    with memory() as storage:
        world = world_of(sources)
        store = new_store()
        all_well(
            save_kept(
                lambda rank: kept_by(rank, sources), storage, world, threads=threads, store=store
            )
        )
        assert store.num_keys() == 0
        assert_comes_back(storage, moves, reverse=False)


def assert_comes_back(storage: Storage, moves: Moves, *, reverse: bool) -> None:
    sources = {key: Laid(whole, source) for key, (whole, source, _) in moves.items()}
    targets = {key: Laid(whole, target) for key, (whole, _, target) in moves.items()}
    assert_written_once(storage, sources)
    with Checkpoint(open_committed(storage), threads=1, owns_storage=False) as checkpoint:
        assert checkpoint.verify().problems == ()
    for rank in range(world_of(targets)):
        loaded = load_held(storage, targets, rank, reverse=reverse)
        for key, laid in targets.items():
            expected = held_by(laid.layout, rank, raw(laid.whole))
            assert len(loaded[key]) == len(expected)
            for found, part in zip(loaded[key], expected, strict=True):
                np.testing.assert_array_equal(found, part, err_msg=f"{key} on rank {rank}")


def assert_written_once(storage: Storage, tensors: Mapping[str, Laid]) -> None:
    """Read with the safetensors package alone, every cell is there once, with its value."""
    times = {key: np.zeros(tuple(laid.whole.shape), int) for key, laid in tensors.items()}
    for data in data_files(storage).values():
        for name, entry in safetensors.deserialize(data):
            key, slices = place_of(name)
            times[key][slices] += 1
            cells = raw(tensors[key].whole)[slices]
            assert bytes(entry["data"]) == cells.tobytes(), name
    for key, count in times.items():
        assert (count == 1).all(), f"{key} was written {count.min()} to {count.max()} times"


def place_of(name: str) -> tuple[str, tuple[Any, ...]]:
    """The tensor and the cells that an entry of a data file holds, as docs/format.md names them."""
    key, found, spans = name.partition("@[")
    if not found:
        return key, (...,)
    pairs = [span.split(":") for span in spans[:-1].split(",") if span]
    return key, tuple(slice(int(start), int(stop)) for start, stop in pairs)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_ranks_that_hold_replicas_write_alike_much(count: int) -> None:
    """Of many equal tensors on all ranks, the largest rank writes at most 1.05 x the mean."""
    whole = distinct_values((16, 8))
    tensors = {
        f"t{number}": Laid(whole, Layout.replicated((16, 8), range(count)))
        for number in range(20 * count)
    }
    written = bytes_written(tensors, count)
    assert sum(written) == whole.nbytes * len(tensors)
    assert max(written) <= 1.05 * sum(written) / count


def bytes_written(tensors: Mapping[str, Laid], world: int) -> list[int]:
    """Of data, by rank."""
    with memory() as storage:
        done = all_well(save_kept(lambda rank: kept_by(rank, tensors), storage, world))
    return [
        sum(record.nbytes - record.header_nbytes for record in outcome.files)
        for outcome in done.values()
    ]


def test_one_large_tensor_is_shared_out_among_its_holders() -> None:
    whole = distinct_values((4096, 4))
    tensors = {"w": Laid(whole, Layout.replicated((4096, 4), range(4)))}
    assert bytes_written(tensors, 4) == [whole.nbytes // 4] * 4
