"""What would a load cost on a mesh that is not there? Torch-free, no data read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError, name_ranks
from shardkeep.layouts import Layout, Mesh, Replicate, Split
from shardkeep.layouts.mesh import unravel
from shardkeep.layouts.placements import Placement
from shardkeep.manifest import TensorRecord
from shardkeep.transfer.cost import ReadCost, cost_of
from shardkeep.transfer.opened import Opened
from shardkeep.view.pieces import core_count

_SPLITS = ("dp", "fsdp", "shard", "dp_shard")
_REPEATS = ("ddp", "replicate", "dp_replicate")
_SPLITS_MATRICES = ("tp",)
_MAX_RANKS = 2**20


@dataclass(frozen=True, slots=True)
class Rule:
    """An axis cuts `dim` of the tensors that match; None repeats them."""

    axis: str
    dim: int | None
    pattern: str = "*"
    min_ndim: int = 1

    def fits(self, record: TensorRecord) -> bool:
        return len(record.shape) >= self.min_ndim and fnmatchcase(record.key, self.pattern)


def parse_mesh(text: str) -> dict[str, int]:
    """The size of each axis.

    >>> parse_mesh("dp=8,tp=2")
    {'dp': 8, 'tp': 2}
    """
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not name or not re.fullmatch("[1-9][0-9]{0,6}", size) or name in axes:
            raise InvalidError(f"--mesh is as in dp=8,tp=2, each axis once; got {text!r}")
        axes[name] = int(size)
    if math.prod(axes.values()) > _MAX_RANKS:
        raise InvalidError(f"--mesh {text} has more than {_MAX_RANKS:,} ranks")
    return axes


def parse_rules(axes: Mapping[str, int], shards: Sequence[str]) -> list[Rule]:
    """What each axis does: the rule of its name, then what was said; the last that fits holds."""
    said = [_parse_rule(axes, text) for text in shards]
    rules: list[Rule] = []
    for axis in axes:
        if axis in _SPLITS:
            rules.append(Rule(axis, 0))
        elif axis in _SPLITS_MATRICES:
            rules.append(Rule(axis, 0, min_ndim=2))
        elif axis not in _REPEATS and all(rule.axis != axis for rule in said):
            raise InvalidError(
                f"what does the axis {axis!r} do? Say --shard {axis}:0 if it cuts dim 0 of every "
                f"tensor, --shard '{axis}:1:*.down.weight' of some, --shard {axis}:none if it "
                "repeats them"
            )
    return rules + said


def _parse_rule(axes: Mapping[str, int], text: str) -> Rule:
    axis, _, rest = text.partition(":")
    dim, _, pattern = rest.partition(":")
    if axis not in axes or not re.fullmatch("none|[0-9]{1,2}", dim):
        raise InvalidError(
            f"--shard is AXIS:DIM or AXIS:DIM:PATTERN, with an axis of the mesh ("
            f"{', '.join(axes)}) and a dim, or none; got {text!r}"
        )
    number = None if dim == "none" else int(dim)
    return Rule(axis, number, pattern or "*", 1 if number is None else number + 1)


def placements_of(
    record: TensorRecord, axes: Mapping[str, int], rules: Sequence[Rule]
) -> tuple[Placement, ...]:
    """What each axis does to one tensor.

    Where two axes cut the same dim, the right one cuts first, as fully_shard cuts what tensor
    parallelism left.
    """
    dims = [_dim_of(record, axis, rules) for axis in axes]
    sizes = list(axes.values())
    found: list[Placement] = []
    for at, dim in enumerate(dims):
        inner = [sizes[b] for b in range(at + 1, len(dims)) if dims[b] == dim]
        found.append(Replicate() if dim is None else Split(dim, math.prod(inner)))
    return tuple(found)


def _dim_of(record: TensorRecord, axis: str, rules: Sequence[Rule]) -> int | None:
    fitting = [rule for rule in rules if rule.axis == axis and rule.fits(record)]
    return fitting[-1].dim if fitting else None


@dataclass(frozen=True, slots=True)
class RanksCost:
    """What each of these ranks would read; they hold the same."""

    ranks: tuple[int, ...]
    cost: ReadCost

    @property
    def name(self) -> str:
        return name_ranks(self.ranks).split(" ", 1)[1]


@dataclass(frozen=True, slots=True)
class MeshCost:
    """What a load would cost on a mesh."""

    axes: Mapping[str, int]
    ranks: int
    distinct: int
    """Ranks that hold something of their own; others hold the same as one of these."""
    planned: tuple[RanksCost, ...]
    """All of the distinct ones, or as many as were asked for, spread evenly."""

    @property
    def is_sample(self) -> bool:
        return len(self.planned) < self.distinct

    def total(self, name: str) -> int:
        """Of all ranks; estimated from those that were planned if they are a sample."""
        count = sum(len(one.ranks) for one in self.planned)
        amount = sum(getattr(one.cost, name) * len(one.ranks) for one in self.planned)
        return round(amount * self.ranks / count) if count else 0


def explain_mesh(
    opened: Opened,
    keys: Sequence[str],
    axes: Mapping[str, int],
    rules: Sequence[Rule],
    *,
    most: int,
) -> MeshCost:
    """What loading the tensors would cost; at most `most` distinct ranks are planned."""
    if most < 1:
        raise InvalidError(f"--ranks is how many to plan, at least 1; got {most}")
    shape = tuple(axes.values())
    mesh = Mesh(shape, tuple(range(math.prod(shape))))
    records = [opened.manifest.tensor(key) for key in keys]
    placed = [(record, placements_of(record, axes, rules)) for record in records]
    alike = _alike(mesh, placed)
    chosen = [alike[at] for at in _spread(len(alike), most)]
    layouts = [(record, Layout.on_mesh(record.shape, mesh, places)) for record, places in placed]
    planned = [RanksCost(ranks, _rank_cost(opened, layouts, ranks[0])) for ranks in chosen]
    return MeshCost(dict(axes), len(mesh.ranks), len(alike), tuple(planned))


def _alike(
    mesh: Mesh, placed: Sequence[tuple[TensorRecord, tuple[Placement, ...]]]
) -> list[tuple[int, ...]]:
    """Ranks in groups that hold the same: they differ only along axes that cut nothing."""
    cutting = [
        at
        for at in range(len(mesh.shape))
        if any(isinstance(places[at], Split) for _, places in placed)
    ]
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in mesh.ranks:
        coordinate = unravel(rank, mesh.shape)
        groups.setdefault(tuple(coordinate[at] for at in cutting), []).append(rank)
    return [tuple(ranks) for ranks in groups.values()]


def _spread(count: int, most: int) -> list[int]:
    """Indices spread evenly, the first and the last among them.

    >>> _spread(9, 3), _spread(2, 8), _spread(5, 1)
    ([0, 4, 8], [0, 1], [0])
    """
    if count <= most:
        return list(range(count))
    return [at * (count - 1) // max(1, most - 1) for at in range(most)]


def _rank_cost(
    opened: Opened, layouts: Sequence[tuple[TensorRecord, Layout]], rank: int
) -> ReadCost:
    boxes: list[tuple[TensorRecord, Box]] = [
        (record, box) for record, layout in layouts for box in layout.boxes_of(rank)
    ]
    return cost_of(opened, boxes, threads=core_count())
