"""How does a tree get a twin in host memory, with its views, ties and strides?"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from shardkeep.errors import UnsupportedError
from shardkeep.sharded.leaves import leaf_kind, local_tensors, with_local_tensors
from shardkeep.state.copies import Copies
from shardkeep.state.paths import Path, path_text
from shardkeep.state.spans import (
    CompactCopy,
    Run,
    Span,
    find_loose,
    has_distinct_places,
    plan_copy,
    span_of,
)
from shardkeep.state.tree import Visit, leaves, map_tree

_CPU = torch.device("cpu")
_THREADS = 2
_COMMON_DTYPES = frozenset(
    (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32)
)

# Bytes of a given number, as a uint8 tensor on the CPU.
Allocate: TypeAlias = Callable[[int], torch.Tensor]


def mirror_tree(tree: Any, allocate: Allocate, value: Visit, *, fill: bool) -> Any:
    """A tree of the same containers, whose tensors are twins of the source's in host memory.

    Twins have the strides of their source; those that overlapped in memory overlap again, and
    those of one storage share one. The exception is a tensor that overlaps no other and uses
    less than half of the memory that it spans: its twin is packed. `fill` copies the contents;
    without it, twins of expanded tensors are packed too, so that they can be written.
    `value(path, leaf)` makes the twins of leaves that are no tensors.
    """
    parts_at = {path: _parts(path, leaf) for path, leaf in leaves(tree) if leaf_kind(leaf)}
    parts = [part for parts in parts_at.values() for part in parts]
    twins = iter(_mirror(parts, allocate, fill=fill))
    twins_at = {path: list(islice(twins, len(parts))) for path, parts in parts_at.items()}

    def visit(path: Path, leaf: Any) -> Any:
        if path not in twins_at:
            return value(path, leaf)
        return with_local_tensors(leaf, twins_at[path], device=_CPU)

    return map_tree(visit, tree)


def copy_parts(
    memory: Mapping[str, Sequence[torch.Tensor]], allocate: Allocate
) -> dict[str, list[torch.Tensor]]:
    """Filled twins of plain tensors by key: as `mirror_tree`, without a walk through a tree."""
    twins = iter(_mirror(_plain(memory), allocate, fill=True))
    return {key: list(islice(twins, len(parts))) for key, parts in memory.items()}


def allocate_parts(memory: Mapping[str, Sequence[torch.Tensor]], allocate: Allocate) -> None:
    """Allocate what `copy_parts` would, and copy nothing."""
    _twins(_plain(memory), allocate, Copies(_THREADS))


def _plain(memory: Mapping[str, Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    for key, parts in memory.items():
        for part in parts:
            _require_plain_memory((key,), part)
    return [one for parts in memory.values() for one in parts]


def _parts(path: Path, leaf: torch.Tensor) -> tuple[torch.Tensor, ...]:
    parts = local_tensors(leaf)
    for part in parts:
        _require_plain_memory(path, part)
    return parts


def _require_plain_memory(path: Path, part: torch.Tensor) -> None:
    if type(part) is not torch.Tensor and is_traceable_wrapper_subclass(part):
        kind = type(part).__name__
    elif part.layout is not torch.strided or part.is_quantized or part.is_nested:
        kind = "quantized" if part.is_quantized else "nested" if part.is_nested else part.layout
    else:
        return
    raise UnsupportedError(
        f"{path_text(path)} is a {kind} tensor, which is more than one piece of memory: "
        "convert it to a dense, strided tensor first"
    )


def _mirror(parts: Sequence[torch.Tensor], allocate: Allocate, *, fill: bool) -> list[torch.Tensor]:
    copies = Copies(_THREADS) if fill else None
    twins = _twins(parts, allocate, copies)
    if copies:
        copies.run()
        _wait_for_copies(parts)
    return [twins[index] for index in range(len(parts))]


def _twins(
    parts: Sequence[torch.Tensor], allocate: Allocate, copies: Copies | None
) -> dict[int, torch.Tensor]:
    """Twins by their place in `parts`; to be filled by `copies` if there are any."""
    twins: dict[int, torch.Tensor] = {}
    for storage in _by_storage(parts).values():
        twins.update(_mirror_storage(storage, allocate, copies))
    return twins


def _wait_for_copies(parts: Sequence[torch.Tensor]) -> None:
    """Return when what was copied from accelerators has arrived."""
    for device in {part.device for part in parts}:
        if device.type not in ("cpu", "meta"):
            torch.accelerator.current_stream(device).synchronize()


def _by_storage(parts: Sequence[torch.Tensor]) -> dict[object, dict[int, torch.Tensor]]:
    """The tensors that lie in the same memory, each by its place in `parts`."""
    found: dict[object, dict[int, torch.Tensor]] = {}
    for index, part in enumerate(parts):
        address = part.untyped_storage().data_ptr()
        # What has no elements, or is on the meta device, shares memory with nobody.
        key = (part.device, address) if address and part.numel() else index
        found.setdefault(key, {})[index] = part
    return found


def _mirror_storage(
    parts: dict[int, torch.Tensor], allocate: Allocate, copies: Copies | None
) -> dict[int, torch.Tensor]:
    """Twins of the tensors of one storage; to be filled by `copies` if there are any."""
    first = next(iter(parts.values()))
    fill = copies is not None
    if first.numel() == 0 or (fill and first.is_meta):
        return {index: _without_buffer(part, fill=fill) for index, part in parts.items()}
    if len(parts) == 1 and _is_simple(first):
        return {index: _packed(part, allocate, copies) for index, part in parts.items()}
    alone = _standing_alone(parts, fill=fill)
    twins = {index: _packed(parts[index], allocate, copies) for index in alone}
    rest = {index: part for index, part in parts.items() if index not in alone}
    return twins | _overlapping(rest, allocate, copies)


def _standing_alone(parts: dict[int, torch.Tensor], *, fill: bool) -> list[int]:
    """The tensors of a storage whose twins have packed memory of their own."""
    indices, tensors = list(parts), list(parts.values())
    loose = find_loose([_span(part) for part in tensors], [part.nbytes for part in tensors])
    overlaps_itself = {
        i for i, part in enumerate(tensors) if not has_distinct_places(part.shape, part.stride())
    }
    # What is expanded stays so in a filled copy, and cannot be written to in an empty one.
    alone = set(loose) - overlaps_itself if fill else overlaps_itself.union(loose)
    return [indices[i] for i in sorted(alone)]


def _without_buffer(part: torch.Tensor, *, fill: bool) -> torch.Tensor:
    """An empty twin; or, since there is nothing to copy from it, the meta twin of a meta tensor."""
    device = "meta" if fill and part.is_meta else "cpu"
    return torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device=device)


def _is_simple(part: torch.Tensor) -> bool:
    """Whether a packed twin has the same strides, and torch can fill it: so with most tensors."""
    return part.is_contiguous() and part.dtype in _COMMON_DTYPES


def _packed(part: torch.Tensor, allocate: Allocate, copies: Copies | None) -> torch.Tensor:
    """A twin without gaps, its dims in the same order in memory."""
    contiguous = part.is_contiguous()
    strides = (part if contiguous else torch.empty_like(part, device="meta")).stride()
    twin = torch.empty(0, dtype=part.dtype)
    twin.set_(allocate(part.nbytes).untyped_storage(), 0, part.shape, strides)
    if copies is not None:
        copies.add(twin, part)
    return twin


def _overlapping(
    parts: dict[int, torch.Tensor], allocate: Allocate, copies: Copies | None
) -> dict[int, torch.Tensor]:
    """Twins on one buffer that holds what these tensors of one storage use of it."""
    if not parts:
        return {}
    plan = plan_copy(_span(part) for part in parts.values())
    buffer = allocate(plan.nbytes)
    if copies is not None:
        source = next(iter(parts.values()))
        for run in plan.runs:
            copies.add(buffer.narrow(0, run.target_start, run.nbytes), _bytes_of(source, run))
    return {index: _view_like(part, buffer, plan) for index, part in parts.items()}


def _bytes_of(source: torch.Tensor, run: Run) -> torch.Tensor:
    found = torch.empty(0, dtype=torch.uint8, device=source.device)
    return found.set_(source.untyped_storage(), run.start, (run.nbytes,), (1,))


def _view_like(part: torch.Tensor, buffer: torch.Tensor, plan: CompactCopy) -> torch.Tensor:
    offset = plan.target_of(_span(part).start) // part.itemsize
    twin = torch.empty(0, dtype=part.dtype)
    twin.set_(buffer.untyped_storage(), offset, part.shape, part.stride())
    # A conjugated or negated view holds the bytes of what it views, and a mark.
    twin = twin.conj() if part.is_conj() else twin
    return torch._neg_view(twin) if part.is_neg() else twin  # pyright: ignore


def _span(part: torch.Tensor) -> Span:
    return span_of(int(part.storage_offset()), part.shape, part.stride(), part.itemsize)
