"""Does a second tree fit a first one leaf by leaf, so that tensors can be copied into it?

Nothing is broadcast or cast on the way: whatever does not fit is a CompanionMismatch that
names the place.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch

from shardkeep.errors import CompanionMismatch, LayoutError
from shardkeep.sharded.leaves import global_layout, leaf_kind, local_tensors
from shardkeep.state.flatten import name_some
from shardkeep.state.paths import Path, path_text
from shardkeep.state.tree import Container, nodes, open_container

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def pair_leaves(tree: Any, companion: Any) -> dict[Path, Any]:
    """The companion of each leaf of `tree`, by path. Looks at containers and kinds of leaf only.

    Lists and tuples may stand opposite each other, and so may all kinds of mapping.
    """
    companion_at: dict[Path, Any] = {(): companion}
    for node in nodes(tree):
        if node.opened:
            twin = companion_at.pop(node.path)
            children = _children_like(node.path, node.opened.container, twin)
            companion_at.update(((*node.path, key), child) for key, child in children)
        else:
            _check_kind(node.path, node.value, companion_at[node.path])
    return companion_at


def _children_like(path: Path, container: Container, twin: Any) -> Iterator[tuple[Hashable, Any]]:
    if container.is_mapping and isinstance(twin, Mapping):
        return _same_keys(path, container.keys, cast("Mapping[Any, Any]", twin))
    opened = open_container(twin)
    if container.is_mapping or opened is None or opened.container.is_mapping:
        _mismatch(path, f"{container.kind.__name__} opposite {describe(twin)}")
    return _same_length(path, container.keys, opened.values)


def _same_keys(
    path: Path, keys: Sequence[Hashable], twin: Mapping[Any, Any]
) -> Iterator[tuple[Hashable, Any]]:
    missing = [key for key in keys if key not in twin]
    known = set(keys)
    extra = [key for key in twin if key not in known]
    if missing:
        _mismatch(path, f"the companion has no {name_some(missing)}")
    if extra:
        _mismatch(path, f"the companion alone has {name_some(extra)}")
    return ((key, twin[key]) for key in keys)


def _same_length(
    path: Path, keys: Sequence[Hashable], values: Sequence[Any]
) -> Iterator[tuple[Hashable, Any]]:
    if len(keys) != len(values):
        _mismatch(path, f"{len(keys)} elements opposite {len(values)}")
    return zip(keys, values, strict=True)


def _check_kind(path: Path, leaf: Any, twin: Any) -> None:
    is_tensor = isinstance(leaf, torch.Tensor)
    if is_tensor and twin is None:
        _mismatch(path, "tensor opposite None, which does not mean 'no companion' here")
    if is_tensor != isinstance(twin, torch.Tensor) or open_container(twin):
        _mismatch(path, f"{describe(leaf)} opposite {describe(twin)}")


def check_fit(path: Path, leaf: torch.Tensor, twin: torch.Tensor) -> None:
    """Raise CompanionMismatch unless kind, shape, dtype and layout of two tensors are the same."""
    kind = leaf_kind(leaf)
    if kind != leaf_kind(twin):
        _mismatch(path, f"{describe(leaf)} opposite {describe(twin)}")
    if leaf.shape != twin.shape:
        _mismatch(path, f"shape {tuple(leaf.shape)} opposite {tuple(twin.shape)}")
    if leaf.dtype != twin.dtype:
        _mismatch(path, f"dtype {leaf.dtype} opposite {twin.dtype}")
    if kind != "tensor" and not same_layout(leaf, twin):
        _mismatch(path, "the two are divided among the ranks in different ways")


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two leaves of the same kind and shape are divided among the ranks alike."""
    if leaf_kind(a) == "tensor":
        return True
    return _same_mesh(a, b) or (_same_boxes(a, b) and local_shapes(a) == local_shapes(b))


def _same_mesh(a: torch.Tensor, b: torch.Tensor) -> bool:
    if leaf_kind(a) != "dtensor":
        return False
    first, second = cast("DTensor", a), cast("DTensor", b)
    return first.device_mesh == second.device_mesh and first.placements == second.placements


def _same_boxes(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        return global_layout(a) == global_layout(b)
    except LayoutError:
        # Partial placements have no boxes; on equal meshes they were found equal before.
        return False


def local_shapes(x: torch.Tensor) -> list[torch.Size]:
    """The shapes of the memory that this rank holds."""
    return [tensor.shape for tensor in local_tensors(x)]


def fitting_parts(
    path: Path, source: torch.Tensor, target: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What this rank holds of `source`, each piece with the piece of `target` it is copied into.

    Raises CompanionMismatch unless the two fit, and where just one of them has memory: copies to
    the meta device do nothing, and copies from it fail without saying where.
    """
    check_fit(path, source, target)
    pairs = list(zip(local_tensors(source), local_tensors(target), strict=True))
    for part, target_part in pairs:
        if part.is_meta != target_part.is_meta:
            which = "the source" if part.is_meta else "the companion"
            _mismatch(path, f"{which} is on the meta device, which has no memory")
    return pairs


def describe(x: Any) -> str:
    """What kind of leaf or container `x` is, for messages."""
    kind = leaf_kind(x)
    names = {"tensor": "tensor", "dtensor": "DTensor", "sharded": "ShardedTensor"}
    return names[kind] if kind else type(x).__name__


def _mismatch(path: Path, problem: str) -> NoReturn:
    raise CompanionMismatch(f"{path_text(path)} does not fit its companion: {problem}")
