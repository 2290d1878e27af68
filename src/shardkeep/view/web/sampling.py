"""Which parts of a tensor are read to say what its values are like?

All of it if that is little; else pieces spread evenly over it, so that an answer does not take
longer the larger the tensor is.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardkeep.boxes import Box
from shardkeep.manifest import TensorRecord, itemsize
from shardkeep.plan import cut
from shardkeep.transfer.opened import Opened

_PIECE_NBYTES = 2**20
_MOST_PIECES = 20_000


@dataclass(frozen=True, slots=True)
class Sample:
    """Boxes of a tensor that are read."""

    boxes: tuple[Box, ...]
    nbytes: int
    is_whole: bool


def sample_of(opened: Opened, record: TensorRecord, *, most_nbytes: int | None) -> Sample:
    """Pieces of the tensor of about `most_nbytes` together; None for all of it."""
    size = itemsize(record.dtype)
    piece_nbytes = max(_PIECE_NBYTES, record.nbytes // _MOST_PIECES)
    pieces = [
        part.shifted(chunk.start)
        for chunk, _ in opened.manifest.chunks(record)
        for part in cut(chunk.shape, max(1, piece_nbytes // size))
        if part.numel
    ]
    if most_nbytes is None or record.nbytes <= most_nbytes:
        return Sample(tuple(pieces), record.nbytes, True)
    count = max(1, len(pieces) * most_nbytes // record.nbytes)
    chosen = tuple(pieces[at * len(pieces) // count] for at in range(count))
    return Sample(chosen, sum(box.numel for box in chosen) * size, len(chosen) == len(pieces))
