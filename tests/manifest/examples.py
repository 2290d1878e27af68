"""Which manifests, trees and values do the tests try?"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from shardkeep.boxes import Box
from shardkeep.manifest import (
    DTYPES,
    NO_GRID,
    SPARSE_PARTS,
    ArrayNode,
    BoxGrid,
    ChunkGrid,
    DictNode,
    FileRecord,
    FileTable,
    ListNode,
    Manifest,
    Node,
    PerRankNode,
    Runs,
    SparseNode,
    SplitGrid,
    TensorNode,
    TensorRecord,
    TupleNode,
    ValueNode,
)
from shardkeep.manifest.digests import manifest_digest
from shardkeep.testing.box_strategies import shapes, tilings

SAVE_ID = "0123456789abcdef"
TAIL_NBYTES = 45

texts = st.text(max_size=8)
plain_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**53 - 1, 2**53, -(2**53), 10**4299, -(10**4300) + 1]),
    st.floats(),
    st.complex_numbers(),
    texts,
    st.binary(max_size=8),
)


def small_manifest(**changes: Any) -> Manifest:
    """One of everything, in few bytes."""
    fields: dict[str, Any] = {
        "save_id": SAVE_ID,
        "world": 2,
        "tree": DictNode(
            (
                ("w", TensorNode(0)),
                (7, ListNode((ArrayNode(1), ValueNode(1.5)))),
                ("rng", PerRankNode("rng")),
            )
        ),
        "tensors": (
            TensorRecord("w", "F32", (4, 3), 0),
            TensorRecord("x", "I64", (5,), 1),
            TensorRecord("none", "I8", (0, 3), NO_GRID),
        ),
        "grids": (
            SplitGrid(((2,), ()), Runs.of([0, 1])),
            BoxGrid((Box((0,), (2,)), Box((2,), (5,))), Runs.of([1, 1])),
        ),
        "files": FileTable.of(
            [FileRecord(0, 0, 4096 + 24, 4096, 2**64 - 1), FileRecord(1, 0, 4096 + 64, 4096, 5)]
        ),
        "per_rank": ("rng",),
        "metadata": {"step": 3},
    }
    return Manifest(**{**fields, **changes})


def signed(text: bytes) -> bytes:
    """The manifest text with a digest that matches: what a hostile writer would store."""
    body = text[:-TAIL_NBYTES]
    return body + b',"digest":"' + manifest_digest(body).encode() + b'"}'


def replaced(data: bytes, old: str, new: str) -> bytes:
    """A signed manifest in which some JSON text was replaced."""
    assert data.count(old.encode()) == 1, (old, data)
    return signed(data.replace(old.encode(), new.encode()))


def rewritten(data: bytes, **fields: object) -> bytes:
    """A signed manifest in which top-level fields were replaced."""
    content = json.loads(data)
    assert content.keys() >= fields.keys()
    return signed(msgspec.json.encode({**content, **fields}))


@st.composite
def grids(draw: DrawFn, shape: tuple[int, ...], file_count: int) -> ChunkGrid:
    """Grids of a shape that has cells."""
    if draw(st.booleans()):
        boxes = tuple(draw(tilings(shape)))
        return BoxGrid(boxes, Runs.of(draw(_indices(len(boxes), file_count))))
    splits = tuple([tuple(draw(st.lists(st.integers(1, 3), max_size=2))) for _ in shape])
    count = SplitGrid(splits, Runs(())).cell_count
    return SplitGrid(splits, Runs.of(draw(_indices(count, file_count))))


def _indices(count: int, file_count: int) -> SearchStrategy[list[int]]:
    random = st.lists(st.integers(0, file_count - 1), min_size=count, max_size=count)
    regular = st.just([index % file_count for index in range(count)])
    return regular if count > 20 else random | regular


@st.composite
def file_tables(draw: DrawFn, world: int) -> FileTable:
    """At least one file."""
    names = st.tuples(st.integers(0, world - 1), st.integers(0, 3))
    records = [
        FileRecord(rank, number, 4096 * pages + nbytes, 4096 * pages, digest)
        for (rank, number), pages, nbytes, digest in draw(
            st.lists(
                st.tuples(
                    names, st.integers(1, 3), st.integers(0, 2**40), st.integers(0, 2**64 - 1)
                ),
                min_size=1,
                max_size=4,
                unique_by=lambda row: row[0],
            )
        )
    ]
    return FileTable.of(records)


def value_nodes() -> SearchStrategy[Node]:
    return plain_values.map(ValueNode.of)


def trees(tensor_count: int, per_rank: tuple[str, ...] = ()) -> SearchStrategy[Node]:
    """Trees over so many tensors, with nodes of every kind."""
    leaves: list[SearchStrategy[Node]] = [value_nodes()]
    if per_rank:
        leaves.append(st.sampled_from(per_rank).map(PerRankNode))
    if tensor_count:
        indices = st.integers(0, tensor_count - 1)
        leaves += [indices.map(TensorNode), indices.map(ArrayNode), _sparse_nodes(indices)]
    return st.recursive(st.one_of(leaves), _containers, max_leaves=8)


def _containers(children: SearchStrategy[Node]) -> SearchStrategy[Node]:
    items = st.dictionaries(texts | st.integers(-(2**53) + 1, 2**53 - 1), children, max_size=3)
    several = st.lists(children, max_size=3).map(tuple)
    return st.one_of(
        st.builds(DictNode, items.map(lambda found: tuple(found.items())), st.booleans()),
        several.map(ListNode),
        several.map(TupleNode),
    )


@st.composite
def _sparse_nodes(draw: DrawFn, indices: SearchStrategy[int]) -> Node:
    layout = draw(st.sampled_from(sorted(SPARSE_PARTS)))
    parts = tuple([(name, TensorNode(draw(indices))) for name in SPARSE_PARTS[layout]])
    coalesced = layout == "sparse_coo" and draw(st.booleans())
    return SparseNode(layout, draw(shapes(max_dims=2)), coalesced, parts)


@st.composite
def manifests(draw: DrawFn) -> Manifest:
    """Manifests of up to three tensors, each with a grid of its own or none."""
    world = draw(st.sampled_from([1, 3, 2**31]))
    files = draw(file_tables(world))
    made: list[ChunkGrid] = []
    tensors: list[TensorRecord] = []
    for key in draw(st.lists(texts, max_size=3, unique=True)):
        shape = draw(shapes(max_dims=3))
        number = NO_GRID
        if 0 not in shape:
            number = len(made)
            made.append(draw(grids(shape, len(files))))
        tensors.append(TensorRecord(key, draw(st.sampled_from(sorted(DTYPES))), shape, number))
    per_rank = tuple(sorted(draw(st.sets(texts, max_size=2))))
    return Manifest(
        draw(st.text("0123456789abcdef", min_size=16, max_size=16)),
        world,
        draw(trees(len(tensors), per_rank)),
        tuple(tensors),
        tuple(made),
        files,
        per_rank,
        draw(st.dictionaries(texts, plain_json, max_size=3)),
    )


plain_json: SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53) + 1, 2**53 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        texts,
    ),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=6,
)

any_json: SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["nan", "-inf", "1.5", "float32", "int8", "9" * 20, "YWI="]),
    ),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(["int", "float", "complex", "bytes", "numpy", "dtype", "a.b", "x"]),
            children,
            max_size=2,
        )
    ),
    max_leaves=6,
)
