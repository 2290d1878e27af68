"""Are reads from a distance few, and do their bytes land where they belong?"""

from __future__ import annotations

import itertools
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

import shardkeep as sk
from shardkeep.errors import CorruptError
from shardkeep.plan.reads import DirectRead
from shardkeep.plan.spans import plan_spans
from shardkeep.storage import ReadCosts
from shardkeep.testing.example_counts import examples
from shardkeep.transfer import load
from tests.transfer.distant import DistantMemory, distant_memory
from tests.transfer.test_any_to_any import Moves, assert_comes_back, moves, world_of
from tests.transfer.worlds import Laid, kept_by, save_in_turn

MIB = 2**20


@given(moves=moves(), reverse=st.booleans(), window=st.sampled_from([1, 64, 4096]))
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))  # pyright: ignore[reportArgumentType]
def test_any_layout_loads_into_any_other_from_a_distance(
    moves: Moves, reverse: bool, window: int
) -> None:
    sources = {key: Laid(whole, source) for key, (whole, source, _) in moves.items()}
    with distant_memory() as storage, patch.object(load, "WINDOW_NBYTES", window):
        save_in_turn(lambda rank: kept_by(rank, sources), storage, world_of(sources), file_count=2)
        assert_comes_back(storage, moves, reverse=reverse)


@given(data=st.data())
def test_spans_hold_every_byte_once_and_no_block_twice(data: st.DataObject) -> None:
    start, block = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 16))
    cuts = sorted(data.draw(st.sets(st.integers(start, start + 300), min_size=2, max_size=20)))
    size = cuts[-1] + data.draw(st.integers(0, 30))
    runs = [DirectRead(n, a, b) for n, (a, b) in enumerate(itertools.pairwise(cuts))]
    wanted = [run for run in runs if data.draw(st.booleans())]
    spans = plan_spans(
        wanted,
        data_start=start,
        file_nbytes=size,
        block_nbytes=block,
        span_nbytes=data.draw(st.integers(1, 100)),
        max_gap_nbytes=data.draw(st.integers(0, 50)),
    )
    got = [(part.target, part.at + i) for s in spans for part in s.parts
           for i in range(part.stop - part.start)]  # fmt: skip
    assert sorted(got) == [(run.target, i) for run in wanted for i in range(run.stop - run.start)]
    for one in spans:
        assert (one.start - start) % block == 0
        assert (one.stop - start) % block == 0 or one.stop == size
        assert all(one.start <= part.start < part.stop <= one.stop for part in one.parts)
    assert all(a.stop <= b.start for a, b in itertools.pairwise(spans))


def saved(storage: DistantMemory, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    sk.save(state, storage)
    storage.requests = storage.nbytes = 0
    return {key: torch.zeros_like(value) for key, value in state.items()}


def test_thousands_of_small_tensors_are_a_few_requests() -> None:
    state = {f"t{n}": torch.full((50,), n, dtype=torch.float32) for n in range(5000)}
    with distant_memory() as storage:
        into = saved(storage, state)
        sk.load(storage, into=into)
        assert storage.requests <= 4
    assert all(torch.equal(into[key], value) for key, value in state.items())


def test_a_large_tensor_is_shared_by_many_requests_and_no_byte_comes_twice() -> None:
    state = {"w": torch.arange(8 * MIB), "b": torch.arange(1000), "v": torch.arange(3 * MIB)}
    with distant_memory() as storage:
        into = saved(storage, state)
        report = sk.load(storage, into=into)
        data = sum(one.nbytes for one in storage.list() if one.key.endswith(".safetensors"))
        assert storage.requests > 8
        assert storage.nbytes == report.nbytes_read <= data
    assert all(torch.equal(into[key], value) for key, value in state.items())


def test_gaps_are_read_over_if_a_request_costs_more() -> None:
    state = {f"t{n:03d}": torch.full((MIB // 4,), n, dtype=torch.float32) for n in range(32)}
    every_fourth = {f"t{n:03d}": torch.zeros(MIB // 4) for n in range(0, 32, 4)}
    counts: list[int] = []
    for costs in (ReadCosts(0.001, 1e6, 4), ReadCosts(0.1, 100e6, 4)):
        with distant_memory() as storage, patch.object(DistantMemory, "said", costs):
            saved(storage, state)
            sk.load(storage, into=dict(every_fourth), strict=False)
            counts.append(storage.requests)
    assert counts[0] > 8
    assert counts[1] < 4 + 2


def test_damage_is_found_from_a_distance() -> None:
    state = {"w": torch.arange(3 * MIB)}
    with distant_memory() as storage:
        into = saved(storage, state)
        (name,) = (one.key for one in storage.list() if one.key.endswith("-0.safetensors"))
        content = bytearray(storage.map(name))
        content[-5] ^= 1
        storage._objects.values[name] = memoryview(bytes(content))
        with pytest.raises(CorruptError, match=f"{name}: bytes .* are not what was written"):
            sk.load(storage, into=into)
