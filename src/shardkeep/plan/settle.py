"""Do the views of all ranks make one checkpoint, and who writes what several of them hold?

Ranks with equal views need no more than that. Views that differ are merged key by key: equal
entries are one tensor, complete ones are replicas of which one is written, parts that tile the
tensor together are written by their holders; anything else is a conflict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardkeep.errors import ConflictError, RanksDisagreeError, name_ranks
from shardkeep.layouts import Layout, ListedLayout, Mesh, MeshLayout, Replicate
from shardkeep.manifest import Node, itemsize
from shardkeep.plan.merge_trees import merge_trees, relabel
from shardkeep.plan.views import Entry, Holders, holders_of, source_layouts


@dataclass(frozen=True, slots=True)
class SaveView:
    """What a rank wants to save: the structure, and each tensor's dtype, shape and layout."""

    tree: Node
    entries: Mapping[str, Entry]
    per_rank: tuple[str, ...] = ()
    """Keys of values of each rank's own."""


ViewGroups = tuple[tuple[int, ...], ...]
"""Groups of view numbers, each of which holds a tensor completely."""


@dataclass
class Settlement:
    """One checkpoint made of all views."""

    tree: Node
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    layouts: dict[str, Layout] = field(default_factory=dict[str, Layout])
    """Who holds what of each tensor that is written."""
    shared: dict[tuple[int, ...], list[str]] = field(
        default_factory=dict[tuple[int, ...], list[str]]
    )
    """Keys that several views have, by the numbers of these views."""
    skipped: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    """By view: keys that another view writes."""
    sources: dict[ViewGroups, list[str]] = field(default_factory=dict[ViewGroups, list[str]])
    """Keys that several groups of views hold completely, by these groups."""
    per_rank: tuple[str, ...] = ()
    listed: list[str] = field(default_factory=list[str])
    """Keys whose parts in several views make up the tensor."""


Views = Sequence[tuple[SaveView, Sequence[int]]]


def settle(views: Views) -> Settlement:
    """The checkpoint that all views make up; raises where they contradict each other."""
    own = sorted({key for view, _ in views for key in view.per_rank})
    made = Settlement(_merged_tree(views), per_rank=tuple(own))
    loads = [0] * len(views)
    everyone = frozenset(rank for _, ranks in views for rank in ranks)
    complete: set[Mesh] = set()
    whole = _WholeLayouts()
    for key, numbers in _numbers_of_keys(views).items():
        holders = _holders(key, numbers, views)
        made.entries[key] = holders[0][0]
        if len(numbers) > 1 and len(views) > 1:
            made.shared.setdefault(tuple(numbers), []).append(key)
        if len(holders) == 1:
            made.layouts[key] = _one_entry(key, holders, everyone, complete, whole)
        else:
            _several_entries(key, holders, numbers, views, loads, made)
    return made


def _holders(key: str, numbers: Sequence[int], views: Views) -> Holders:
    if len(numbers) == 1:
        view, ranks = views[numbers[0]]
        return [(view.entries[key], ranks)]
    return holders_of(key, [(views[n][0].entries, views[n][1]) for n in numbers])


def _numbers_of_keys(views: Views) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number, (view, _) in enumerate(views):
        for key in view.entries:
            found.setdefault(key, []).append(number)
    return found


def _merged_tree(views: Views) -> Node:
    """One structure in which tensors are numbered as `_numbers_of_keys` lists them."""
    if len(views) == 1:
        return views[0][0].tree
    order = {key: number for number, key in enumerate(_numbers_of_keys(views))}
    trees = [
        (relabel(view.tree, [order[key] for key in view.entries]), ranks) for view, ranks in views
    ]
    return merge_trees(trees)


class _WholeLayouts:
    """Layouts of tensors that are whole on some ranks; those alike are one object.

    A mesh of thousands of ranks is made once, not for every tensor.
    """

    def __init__(self) -> None:
        self._meshes: dict[int, tuple[Sequence[int], Mesh]] = {}
        self._layouts: dict[tuple[int, tuple[int, ...]], Layout] = {}

    def of(self, shape: tuple[int, ...], ranks: Sequence[int]) -> Layout:
        """The layout; `ranks` are told by their identity, and must not change."""
        known = id(ranks), shape
        if known not in self._layouts:
            # The ranks are kept with their mesh: else another list could get the same id.
            _, mesh = self._meshes.setdefault(id(ranks), (ranks, Mesh.line(ranks)))
            self._layouts[known] = MeshLayout(shape, mesh, (Replicate(),))
        return self._layouts[known]


def _one_entry(
    key: str,
    holders: Holders,
    everyone: frozenset[int],
    complete: set[Mesh],
    whole: _WholeLayouts,
) -> Layout:
    """The layout of a tensor that all who have it see alike."""
    ((entry, ranks),) = holders
    if entry.layout is None:
        return whole.of(entry.shape, ranks)
    if isinstance(entry.layout, MeshLayout):
        # Of thousands of tensors on one mesh, only the first has its ranks looked through.
        if len(ranks) == len(everyone) and entry.layout.mesh in complete:
            return entry.layout
        _require_present(key, entry.layout, ranks)
        if len(ranks) == len(everyone):
            complete.add(entry.layout.mesh)
        return entry.layout
    _require_present(key, entry.layout, ranks)
    entry.layout.require_complete(repr(key))
    return entry.layout


def _require_present(key: str, layout: Layout, ranks: Sequence[int]) -> None:
    absent = sorted(set(layout.ranks) - set(ranks))
    if absent:
        raise RanksDisagreeError(
            f"{key!r} is laid out over {name_ranks(layout.ranks)}, but {name_ranks(absent)} "
            "did not bring it; save it from all ranks of its mesh"
        )


def _several_entries(
    key: str,
    holders: Holders,
    numbers: Sequence[int],
    views: Views,
    loads: list[int],
    made: Settlement,
) -> None:
    """Ranks see the tensor differently: as replicas of each other, or as parts of one."""
    entry = holders[0][0]
    try:
        sources = source_layouts(key, holders)
    except RanksDisagreeError as error:
        raise ConflictError(
            f"{error}. If ranks keep different tensors under this key (such as experts), give "
            "each a key of its own"
        ) from error
    if len(sources) == 1 and isinstance(sources[0], ListedLayout) and len(holders) > 1:
        made.layouts[key] = sources[0]
        made.listed.append(key)
        return
    groups = list(_views_by_entry(key, numbers, views))
    complete = [group for group in groups if _is_among(key, group, views, sources)]
    if not complete:
        raise RanksDisagreeError(
            f"{key!r} is laid out over ranks that did not bring it; save it from all ranks of its "
            "mesh"
        )
    if len(complete) > 1:
        made.sources.setdefault(tuple(map(tuple, complete)), []).append(key)
    writers = min(complete, key=lambda group: loads[group[0]])
    loads[writers[0]] += math.prod(entry.shape) * itemsize(entry.dtype)
    chosen = views[writers[0]][0].entries[key]
    ranks = [rank for number in writers for rank in views[number][1]]
    made.layouts[key] = chosen.layout or Layout.replicated(entry.shape, ranks)
    made.entries[key] = chosen
    for number in numbers:
        if number not in writers:
            made.skipped.setdefault(number, []).append(key)


def _views_by_entry(key: str, numbers: Sequence[int], views: Views) -> Iterator[list[int]]:
    """The view numbers that see the tensor alike."""
    groups: dict[Entry, list[int]] = {}
    for number in numbers:
        groups.setdefault(views[number][0].entries[key], []).append(number)
    yield from groups.values()


def _is_among(key: str, group: Sequence[int], views: Views, sources: Sequence[Layout]) -> bool:
    entry = views[group[0]][0].entries[key]
    ranks = [rank for number in group for rank in views[number][1]]
    return (entry.layout or Layout.replicated(entry.shape, ranks)) in sources


def layouts_of_view(
    view: SaveView,
    number: int,
    ranks_by_view: Sequence[Sequence[int]],
    shared: Mapping[tuple[int, ...], Sequence[str]],
    skipped: Sequence[str],
    listed: Mapping[str, Layout],
) -> dict[str, Layout]:
    """What a rank with this view takes part in writing, as the settlement has it."""
    numbers_of = {key: numbers for numbers, keys in shared.items() for key in keys}
    left_out = set(skipped)
    whole, ranks_of = _WholeLayouts(), dict[tuple[int, ...], list[int]]()
    found: dict[str, Layout] = {}
    if not (numbers_of or left_out or listed):
        alone = list(ranks_by_view[number])
        # Entries alike are mostly one object.
        distinct = {id(entry): entry for entry in view.entries.values()}
        layouts = {one: e.layout or whole.of(e.shape, alone) for one, e in distinct.items()}
        return {key: layouts[id(entry)] for key, entry in view.entries.items()}
    for key, entry in view.entries.items():
        if key in left_out:
            continue
        if key in listed:
            found[key] = listed[key]
        elif entry.layout is not None:
            found[key] = entry.layout
        else:
            numbers = numbers_of.get(key, (number,))
            if numbers not in ranks_of:
                ranks_of[numbers] = [rank for n in numbers for rank in ranks_by_view[n]]
            found[key] = whole.of(entry.shape, ranks_of[numbers])
    return found
