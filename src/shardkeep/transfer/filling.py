"""How does a read fill torch memory, also on a device or in another dtype?"""

# torch and NumPy leave from_numpy(), tolist() and the like untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from shardkeep.manifest import itemsize
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.state.restoring import Slot
from shardkeep.storage.rooms import empty_room
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.load import BIT_DTYPES, FilePlan, ReadRule, Want, fill
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.scatter import Scatter
from shardkeep.transfer.share import Sharing
from shardkeep.transfer.shared_fill import SHARED, fill_together

# Tensors that are not read in place pass through host memory, so many bytes at a time.
_STAGED_NBYTES = 256 * 1024 * 1024
# What a tensor takes by itself, so many times, is what one more request may take.
_MIN_SCATTERED_AFAR = 32

_TORCH_BITS = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
    16: torch.complex128,
}
_NUMPY_KNOWS = frozenset((torch.float32, torch.float16, torch.float64, torch.int64, torch.int32))


def fill_slots(
    opened: Opened,
    slots: Sequence[Slot],
    *,
    threads: int,
    verify: bool,
    meter: Meter,
    sharing: Sharing | None = None,
) -> int:
    """Fill all slots; the number of bytes read. With `sharing`, on all ranks together."""
    options: dict[str, Any] = {"threads": threads, "verify": verify, "meter": meter}
    rule = ReadRule.of(opened.storage) if sharing is None else SHARED
    with gc_paused():
        scatter = Scatter.of(opened)
        # Ranks that share join what lies side by side; else it is a request more.
        least = _MIN_SCATTERED_AFAR if rule.in_spans and sharing is None else 1
        in_place, staged_slots, is_scattered = _parted(slots, scatter, least)
        wants = [Want(slot.record, slot.box, _bits(slot.memory)) for slot in in_place]
        plans = scatter.plans(rule, threads=threads) if scatter and is_scattered else []
    batches = list(_batches(staged_slots))

    def fill_some(
        wants: Sequence[Want], scattered: Sequence[FilePlan] = (), *, batches_left: int
    ) -> int:
        if sharing is None:
            return fill(opened, wants, more=scattered, **options)
        again = batches_left > 0
        return fill_together(opened, wants, sharing, scattered=scattered, again=again, **options)

    total = fill_some(wants, plans, batches_left=len(batches))
    for number, batch in enumerate(batches, start=1):
        staged = [(slot, Want(slot.record, slot.box, _fresh(slot))) for slot in batch]
        total += fill_some([w for _, w in staged], batches_left=len(batches) - number)
        for slot, want in staged:
            _deliver(slot, want.array)
    if sharing is not None:
        sharing.finish()
    return total


def _parted(
    slots: Sequence[Slot], scatter: Scatter | None, least: int
) -> tuple[list[Slot], list[Slot], bool]:
    """Those whose memory can be read into, those where it cannot; whether others are scattered.

    They are, if there are at least so many of them for each of the first.
    """
    rest = slots if scatter is None else scatter.take(slots)
    in_place: list[Slot] = []
    staged: list[Slot] = []
    for slot in rest:
        (in_place if _is_in_place(slot) else staged).append(slot)
    scattered = len(slots) - len(rest)
    if scattered < least * len(in_place):
        # Reading those along with the others, in the same windows, takes fewer reads.
        return [slot for slot in slots if _is_in_place(slot)], staged, False
    return in_place, staged, scattered > 0


def _is_in_place(slot: Slot) -> bool:
    memory = slot.memory
    return slot.address is not None or (
        memory.is_cpu
        and memory.dtype is TORCH_DTYPES[slot.record.dtype]
        and not memory.is_conj()
        and not memory.is_neg()
    )


def _bits(memory: torch.Tensor) -> Any:
    """The tensor's memory as an array of items that mean nothing."""
    size = memory.itemsize
    if memory.dtype in _NUMPY_KNOWS:
        # A view of an array is made much faster than one of a tensor.
        return memory.detach().numpy().view(BIT_DTYPES[size])
    return memory.detach().view(_TORCH_BITS[size]).numpy().view(BIT_DTYPES[size])


def _fresh(slot: Slot) -> Any:
    return empty_room(slot.box.shape, BIT_DTYPES[itemsize(slot.record.dtype)])


@torch.no_grad()
def _deliver(slot: Slot, array: Any) -> None:
    """Bring staged values to where they belong, in the dtype that they have there."""
    size = array.dtype.itemsize
    signed = array.view({1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}.get(size, array.dtype))
    stored = torch.from_numpy(signed).view(TORCH_DTYPES[slot.record.dtype])
    slot.memory.detach().copy_(stored)


def _batches(slots: Sequence[Slot]) -> Iterator[list[Slot]]:
    batch: list[Slot] = []
    nbytes = 0
    for slot in slots:
        needed = slot.box.numel * itemsize(slot.record.dtype)
        if batch and nbytes + needed > _STAGED_NBYTES:
            yield batch
            batch, nbytes = [], 0
        batch.append(slot)
        nbytes += needed
    if batch:
        yield batch
