"""What does each rank know of a distributed state, and do these views fit together?

A view names each tensor with its dtype and layout. Ranks mostly share one view; where they do
not (a tensor on a mesh of each rank's own, keys that some ranks lack), the views are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import xxhash

from shardkeep.boxes import Box, check_tiling
from shardkeep.errors import RanksDisagreeError, name_ranks
from shardkeep.layouts import Layout, ListedLayout, Mesh, MeshLayout, Part, Replicate, Split


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a view. No layout: whole on every rank that has it."""

    dtype: str
    shape: tuple[int, ...]
    layout: Layout | None


View = Mapping[str, Entry]


def encode_view(view: View) -> bytes:
    """The view as JSON; entries and meshes, which repeat, stand in tables of their own."""
    entries: dict[Entry, int] = {}
    # Entries alike are mostly one object, which is hashed once.
    known = {id(entry): entry for entry in view.values()}
    number_of = {one: entries.setdefault(entry, len(entries)) for one, entry in known.items()}
    numbers = [number_of[id(entry)] for entry in view.values()]
    meshes: dict[Mesh, int] = {}
    described = [
        [entry.dtype, entry.shape, _encode_layout(entry.layout, meshes)] for entry in entries
    ]
    ranks = [[mesh.shape, mesh.ranks] for mesh in meshes]
    return msgspec.json.encode([ranks, described, list(view), numbers])


def digest_view(encoded: bytes) -> bytes:
    """16 bytes that tell encoded views apart."""
    return xxhash.xxh3_128_digest(encoded)


def decode_view(data: bytes) -> dict[str, Entry]:
    """The view that was encoded."""
    ranks, described, keys, numbers = msgspec.json.decode(data)
    meshes = [Mesh(tuple(shape), tuple(ranks)) for shape, ranks in ranks]
    entries = [
        Entry(dtype, tuple(shape), _decode_layout(layout, tuple(shape), meshes))
        for dtype, shape, layout in described
    ]
    return {key: entries[number] for key, number in zip(keys, numbers, strict=True)}


def _encode_layout(layout: Layout | None, meshes: dict[Mesh, int]) -> object:
    if layout is None:
        return None
    if isinstance(layout, MeshLayout):
        number = meshes.setdefault(layout.mesh, len(meshes))
        placements = [
            [p.dim, p.interleave] if isinstance(p, Split) else None for p in layout.placements
        ]
        return [number, placements]
    parts = [
        [p.rank, p.buffer, p.box.start, p.box.stop, p.place.start, p.place.stop]
        for p in layout.parts()
    ]
    return {"parts": parts, "buffers": [[r, layout.buffer_shapes_of(r)] for r in layout.ranks]}


def _decode_layout(data: Any, shape: tuple[int, ...], meshes: Sequence[Mesh]) -> Layout | None:
    if data is None:
        return None
    if isinstance(data, list):
        number, placements = cast("tuple[int, list[list[int] | None]]", data)
        rules = tuple(Split(*rule) if rule else Replicate() for rule in placements)
        return MeshLayout(shape, meshes[number], rules)
    parts = tuple(
        Part(Box(tuple(a), tuple(b)), rank, buffer, Box(tuple(c), tuple(d)))
        for rank, buffer, a, b, c, d in data["parts"]
    )
    buffers = cast("list[tuple[int, list[list[int]]]]", data["buffers"])
    shapes = tuple((rank, tuple(map(tuple, sides))) for rank, sides in buffers)
    return ListedLayout(shape, parts, shapes)


Holders = Sequence[tuple[Entry, Sequence[int]]]
"""A tensor's distinct entries, each with the ranks that have it."""


def entries_of(key: str, views: Iterable[tuple[View, Sequence[int]]]) -> tuple[Entry | None, ...]:
    """What each view says of `key`. Keys of which they say the same have the same plan."""
    return tuple([view.get(key) for view, _ in views])


def holders_of(key: str, views: Iterable[tuple[View, Sequence[int]]]) -> Holders:
    """Who knows `key`, and as what; raises if dtypes or shapes differ."""
    found: dict[Entry, list[int]] = {}
    for view, ranks in views:
        if key in view:
            found.setdefault(view[key], []).extend(ranks)
    holders = list(found.items())
    for entry, ranks in holders[1:]:
        _require_same(key, holders[0], (entry, ranks))
    return holders


def _require_same(
    key: str, first: tuple[Entry, Sequence[int]], other: tuple[Entry, Sequence[int]]
) -> None:
    (a, a_ranks), (b, b_ranks) = first, other
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        raise RanksDisagreeError(
            f"{key!r} is {a.dtype} of shape {a.shape} on {name_ranks(a_ranks)}, "
            f"but {b.dtype} of shape {b.shape} on {name_ranks(b_ranks)}"
        )


def held_layout(holders: Holders) -> Layout:
    """The tensor as it lies on the ranks, each by its own entry."""
    if len(holders) == 1 and _takes_part(*holders[0]):
        entry, ranks = holders[0]
        return entry.layout or Layout.replicated(entry.shape, ranks)
    return _joined([(entry, ranks) for entry, ranks in holders])


def _takes_part(entry: Entry, ranks: Sequence[int]) -> bool:
    """Whether every rank that the layout counts on has the entry."""
    return entry.layout is None or set(entry.layout.ranks) <= set(ranks)


def _joined(holders: Holders) -> Layout:
    parts: list[Part] = []
    shapes: list[tuple[int, tuple[tuple[int, ...], ...]]] = []
    for entry, ranks in holders:
        layout = entry.layout or Layout.replicated(entry.shape, ranks)
        for rank in ranks:
            parts.extend(layout.parts_of(rank))
            shapes.append((rank, layout.buffer_shapes_of(rank)))
    return ListedLayout(holders[0][0].shape, tuple(parts), tuple(sorted(shapes)))


def source_layouts(key: str, holders: Holders) -> tuple[Layout, ...]:
    """Every complete set of holders of a tensor; raises if there is none.

    Each entry that is complete by itself is one (replicas); else all together must tile.
    """
    alone = [held_layout([holder]) for holder in holders]
    complete = tuple(layout for layout in alone if _is_complete(layout))
    if complete:
        return complete
    joined = held_layout(holders)
    report = check_tiling(joined.shape, tuple(joined.holders))
    if not report.is_tiling:
        raise RanksDisagreeError(
            f"what the ranks hold of {key!r} does not make up the tensor: {report.describe()}"
        )
    return (joined,)


def _is_complete(layout: Layout) -> bool:
    # A mesh layout of which every rank takes part tiles by its rule.
    if isinstance(layout, MeshLayout):
        return True
    return check_tiling(layout.shape, tuple(layout.holders)).is_tiling
