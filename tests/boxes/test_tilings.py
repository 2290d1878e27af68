"""A tiling has every cell in exactly one box; a report names exactly the cells that are not."""

from collections.abc import Sequence
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardkeep.boxes import Box, Overlap, TilingReport, check_tiling, require_tiling, tilings
from shardkeep.errors import CoverError, InvalidError
from shardkeep.testing import box_strategies
from shardkeep.testing.box_strategies import boxes_in, random_tiling, shapes

ALL = 10**6
Case = tuple[tuple[int, ...], list[Box]]


@st.composite
def exact(draw: st.DrawFn) -> Case:
    shape = draw(shapes())
    empty = [box for box in draw(st.lists(boxes_in(shape), max_size=2)) if box.is_empty]
    return shape, draw(box_strategies.tilings(shape)) + empty


@st.composite
def spoiled(draw: st.DrawFn) -> Case:
    """Tilings in which some boxes were dropped, and others added that may reach outside."""
    shape, boxes = draw(exact())
    kept = [box for box in boxes if draw(st.booleans())]
    more = draw(st.lists(boxes_in([n + 1 for n in shape]), max_size=3))
    return shape, draw(st.permutations(kept + more))


def counts(shape: Sequence[int], boxes: Sequence[Box]) -> np.ndarray:
    count = np.zeros(shape, np.int64)
    for box in boxes:
        count[box.slices()] += 1
    return count


def assert_exact(report: TilingReport, shape: Sequence[int], boxes: Sequence[Box]) -> None:
    """The report's boxes are disjoint, and hold the wrong cells with the boxes over them."""
    count = counts(shape, boxes)
    whole = Box.whole(shape)
    found = [*report.gaps, *(overlap.box for overlap in report.overlaps)]

    np.testing.assert_array_equal(counts(shape, found), count != 1)
    assert all(whole.contains(box) and not box.is_empty for box in found)
    assert not any(box.overlaps(gap) for gap in report.gaps for box in boxes)
    for overlap in report.overlaps:
        here = [i for i, box in enumerate(boxes) if box.overlaps(overlap.box)]
        assert overlap.indices == tuple(here)
        assert len(here) >= 2
        assert all(boxes[i].contains(overlap.box) for i in here)
    outside = [i for i, box in enumerate(boxes) if not whole.contains(box)]
    assert report.outside == tuple(outside)
    assert report.is_tiling == (not outside and (count == 1).all())
    assert not report.is_cut_short


@given(exact(), st.sampled_from([0, ALL]))
def test_exact_tilings_pass_with_arrays_and_without(case: Case, few_corners: int):
    with mock.patch.object(tilings, "_FEW_CORNERS", few_corners):
        report = check_tiling(*case)

    assert report.is_tiling
    assert report == TilingReport(case[0])


@given(spoiled(), st.sampled_from([0, ALL]))
def test_gaps_and_overlaps_are_exactly_the_wrong_cells(case: Case, few_corners: int):
    with mock.patch.object(tilings, "_FEW_CORNERS", few_corners):
        assert_exact(check_tiling(*case, limit=ALL), *case)


@pytest.mark.parametrize("shape", [(40,), (12, 13), (6, 7, 8), (4, 5, 4, 3)])
@pytest.mark.parametrize("seed", range(8))
def test_many_defects_at_once_are_told_apart(shape: tuple[int, ...], seed: int):
    rng = np.random.default_rng(seed)
    boxes = random_tiling(shape, 30, rng)[3:] + random_tiling(shape, 6, rng)[:2]
    boxes += random_tiling([n + 1 for n in shape], 4, rng)[:1]

    assert_exact(check_tiling(shape, boxes, limit=ALL), shape, boxes)


def test_an_overlap_ends_where_one_of_its_boxes_does():
    boxes = [Box((0, 0), (4, 4)), Box((0, 0), (4, 2)), Box((0, 2), (4, 4))]

    assert check_tiling((4, 4), boxes).overlaps == (
        Overlap(boxes[1], (0, 1)),
        Overlap(boxes[2], (0, 2)),
    )


@given(spoiled())
def test_huge_coordinates_are_reported_alike(case: Case):
    shape, boxes = case
    scale = 2**60  # A point of two such coordinates has no int64 key of its own.

    def scaled(box: Box) -> Box:
        return Box(*(tuple(scale * a for a in corner) for corner in (box.start, box.stop)))

    report = check_tiling(shape, boxes, limit=ALL)
    huge = check_tiling([scale * n for n in shape], [scaled(box) for box in boxes], limit=ALL)

    assert huge.gaps == tuple(map(scaled, report.gaps))
    assert huge.overlaps == tuple(Overlap(scaled(o.box), o.indices) for o in report.overlaps)
    assert huge.outside == report.outside


@pytest.mark.parametrize("shape", [(5000,), (300, 400), (40, 50, 60), (12, 3, 12, 12)])
def test_one_wrong_box_among_many_is_found(shape: tuple[int, ...]):
    boxes = random_tiling(shape, 1000, np.random.default_rng(3))
    assert check_tiling(shape, boxes).is_tiling
    lost = boxes[500]
    boxes[500] = boxes[20]

    report = check_tiling(shape, boxes)

    assert report.gaps == (lost,)
    assert report.overlaps == (Overlap(boxes[20], (20, 500)),)


def test_a_defect_is_not_cut_up_by_another_one_elsewhere():
    boxes = random_tiling((64, 64), 200, np.random.default_rng(5))
    lost = sorted(boxes.pop() for _ in range(3))

    assert check_tiling((64, 64), boxes).gaps == tuple(lost)


def test_at_most_limit_of_each_kind_are_reported_and_more_is_said():
    holes = [Box((2 * i,), (2 * i + 1,)) for i in range(10)]
    report = check_tiling((20,), holes, limit=3)

    assert report.gaps == tuple(Box((2 * i + 1,), (2 * i + 2,)) for i in range(3))
    assert report.is_cut_short
    assert report.describe().endswith("; and more")
    assert not check_tiling((20,), holes, limit=10).is_cut_short


def test_boxes_outside_are_cut_short_too():
    report = check_tiling((2,), [Box((0,), (2,)), *[Box((3,), (4,))] * 5], limit=2)

    assert report.outside == (1, 2)
    assert report.is_cut_short


def test_boxes_keep_their_indices_beside_boxes_of_other_dims():
    report = check_tiling((2,), [Box((), ()), Box((0,), (2,)), Box((2,), (3,))])

    assert report.outside == (0, 2)
    assert not report.gaps
    assert not report.overlaps


def test_a_box_of_other_dims_is_outside_and_covers_nothing():
    report = check_tiling(
        (2,), [Box((), ()), Box((0,), (2,)), Box((0, 0), (2, 2)), Box((0,), (1,))]
    )

    assert report.outside == (0, 2)
    assert report.overlaps == (Overlap(Box((0,), (1,)), (1, 3)),)
    assert not report.gaps


@pytest.mark.parametrize(("count", "tiles"), [(0, False), (1, True), (2, False), (300, False)])
def test_a_0_dim_shape_needs_exactly_one_box(count: int, tiles: bool):
    report = check_tiling((), [Box((), ())] * count)

    assert report.is_tiling == tiles
    assert report.gaps == ((Box((), ()),) if count == 0 else ())


@pytest.mark.parametrize("count", [0, 1, 300])
def test_any_number_of_empty_boxes_tile_a_shape_without_cells(count: int):
    assert check_tiling((4, 0), [Box((1, 0), (3, 0))] * count).is_tiling


def test_no_boxes_leave_the_whole_shape():
    assert check_tiling((4, 3), []).gaps == (Box.whole((4, 3)),)


def test_a_sentence_names_boxes_by_label_and_place():
    boxes = [Box((0, 0), (2, 3)), Box((1, 0), (3, 2)), Box((3, 0), (5, 3))]
    report = check_tiling((4, 3), boxes)

    assert report.describe() == (
        "box 2 reaches outside shape (4, 3); box 0 and box 1 share [1:2, 0:2]; "
        "no box holds [2:3, 2:3]"
    )
    assert report.describe(["rank 0", "rank 1", "rank 2"]).startswith("rank 2 reaches outside")
    assert check_tiling((4, 3), [Box.whole((4, 3))]).describe() == "the boxes tile shape (4, 3)"


def test_a_sentence_does_not_name_a_thousand_boxes():
    text = check_tiling((4,), [Box((0,), (4,))] * 1000).describe()

    assert text == "box 0, box 1, box 2, box 3 and 996 more share [0:4]"


def test_require_tiling_raises_with_what_and_where():
    require_tiling((4,), [Box((0,), (4,))], what="'model.wq'")
    with pytest.raises(CoverError, match=r"'model.wq' is not tiled: .* no box holds \[2:4\]"):
        require_tiling((4,), [Box((0,), (2,))], what="'model.wq'")
    with pytest.raises(CoverError, match=r"box 0 \[0:4\] and box 1 \[2:4\] share \[2:4\]"):
        require_tiling((4,), [Box((0,), (4,)), Box((2,), (4,))], what="it")


def test_impossible_arguments_are_refused():
    with pytest.raises(InvalidError, match="limit is 0"):
        check_tiling((4,), [], limit=0)
    with pytest.raises(InvalidError, match="got 0:-1 in dim 0"):
        check_tiling((-1,), [])


def test_corners_beyond_memory_are_refused():
    halves = [Box((0,) * 30, (1,) * 30), Box((1,) * 30, (2,) * 30)]

    with pytest.raises(InvalidError, match="too many corners: 2 boxes that split 30 dims"):
        check_tiling((2,) * 30, halves)
