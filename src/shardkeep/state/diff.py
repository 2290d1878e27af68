"""What differs between two state dicts? Nothing is written, and no other rank is asked."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import torch

from shardkeep.errors import CompanionMismatch, LayoutError
from shardkeep.sharded.leaves import global_layout, leaf_kind, local_tensors
from shardkeep.state.companion import check_fit, describe, pair_leaves, same_layout
from shardkeep.state.compare import tensors_distance, value_distance
from shardkeep.state.paths import Path, flat_keys
from shardkeep.state.tree import Node, leaves, nodes

What: TypeAlias = Literal["type", "shape", "dtype", "layout", "value"]

_ORDER: tuple[What, ...] = ("type", "shape", "dtype", "layout", "value")
_MOST_ROWS = 100
_LONGEST_REPR = 40


@dataclass(frozen=True, slots=True)
class Change:
    """A difference at a place that both trees have: what it was in a, and what it is in b.

    For numbers, `max_abs` is the largest absolute difference. For a tensor, `differing` of the
    `numel` elements that this rank holds are not equal.
    """

    key: str
    what: What
    a: str
    b: str
    differing: int | None = None
    numel: int | None = None
    max_abs: float | None = None

    @property
    def text(self) -> str:
        """What changed, in words."""
        if self.numel is None:
            return f"{self.a} -> {self.b}"
        most = f"{self.max_abs:g}" if isinstance(self.max_abs, float) else str(self.max_abs)
        return f"{self.differing} of {self.numel} elements differ, by at most {most}"


@dataclass(frozen=True, slots=True)
class StateDiff:
    """All differences of two state dicts: false when there are none, a table when printed.

    Keys are flat keys, quoted where a key of a and one of b would look the same. `changed` is
    sorted: types, shapes, dtypes and layouts first, then values by the size of the difference.

    >>> print(diff_state_dict({"lr": 0.5, "betas": (1, 2), "old": 0}, {"lr": 1.0, "betas": [1, 2]}))
    only in a  old
    type       betas  tuple -> list
    value      lr     0.5 -> 1.0
    """

    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    changed: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.only_in_a or self.only_in_b or self.changed)

    def __str__(self) -> str:
        rows = list(self._rows())
        width = max((len(key) for _, key, text in rows[:_MOST_ROWS] if text), default=0)
        lines = [f"{what:<9}  {key:<{width}}  {text}".rstrip() for what, key, text in rows]
        if len(lines) > _MOST_ROWS:
            lines[_MOST_ROWS:] = [f"... and {len(rows) - _MOST_ROWS} more"]
        return "\n".join(lines) or "no differences"

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        yield from (("only in a", key or "(root)", "") for key in self.only_in_a)
        yield from (("only in b", key or "(root)", "") for key in self.only_in_b)
        yield from ((change.what, change.key or "(root)", change.text) for change in self.changed)


@torch.no_grad()
def diff_state_dict(a: Any, b: Any, *, values: bool = True) -> StateDiff:
    """Where and how two state dicts differ; with `values=False`, without looking at contents.

    Mappings count as the same kind of container, in whatever order their keys are; a list, a
    tuple and a namedtuple do not. nan equals nan and -0.0 equals 0.0. Devices, strides and
    requires_grad are not compared. Of a DTensor or ShardedTensor, the layout and what this
    rank holds are compared.
    """
    in_a = {node.path: node for node in nodes(a)}
    in_b = {node.path: node for node in nodes(b)}
    key_of = _keys([*in_a.values(), *in_b.values()])
    changed = (
        change
        for path, node in in_a.items()
        if path in in_b
        for change in _changes(key_of[path], node, in_b[path], values=values)
    )
    return StateDiff(
        tuple(key_of[path] for path, node in in_a.items() if path not in in_b and _shows(node)),
        tuple(key_of[path] for path, node in in_b.items() if path not in in_a and _shows(node)),
        tuple(sorted(changed, key=_by_change)),
    )


def check_state_dict_similarity(a: Any, b: Any) -> bool:
    """Whether the tensors of `a` could be copied into those of `b`: nothing is, nor compared.

    Both have the same keys and lengths, and tensors of the same kind, shape, dtype and layout
    in the same places. Other leaves may differ.
    """
    try:
        twin_at = pair_leaves(a, b)
        for path, leaf in leaves(a):
            if isinstance(leaf, torch.Tensor):
                check_fit(path, leaf, twin_at[path])
    except CompanionMismatch:
        return False
    return True


def _keys(found: list[Node]) -> dict[Path, str]:
    """Leaves have the flat keys of both trees' leaves together, containers those of containers."""
    container_keys = flat_keys(node.path for node in found if node.opened)
    return container_keys | flat_keys(node.path for node in found if not node.opened)


def _shows(node: Node) -> bool:
    """A container that one tree alone has is named by its leaves, unless it has none."""
    return node.opened is None or not node.opened.values


def _by_change(change: Change) -> tuple[int, float, str]:
    return _ORDER.index(change.what), -(change.max_abs or 0), change.key


def _changes(key: str, a: Node, b: Node, *, values: bool) -> Iterator[Change]:
    if _kind(a) != _kind(b):
        yield Change(key, "type", describe(a.value), describe(b.value))
    elif isinstance(a.value, torch.Tensor):
        yield from _tensor_changes(key, a.value, b.value, values=values)
    elif values and a.opened is None and (distance := value_distance(a.value, b.value)):
        texts = _shortened(a.value), _shortened(b.value)
        yield Change(key, "value", *texts, max_abs=distance.max_abs)


def _kind(node: Node) -> object:
    if node.opened:
        return "mapping" if node.opened.container.is_mapping else node.opened.container.kind
    return leaf_kind(node.value) or cast("type[Any]", type(node.value))


def _tensor_changes(
    key: str, a: torch.Tensor, b: torch.Tensor, *, values: bool
) -> Iterator[Change]:
    found: list[Change] = []
    if a.shape != b.shape:
        found.append(Change(key, "shape", str(tuple(a.shape)), str(tuple(b.shape))))
    if a.dtype != b.dtype:
        found.append(Change(key, "dtype", str(a.dtype), str(b.dtype)))
    if a.shape == b.shape and not same_layout(a, b):
        found.append(Change(key, "layout", _layout_text(a), _layout_text(b)))
    return iter(found) if found or not values else _value_changes(key, a, b)


def _value_changes(key: str, a: torch.Tensor, b: torch.Tensor) -> Iterator[Change]:
    pairs = list(zip(local_tensors(a), local_tensors(b), strict=True))
    texts = _tensor_text(a), _tensor_text(b)
    if any(part.is_meta or other.is_meta for part, other in pairs):
        if any(part.is_meta != other.is_meta for part, other in pairs):
            yield Change(key, "value", *texts)
    elif distance := tensors_distance(pairs):
        numel = sum(part.numel() for part, _ in pairs)
        yield Change(key, "value", *texts, distance.count, numel, distance.max_abs)


def _tensor_text(x: torch.Tensor) -> str:
    return f"{x.dtype} {tuple(x.shape)} on {x.device.type}"


def _layout_text(x: torch.Tensor) -> str:
    try:
        return _shortened(global_layout(x))
    except LayoutError as error:
        return str(error)


def _shortened(x: object) -> str:
    text = repr(x)
    return text if len(text) <= _LONGEST_REPR else text[: _LONGEST_REPR - 3] + "..."
