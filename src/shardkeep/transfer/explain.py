"""What would a load or a save do? Planned in full, without reading or writing tensor data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from shardkeep.boxes import Box
from shardkeep.plan.assign import plan_divisions
from shardkeep.plan.settle import SaveView, Settlement
from shardkeep.state.building import tensor_numbers
from shardkeep.state.keeping import KeptState
from shardkeep.state.restoring import fit_state
from shardkeep.state.shadow import Shadow
from shardkeep.transfer.cost import cost_of
from shardkeep.transfer.council import Council
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.planning import Planning, tensors_to_write

_SHOWN = 8


@dataclass(frozen=True, slots=True)
class LoadExplanation:
    """What this rank would read."""

    nbytes_wanted: int
    nbytes_read: int
    """Whole blocks, since a digest speaks for a whole block."""
    requests: int
    files: int
    scratch_nbytes: int
    """Memory beside the state, for each thread."""
    missing: Sequence[str]
    unexpected: Sequence[str]
    cast: Sequence[str]
    conflicts: Sequence[str]
    """Shapes and dtypes that do not fit."""

    @property
    def over_read(self) -> float:
        """Bytes read for each byte wanted."""
        return self.nbytes_read / self.nbytes_wanted if self.nbytes_wanted else 1.0

    def __str__(self) -> str:
        lines = [
            f"reads {self.nbytes_read:,} bytes in {self.requests} requests from {self.files} files",
            f"for {self.nbytes_wanted:,} bytes wanted ({self.over_read:.2f} x), "
            f"{self.scratch_nbytes:,} bytes of scratch for each thread",
        ]
        for what in ("missing", "unexpected", "cast", "conflicts"):
            names: Sequence[str] = getattr(self, what)
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                lines.append(f"{what}: {', '.join(names[:_SHOWN])}{more}")
        return "\n".join(lines)


def explain_load(
    opened: Opened, into: Any, me: int, keys: Sequence[str] | None, threads: int
) -> LoadExplanation:
    """The plan of this rank's load; reads the manifest and headers only."""
    shadow = Shadow(into, opened.manifest, me=me, keys=keys)
    fit = fit_state(opened.manifest, shadow.leaves, me=me, keys=keys, cast=True)
    parts = [number for node in fit.sparse.values() for number in tensor_numbers(node)]
    records = [opened.manifest.tensors[number] for number in parts]
    boxes = [(slot.record, slot.box) for slot in fit.slots]
    boxes += [(record, Box.whole(record.shape)) for record in records]
    cost = cost_of(opened, boxes, threads=threads)
    return LoadExplanation(
        nbytes_wanted=cost.nbytes_wanted,
        nbytes_read=cost.nbytes_read,
        requests=cost.requests,
        files=cost.files,
        scratch_nbytes=cost.scratch_nbytes,
        missing=fit.missing,
        unexpected=fit.unexpected,
        cast=fit.cast,
        conflicts=fit.mismatched,
    )


class SaveExplanation(msgspec.Struct, frozen=True):
    """What all ranks would write."""

    nbytes: dict[int, int]
    """Of data, by rank."""
    chunks: dict[int, int]
    files: int
    replicated_nbytes: int
    """Bytes that several ranks hold and one of them writes."""
    tensors: int
    views: int
    """How many different views of the state the ranks have."""

    @property
    def balance(self) -> float:
        """The largest rank's bytes for each byte of the mean."""
        total = sum(self.nbytes.values())
        return max(self.nbytes.values()) * len(self.nbytes) / total if total else 1.0

    def __str__(self) -> str:
        return (
            f"{self.tensors} tensors, {sum(self.nbytes.values()):,} bytes in {self.files} files "
            f"and {sum(self.chunks.values())} chunks\n"
            f"the largest rank writes {max(self.nbytes.values()):,} bytes, {self.balance:.2f} x "
            f"the mean; {self.replicated_nbytes:,} bytes are held by several ranks"
        )


def explain_saving(kept: KeptState, council: Council, threads: int) -> SaveExplanation:
    """The plan of a save; raises the conflict that the save would raise. SPMD."""
    view = SaveView(kept.tree, kept.entries, tuple(sorted(kept.per_rank)))
    try:
        planning = Planning(view, council, nbytes=kept.nbytes, threads=threads)
        agreement = planning.agree("explain")
        if planning.settlement is not None:
            made = _explain(
                planning.settlement, council.ranks, agreement.file_count, len(agreement.digests)
            )
            council.announce("explain", msgspec.json.encode(made))
        found = msgspec.json.decode(council.hear("explain"), type=SaveExplanation)
    except BaseException as error:
        council.fail("explain", error, undone=True)
        council.leave(done=False)
        raise
    council.leave(done=True)
    return found


def _explain(
    settlement: Settlement, ranks: Iterable[int], file_count: int, views: int
) -> SaveExplanation:
    tensors = tensors_to_write(settlement.entries, settlement.layouts)
    divisions = plan_divisions(tensors, file_count=file_count)
    nbytes: dict[int, int] = {}
    chunks: dict[int, int] = {}
    files: set[tuple[int, int]] = set()
    for rank in ranks:
        mine = [
            (tensors[key].itemsize, chunk)
            for key, division in divisions.items()
            for chunk in division.chunks_of(rank)
        ]
        nbytes[rank] = sum(size * chunk.box.numel for size, chunk in mine)
        chunks[rank] = len(mine)
        files.update((rank, chunk.number) for _, chunk in mine)
    held = _held_nbytes(settlement, tensors)
    return SaveExplanation(nbytes, chunks, len(files), held, len(settlement.entries), views)


def _held_nbytes(settlement: Settlement, tensors: Mapping[str, Any]) -> int:
    return sum(
        tensors[key].itemsize * box.numel
        for key, layout in settlement.layouts.items()
        for box, holders in layout.holders.items()
        if len(holders) > 1
    )
