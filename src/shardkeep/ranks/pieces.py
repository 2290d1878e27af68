"""Which bytes of a tensor's memory travel? Only bytes do, so every dtype does."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from shardkeep.boxes import Box, byte_ranges


class Piece(NamedTuple):
    """A box of a tensor's memory."""

    memory: torch.Tensor
    place: Box
    dtype: torch.dtype
    """What travels; the memory's own may differ where values are converted on arrival."""

    def view(self) -> torch.Tensor:
        """The box as values."""
        is_whole = self.place.shape == self.memory.shape
        return self.memory if is_whole else self.memory[self.place.slices()]

    def row(self) -> torch.Tensor | None:
        """The memory itself as a row of bytes, if it lies in one row and is what travels."""
        memory = self.memory
        if memory.dtype != self.dtype or not memory.is_contiguous():
            return None
        run = _run(tuple(memory.shape), self.place)
        if run is None or memory.is_conj() or memory.is_neg():
            return None
        first, count = run
        # Not `view(-1)`: one cell is contiguous by any stride, but shows its bytes by 1 only.
        cells = memory.as_strided((count,), (1,), memory.storage_offset() + first)
        return cells.view(torch.uint8)

    def to_row(self, device: torch.device) -> torch.Tensor:
        """The bytes that travel, on `device`; copied where it must be."""
        row = self.row()
        if row is None:
            plain = self.view().resolve_conj().resolve_neg().contiguous()
            row = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)
        return row if row.device == device else row.to(device)

    def put(self, row: torch.Tensor) -> None:
        """Fill `row`, which starts on a boundary of the dtype, with the bytes that travel."""
        row.view(self.dtype).view(self.place.shape).copy_(self.view())

    def take(self, row: torch.Tensor) -> None:
        """Fill the box from the bytes that travelled."""
        own = self.row()
        if own is not None:
            own.copy_(row)
        else:
            self.view().copy_(_values(row, self.dtype).view(self.place.shape))


@lru_cache(maxsize=4096)
def _run(shape: tuple[int, ...], place: Box) -> tuple[int, int] | None:
    """The first cell and the number of cells of a box that lies in one row."""
    ranges = byte_ranges(shape, place, itemsize=1)
    return None if ranges.loops else (ranges.first, ranges.run_nbytes)


def _values(row: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes read as values; copied first where they do not lie on a boundary of the dtype."""
    if row.storage_offset() % dtype.itemsize:
        row = row.clone()
    return row.view(dtype)
