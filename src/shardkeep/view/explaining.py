"""What would a load cost on a mesh that is not there? Torch-free, no data read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate

import numpy as np

from shardkeep.errors import InvalidError, name_ranks
from shardkeep.layouts import Layout, Mesh, Replicate, Split
from shardkeep.layouts.placements import Placement
from shardkeep.manifest import TensorRecord
from shardkeep.transfer.cost import CostPlanner, Kind, ReadCost, total_cost
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.threads import core_count
from shardkeep.view.stages import stages_of

_SPLITS = ("dp", "fsdp", "shard", "dp_shard")
_REPEATS = ("ddp", "replicate", "dp_replicate")
_SPLITS_MATRICES = ("tp",)
_STAGES = "pp"
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
        elif axis not in (*_REPEATS, _STAGES) and all(rule.axis != axis for rule in said):
            raise InvalidError(
                f"what does the axis {axis!r} do? Say --shard {axis}:0 if it cuts dim 0 of every "
                f"tensor, --shard '{axis}:1:*.down.weight' of some, --shard {axis}:none if it "
                "repeats them"
            )
    return rules + said


def has_stages(axes: Mapping[str, int], rules: Sequence[Rule]) -> bool:
    """Whether an axis gives each of its stages layers of its own, instead of cutting tensors."""
    return _STAGES in axes and all(rule.axis != _STAGES for rule in rules)


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
    return _placements(_dims_of(record, axes, rules), tuple(axes.values()))


Dims = tuple[int | None, ...]
"""The dim that each axis cuts; None where it cuts nothing."""


def _placements(dims: Dims, sizes: Sequence[int]) -> tuple[Placement, ...]:
    found: list[Placement] = []
    for at, dim in enumerate(dims):
        inner = [sizes[b] for b in range(at + 1, len(dims)) if dims[b] == dim]
        found.append(Replicate() if dim is None else Split(dim, math.prod(inner)))
    return tuple(found)


def _dims_of(record: TensorRecord, axes: Iterable[str], rules: Sequence[Rule]) -> Dims:
    fitting = {rule.axis: rule.dim for rule in rules if rule.fits(record)}
    return tuple(fitting.get(axis) for axis in axes)


class _KnownDims:
    """The dims that are cut of each tensor; worked out once for all to which the same applies."""

    def __init__(self, axes: Iterable[str], rules: Sequence[Rule]) -> None:
        self._axes = tuple(axes)
        self._rules = rules
        patterns = {rule.pattern for rule in rules} - {"*"}
        self._matches = [re.compile(translate(pattern)).match for pattern in patterns]
        self._known: dict[tuple[int, ...], Dims] = {}

    def of(self, record: TensorRecord) -> Dims:
        key = record.key
        applies = len(record.shape), *[match(key) is not None for match in self._matches]
        if applies not in self._known:
            self._known[applies] = _dims_of(record, self._axes, self._rules)
        return self._known[applies]


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
    shares = share_out(opened, keys, axes, rules)
    planner = CostPlanner(opened, threads=core_count())
    planned = [
        RanksCost(ranks, total_cost(kinds, planner.ranges_of(kinds).values()))
        for ranks in shares.chosen(most)
        for kinds in [shares.kinds_of(ranks[0])]
    ]
    return MeshCost(dict(axes), shares.ranks, len(shares.alike), tuple(planned))


@dataclass(frozen=True, slots=True)
class Shares:
    """Who would hold what."""

    ranks: int
    alike: Sequence[tuple[int, ...]]
    """All ranks, in groups that hold the same."""
    layouts: Sequence[tuple[Sequence[TensorRecord], Layout]]
    """All tensors, those together that are stored alike and would lie alike."""

    def chosen(self, most: int) -> list[tuple[int, ...]]:
        """At most so many of the groups, spread evenly."""
        if most < 1:
            raise InvalidError(f"--ranks is how many to plan, at least 1; got {most}")
        return [self.alike[at] for at in _spread(len(self.alike), most)]

    def kinds_of(self, rank: int) -> list[Kind]:
        """What a rank holds of the tensors."""
        return [(records, box) for records, layout in self.layouts for box in layout.boxes_of(rank)]


def share_out(
    opened: Opened, keys: Sequence[str], axes: Mapping[str, int], rules: Sequence[Rule]
) -> Shares:
    """Who would hold what of the tensors."""
    records = [opened.manifest.tensor(key) for key in keys]
    staged = has_stages(axes, rules)
    stages = stages_of(records, axes[_STAGES]) if staged else [None] * len(records)
    meshes = _Meshes(axes, staged)
    known = _KnownDims(axes, rules)
    alike: dict[tuple[int, str, tuple[int, ...], int | None, Dims], list[TensorRecord]] = {}
    for record, stage in zip(records, stages, strict=True):
        kind = record.grid, record.dtype, record.shape, stage, known.of(record)
        alike.setdefault(kind, []).append(record)
    layouts = [
        (found, meshes.layout(shape, stage, dims))
        for (_, _, shape, stage, dims), found in alike.items()
    ]
    cutting = [
        at
        for at, axis in enumerate(axes)
        if (staged and axis == _STAGES) or any(dims[at] is not None for *_, dims in alike)
    ]
    return Shares(meshes.whole.size, _alike(tuple(axes.values()), cutting), layouts)


class _Meshes:
    """The mesh, and the part of it that each stage of a pipeline has."""

    def __init__(self, axes: Mapping[str, int], staged: bool) -> None:
        self._sizes = tuple(axes.values())
        self.whole = np.arange(math.prod(self._sizes)).reshape(self._sizes)
        self._at = list(axes).index(_STAGES) if staged else None
        self._known: dict[int | None, Mesh] = {}

    def at(self, stage: int | None) -> Mesh:
        """The ranks of a stage; None for all, those of the stages side by side."""
        if stage not in self._known:
            self._known[stage] = self._made(stage)
        return self._known[stage]

    def _made(self, stage: int | None) -> Mesh:
        ranks = self.whole
        if self._at is not None:
            ranks = np.moveaxis(ranks, self._at, 0)
            ranks = ranks if stage is None else ranks[stage : stage + 1]
        else:
            ranks = ranks[None]
        return Mesh(ranks.shape, tuple(ranks.reshape(-1).tolist()))

    def layout(self, shape: tuple[int, ...], stage: int | None, dims: Dims) -> Layout:
        """Who holds what of a tensor."""
        placed = list(_placements(dims, self._sizes))
        # Stages come first, and cut nothing.
        placed.insert(0, placed.pop(self._at) if self._at is not None else Replicate())
        return Layout.on_mesh(shape, self.at(stage), placed)


def _alike(shape: tuple[int, ...], cutting: Sequence[int]) -> list[tuple[int, ...]]:
    """Ranks in groups that hold the same: they differ only along axes that cut nothing."""
    others = [at for at in range(len(shape)) if at not in cutting]
    ranks = np.arange(math.prod(shape)).reshape(shape).transpose([*cutting, *others])
    groups = ranks.reshape(math.prod(shape[at] for at in cutting), -1)
    return [tuple(group) for group in groups.tolist()]


def _spread(count: int, most: int) -> list[int]:
    """Indices spread evenly, the first and the last among them.

    >>> _spread(9, 3), _spread(2, 8), _spread(5, 1)
    ([0, 4, 8], [0, 1], [0])
    """
    if count <= most:
        return list(range(count))
    return [at * (count - 1) // max(1, most - 1) for at in range(most)]
