"""Which layouts should a property be tried on, and what does a rank hold of an array in one?

The second answer is the oracle: plain NumPy indexing of the whole array, with none of the boxes,
runs and parts that it is to check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from numpy.typing import NDArray

from shardkeep.boxes import Box
from shardkeep.layouts import Layout, Mesh, MeshLayout, Placement, Replicate, Split
from shardkeep.testing.box_strategies import boxes_in, shapes as box_shapes, tilings

Shape = tuple[int, ...]
Array = NDArray[Any]
Owned = list[tuple[int, Box]]

DTYPES: tuple[torch.dtype, ...] = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex32,
    torch.complex64,
    torch.complex128,
)

# Bit patterns 1, 2, ... of narrow floats are distinct finite numbers up to these.
_FINITE_PATTERNS = {1: 113, 2: 31_743}


def dtypes() -> SearchStrategy[torch.dtype]:
    """Every dtype that a tensor's cells may have."""
    return st.sampled_from(DTYPES)


def shapes(max_dims: int = 4, max_numel: int = 240) -> SearchStrategy[Shape]:
    """Shapes of at most `max_numel` cells; 0-dim, empty and uneven ones among them."""
    found = box_shapes(max_dims=max_dims, max_side=7)
    return found.filter(lambda shape: math.prod(shape) <= max_numel)


def distinct_values(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor in which a misplaced cell shows: values that differ as far as the dtype goes.

    Narrow dtypes repeat after a prime number of cells, bool is irregular.
    """
    numbers = torch.arange(1, math.prod(shape) + 1, dtype=torch.int64)
    return _values(numbers, dtype).reshape(tuple(shape))


def _values(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return (numbers * 2_654_435_761 >> 13) % 2 == 0
    if dtype.is_complex:
        parts = torch.stack([numbers.double(), -numbers.double() - 0.5], dim=-1)
        return torch.view_as_complex(parts).to(dtype)
    if dtype.is_floating_point and dtype.itemsize <= 2:
        bits = torch.int8 if dtype.itemsize == 1 else torch.int16
        return (numbers % _FINITE_PATTERNS[dtype.itemsize] + 1).to(bits).view(dtype)
    return (numbers % 127 if dtype.itemsize == 1 else numbers).to(dtype)


def raw(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The bytes of each cell as a last dim, so that NumPy can index and compare every dtype."""
    cells = tensor.detach().resolve_conj().resolve_neg().contiguous()
    cell_bytes = cells.as_strided((cells.numel(),), (1,)).view(torch.uint8).numpy()
    return cell_bytes.reshape(*tensor.shape, tensor.dtype.itemsize)


@st.composite
def mesh_layouts(
    draw: DrawFn, shape: Shape, ranks: Sequence[int], *, replicas: bool = True
) -> Layout:
    """Meshes of 1 to 3 axes: splits, interleaved ones, several on one dim, replicas."""
    sides = _mesh_sides(draw, len(ranks))
    if not shape and not replicas:
        sides = (1,) * len(sides)
    mesh = Mesh(sides, tuple(draw(st.permutations(ranks))[: math.prod(sides)]))
    return Layout.on_mesh(
        shape, mesh, [draw(_placements(shape, replicas=replicas or side == 1)) for side in sides]
    )


def _mesh_sides(draw: DrawFn, room: int) -> Shape:
    sides: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        sides.append(draw(st.integers(1, room)))
        room //= sides[-1]
    return tuple(draw(st.permutations(sides)))


def _placements(shape: Shape, *, replicas: bool) -> SearchStrategy[Placement]:
    kinds: list[SearchStrategy[Placement]] = [st.just(Replicate())] if replicas else []
    if shape:
        dims = st.integers(-len(shape), len(shape) - 1)
        kinds += [st.builds(Split, dims), st.builds(Split, dims, st.integers(1, 4))]
    return st.one_of(kinds)


@st.composite
def chunked_layouts(draw: DrawFn, shape: Shape, ranks: Sequence[int]) -> Layout:
    """One dim over some of the ranks, in any order; some chunks are empty."""
    chosen = draw(st.permutations(ranks))[: draw(st.integers(1, len(ranks)))]
    return Layout.chunked(shape, draw(st.integers(-len(shape), len(shape) - 1)), chosen)


@st.composite
def grid_layouts(draw: DrawFn, shape: Shape, ranks: Sequence[int]) -> Layout:
    """Each dim cut into chunks, a cell of the grid for each of some ranks."""
    counts: list[int] = []
    room = len(ranks)
    for _ in shape:
        counts.append(draw(st.integers(1, room)))
        room //= counts[-1]
    return Layout.grid(shape, counts, draw(st.permutations(ranks))[: math.prod(counts)])


@st.composite
def owned_tilings(
    draw: DrawFn, shape: Shape, ranks: Sequence[int], *, replicas: bool = False
) -> Owned:
    """Irregular tilings with owners: ranks have several boxes or none, and empty boxes too."""
    most = 3 if replicas else 1
    owned: Owned = []
    for box in draw(tilings(shape, max_boxes=8)):
        owners = draw(st.lists(st.sampled_from(ranks), min_size=1, max_size=most, unique=True))
        owned += [(rank, box) for rank in owners]
    for _ in range(draw(st.integers(0, 2)) if shape else 0):
        box = draw(boxes_in(shape))
        owned.append((draw(st.sampled_from(ranks)), Box(box.start, box.start)))
    return draw(st.permutations(owned))


@st.composite
def listed_layouts(
    draw: DrawFn, shape: Shape, ranks: Sequence[int], *, replicas: bool = True
) -> Layout:
    """Irregular tilings, written out; ranks without a box take part or not."""
    owned = draw(owned_tilings(shape, ranks, replicas=replicas))
    return Layout.listed(shape, owned, ranks=ranks if draw(st.booleans()) else None)


def layouts(shape: Shape, ranks: Sequence[int], *, replicas: bool = True) -> SearchStrategy[Layout]:
    """Complete layouts of `shape` over some of `ranks`, of every kind."""
    kinds = [
        mesh_layouts(shape, ranks, replicas=replicas),
        grid_layouts(shape, ranks),
        listed_layouts(shape, ranks, replicas=replicas),
    ]
    if shape:
        kinds.append(chunked_layouts(shape, ranks))
    if replicas:
        kinds.append(_replicated_layouts(shape, ranks))
    return st.one_of(kinds)


@st.composite
def _replicated_layouts(draw: DrawFn, shape: Shape, ranks: Sequence[int]) -> Layout:
    chosen = st.lists(st.sampled_from(ranks), min_size=1, unique=True)
    return Layout.replicated(shape, draw(chosen))


def held_by(layout: Layout, rank: int, array: Array) -> list[Array]:
    """The oracle: the local buffers of `rank` when `array` is laid out so.

    `array` may have further dims behind those of the layout, such as a cell's bytes.
    """
    if isinstance(layout, MeshLayout):
        if rank not in layout.mesh.ranks:
            return []
        return [array[np.ix_(*_mesh_indices(layout, rank))]]
    tail = array.shape[len(layout.shape) :]
    buffers = [np.zeros((*shape, *tail), array.dtype) for shape in layout.buffer_shapes_of(rank)]
    for part in layout.parts_of(rank):
        buffers[part.buffer][part.place.slices()] = array[part.box.slices()]
    return buffers


def _mesh_indices(layout: MeshLayout, rank: int) -> list[NDArray[np.int64]]:
    """The global indices along each dim that `rank` holds, in its order."""
    seats = np.array(layout.mesh.ranks).reshape(layout.mesh.shape)
    coordinate: list[int] = np.argwhere(seats == rank)[0].tolist()
    indices = [np.arange(side, dtype=np.int64) for side in layout.shape]
    for side, placement, place in zip(
        layout.mesh.shape, layout.placements, coordinate, strict=True
    ):
        if isinstance(placement, Split):
            pieces = _chunks(indices[placement.dim], placement.interleave)
            mine = [_chunks(piece, side)[place] for piece in pieces]
            indices[placement.dim] = np.concatenate(mine)
    return indices


def _chunks(indices: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """The chunk rule of torch.chunk, with empty chunks at the end."""
    size = -(-len(indices) // parts)
    return [indices[size * i : size * (i + 1)] for i in range(parts)]
