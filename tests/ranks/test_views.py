"""Digests travel first; views only where they differ."""

from __future__ import annotations

from shardkeep.boxes import Box
from shardkeep.errors import RankInputError
from shardkeep.layouts import Layout, Mesh, Replicate, Split
from shardkeep.plan import Entry
from shardkeep.ranks import RankGroup, share_from, share_views
from shardkeep.testing.thread_ranks import ThreadRanks

SHARED = {
    "w": Entry(
        "float32", (8, 3), Layout.on_mesh((8, 3), Mesh((2, 2), (0, 1, 2, 3)), [Split(0, 2)] * 2)
    ),
    "x": Entry("int64", (), None),
    "y": Entry("bool", (4,), Layout.listed((4,), [(3, Box((0,), (1,))), (1, Box((1,), (4,)))])),
    "z": Entry("float32", (4,), Layout.on_mesh((4,), Mesh.line([2, 0]), [Replicate()])),
}


def test_one_view_is_told_once(four: ThreadRanks):
    views = four.run(lambda rank, group: share_views(RankGroup.of(group), "p", lambda: SHARED))

    for found in views:
        assert [(dict(view), list(ranks)) for view, ranks in found] == [(SHARED, [0, 1, 2, 3])]


def test_different_views_reach_all_ranks_with_their_holders(four: ThreadRanks):
    other = {"only here": Entry("float64", (2, 0), Layout.replicated((2, 0), [1, 3]))}

    views = four.run(
        lambda rank, group: share_views(
            RankGroup.of(group), "p", lambda: other if rank % 2 else SHARED
        )
    )

    for found in views:
        assert [(dict(view), list(ranks)) for view, ranks in found] == [
            (SHARED, [0, 2]),
            (other, [1, 3]),
        ]


def test_an_empty_view_is_a_view(three: ThreadRanks):
    views = three.run(
        lambda rank, group: share_views(RankGroup.of(group), "p", lambda: {} if rank else SHARED)
    )

    assert all([dict(view) for view, _ in found] == [SHARED, {}] for found in views)


def test_a_view_that_one_rank_cannot_give_raises_on_all(three: ThreadRanks):
    def act(rank, group):
        def check():
            if rank == 1:
                raise ValueError("'w' is no tensor")
            return SHARED

        share_views(RankGroup.of(group), "gather_state_dict", check)

    for error in three.errors(act):
        assert isinstance(error, RankInputError)
        assert "gather_state_dict failed on rank 1" in str(error)
        assert "'w' is no tensor" in str(error)


def test_a_single_process_has_one_view():
    (found,) = share_views(RankGroup.of(), "p", lambda: SHARED)

    assert found == (SHARED, [0])


def test_bytes_of_one_rank_reach_all(three: ThreadRanks):
    found = three.run(
        lambda rank, group: share_from(RankGroup.of(group), 2, b"abc" if rank == 2 else None, 3)
    )

    assert found == [b"abc"] * 3
    assert share_from(RankGroup.of(), 0, b"abc", 3) == b"abc"
