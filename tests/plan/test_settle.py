"""Do views that differ become one checkpoint, and is a contradiction named?"""

from __future__ import annotations

from typing import Any

import pytest

from shardkeep.boxes import Box
from shardkeep.errors import ConflictError, CoverError, RanksDisagreeError
from shardkeep.layouts import Layout, Mesh, Split
from shardkeep.manifest import DictNode, ListNode, Node, TensorNode, ValueNode
from shardkeep.plan import Entry
from shardkeep.plan.merge_trees import merge_trees
from shardkeep.plan.settle import SaveView, Settlement, layouts_of_view, settle


def view(entries: dict[str, Entry], **values: Any) -> SaveView:
    items: list[tuple[str | int, Node]] = [
        (key, TensorNode(number)) for number, key in enumerate(entries)
    ]
    items += [(key, ValueNode.of(value)) for key, value in values.items()]
    return SaveView(DictNode(tuple(items)), entries)


def whole(*shape: int, dtype: str = "F32") -> Entry:
    return Entry(dtype, shape, None)


def rows(start: int, stop: int, rank: int, total: int = 8) -> Entry:
    return Entry("F32", (total,), Layout.listed((total,), [(rank, Box((start,), (stop,)))]))


def layouts_seen(made: Settlement, views: list[tuple[SaveView, list[int]]]) -> list[dict[str, Any]]:
    """What each view's ranks make of the settlement."""
    ranks = [group for _, group in views]
    listed = {key: made.layouts[key] for key in made.listed}
    return [
        layouts_of_view(one, number, ranks, made.shared, made.skipped.get(number, ()), listed)
        for number, (one, _) in enumerate(views)
    ]


def test_one_view_needs_nothing() -> None:
    made = settle([(view({"w": whole(4)}, n=1), [0, 1, 2])])
    assert made.layouts["w"] == Layout.replicated((4,), range(3))
    assert not made.shared
    assert not made.skipped


def test_keys_of_different_ranks_are_united() -> None:
    views = [
        (view({"a": whole(4), "s": whole(2)}, n=1), [0, 2]),
        (view({"s": whole(2), "b": whole(3)}, n=1), [1]),
    ]
    made = settle(views)
    assert list(made.entries) == ["a", "s", "b"]
    assert made.layouts["s"].ranks == (0, 1, 2)
    assert isinstance(made.tree, DictNode)
    assert dict(made.tree.items) == {
        "a": TensorNode(0),
        "s": TensorNode(1),
        "n": ValueNode.of(1),
        "b": TensorNode(2),
    }
    first, second = layouts_seen(made, views)
    assert first == {"a": made.layouts["a"], "s": made.layouts["s"]}
    assert second == {"s": made.layouts["s"], "b": made.layouts["b"]}


def test_parts_that_tile_together_are_one_tensor() -> None:
    views = [(view({"w": rows(0, 3, 0)}), [0]), (view({"w": rows(3, 8, 1)}), [1])]
    made = settle(views)
    assert made.listed == ["w"]
    made.layouts["w"].require_complete()
    assert [seen["w"] for seen in layouts_seen(made, views)] == [made.layouts["w"]] * 2


@pytest.mark.parametrize(("start", "problem"), [(4, "does not make up"), (2, "does not make up")])
def test_gaps_and_overlaps_between_views_are_conflicts(start: int, problem: str) -> None:
    views = [(view({"w": rows(0, 3, 0)}), [0]), (view({"w": rows(start, 8, 1)}), [1])]
    with pytest.raises(ConflictError, match=rf"'w' {problem}.*experts"):
        settle(views)


def test_of_several_complete_sources_one_writes() -> None:
    entries = [
        Entry("F32", (8,), Layout.on_mesh((8,), Mesh.line(pair), (Split(0),)))
        for pair in ([0, 1], [2, 3])
    ]
    keys = ["a", "b"]
    views = [
        (view(dict.fromkeys(keys, entries[0])), [0, 1]),
        (view(dict.fromkeys(keys, entries[1])), [2, 3]),
    ]
    made = settle(views)
    # They take turns.
    assert {made.layouts[key].ranks for key in keys} == {(0, 1), (2, 3)}
    for key in keys:
        assert sum(key in seen for seen in layouts_seen(made, views)) == 1


def test_other_shapes_and_dtypes_are_named() -> None:
    with pytest.raises(RanksDisagreeError, match=r"'w' is F32 of shape \(4,\) on ranks 0-1, but"):
        settle([(view({"w": whole(4)}), [0, 1]), (view({"w": whole(5)}), [2])])
    with pytest.raises(RanksDisagreeError, match=r"BF16 of shape \(4,\) on rank 2"):
        settle([(view({"w": whole(4)}), [0, 1]), (view({"w": whole(4, dtype="BF16")}), [2])])


def test_a_layout_that_is_not_complete_is_refused() -> None:
    with pytest.raises(CoverError, match="'w'"):
        settle([(view({"w": rows(0, 3, 0)}), [0])])


def test_ranks_of_a_mesh_that_did_not_come_are_named() -> None:
    entry = Entry("F32", (8,), Layout.on_mesh((8,), Mesh.line([0, 1, 2]), (Split(0),)))
    with pytest.raises(RanksDisagreeError, match="'w' is laid out over ranks 0-2, but rank 1 did"):
        settle([(view({"w": entry}), [0, 2]), (view({}), [1])])


def test_values_that_differ_are_named_with_the_way_out() -> None:
    with pytest.raises(ConflictError, match=r"'n' is 1 on rank 0, but 2 on rank 1; .*per_rank"):
        settle([(view({}, n=1), [0]), (view({}, n=2), [1])])


def test_true_is_not_one() -> None:
    with pytest.raises(ConflictError, match="'n' is 1 on rank 0, but True on rank 1"):
        settle([(view({}, n=1), [0]), (view({}, n=True), [1])])


def test_dicts_are_united_deep_down_and_lists_are_not() -> None:
    def tree(key: str) -> Node:
        return DictNode((("l", ListNode((DictNode(((key, ValueNode(1)),)),))),))

    merged = merge_trees([(tree("a"), [0]), (tree("b"), [1])])
    assert merged == DictNode(
        (("l", ListNode((DictNode((("a", ValueNode(1)), ("b", ValueNode(1)))),))),)
    )
    longer = DictNode((("l", ListNode((ValueNode(1), ValueNode(2)))),))
    with pytest.raises(ConflictError, match="'l' is a list of 1 on rank 0, but a list of 2"):
        merge_trees([(tree("a"), [0]), (longer, [1])])
