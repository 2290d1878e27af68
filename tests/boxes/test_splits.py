"""Splits are those of torch.chunk; strided ones those of DTensor's _StridedShard."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.distributed.tensor.placement_types import _StridedShard

from shardkeep.boxes import Runs, ceil_split, chunk_runs, interleaved_chunk_runs, nested_split
from shardkeep.errors import InvalidError

few = st.integers(1, 5)


def cells(runs: Runs) -> list[int]:
    return [cell for start, stop in runs for cell in range(start, stop)]


@st.composite
def run_lists(draw: st.DrawFn) -> Runs:
    """Disjoint runs in any order, none empty, as earlier placements leave them."""
    cuts = sorted(draw(st.sets(st.integers(0, 60), max_size=12)))
    spans = list(zip(cuts[:-1:2], cuts[1::2], strict=False))
    return tuple(draw(st.permutations(spans)))


@cache
def torch_strided_split(values: tuple[int, ...], parts: int, factor: int) -> list[list[int]]:
    placement = _StridedShard(0, split_factor=factor)
    tensor = torch.tensor(values, dtype=torch.int64)
    shards, _ = placement._split_tensor(tensor, parts, with_padding=False)
    return [shard.tolist() for shard in shards]


@pytest.mark.parametrize("n", range(21))
def test_ceil_split_is_torch_chunk_with_the_missing_chunks_at_the_end(n: int):
    for parts in range(1, 9):
        chunks = [chunk.tolist() for chunk in torch.arange(n).chunk(parts)]
        chunks += [[]] * (parts - len(chunks))
        spans = ceil_split(n, parts)

        assert [list(range(a, b)) for a, b in spans] == chunks
        assert all(a == b == n for a, b in spans if a == b)


@given(st.integers(0, 40), st.lists(few, max_size=3))
def test_nested_split_chunks_every_piece_again(n: int, counts: list[int]):
    pieces = [torch.arange(n)]
    for parts in counts:
        pieces = [piece for whole in pieces for piece in _chunks(whole, parts)]

    assert [list(range(a, b)) for a, b in nested_split(n, counts)] == [p.tolist() for p in pieces]


def _chunks(tensor: torch.Tensor, parts: int) -> list[torch.Tensor]:
    chunks = list(tensor.chunk(parts))
    return chunks + [tensor[:0]] * (parts - len(chunks))


@given(st.integers(0, 40), st.lists(few, max_size=3))
def test_nested_spans_follow_one_another(n: int, counts: list[int]):
    spans = nested_split(n, counts)

    assert spans[0][0] == 0
    assert spans[-1][1] == n
    assert all(a[1] == b[0] for a, b in pairwise(spans))


@given(run_lists(), few)
def test_chunks_of_runs_are_chunks_of_their_cells(runs: Runs, parts: int):
    spans = ceil_split(len(cells(runs)), parts)

    for index, (a, b) in enumerate(spans):
        assert cells(chunk_runs(runs, parts, index)) == cells(runs)[a:b]


@pytest.mark.parametrize("factor", range(1, 6))
@pytest.mark.parametrize("parts", range(1, 6))
def test_interleaved_chunks_are_those_of_strided_shard(parts: int, factor: int):
    for n in range(41):
        theirs = torch_strided_split(tuple(range(n)), parts, factor)
        runs = [(0, n)] if n else []
        ours = [interleaved_chunk_runs(runs, parts, index, factor) for index in range(parts)]

        assert [cells(part) for part in ours] == theirs


@given(run_lists(), few, few)
def test_interleaved_chunks_of_runs_keep_the_order_of_the_local_tensor(
    runs: Runs, parts: int, factor: int
):
    theirs = torch_strided_split(tuple(cells(runs)), parts, factor)
    ours = [interleaved_chunk_runs(runs, parts, index, factor) for index in range(parts)]

    assert [cells(part) for part in ours] == theirs


@given(run_lists(), few, few)
def test_runs_are_neither_empty_nor_continued_by_the_next(runs: Runs, parts: int, factor: int):
    for index in range(parts):
        found = interleaved_chunk_runs(runs, parts, index, factor)

        assert all(a < b for a, b in found)
        assert all(one[1] != two[0] for one, two in pairwise(found))


def test_two_strided_placements_compose():
    first = torch_strided_split(tuple(range(24)), 3, 2)[1]
    runs = interleaved_chunk_runs([(0, 24)], 3, 1, 2)

    assert cells(runs) == first
    assert cells(chunk_runs(runs, 2, 1)) == np.array_split(first, 2)[1].tolist()


def test_an_empty_run_holds_nothing():
    assert interleaved_chunk_runs([(3, 3), (5, 7), (9, 9)], 1, 0, 4) == ((5, 7),)


@pytest.mark.parametrize(("n", "parts"), [(4, 0), (4, -1), (-1, 2)])
def test_impossible_splits_are_refused(n: int, parts: int):
    with pytest.raises(InvalidError, match="cannot split"):
        ceil_split(n, parts)
    with pytest.raises(InvalidError, match="cannot split"):
        nested_split(n, [2, parts])


def test_a_negative_size_is_refused_even_without_counts():
    with pytest.raises(InvalidError, match="cannot split -1 cells"):
        nested_split(-1, [])


def test_impossible_run_splits_are_refused():
    with pytest.raises(InvalidError, match="index 2 is not one of 2 parts"):
        chunk_runs([(0, 4)], 2, 2)
    with pytest.raises(InvalidError, match="into 0 parts"):
        interleaved_chunk_runs([(0, 4)], 2, 0, 0)
