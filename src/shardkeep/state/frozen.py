"""How does memory stay readable as it is now, while training goes on changing it?

A child process is forked that does nothing but wait. The kernel copies a page only when one of
the two changes it; what the child has is read from its memory, a piece at a time. The child runs
no code of ours but a loop that ends with the parent, and holds no file, socket or lock of it.
"""

from __future__ import annotations

import bisect
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias, TypeGuard

import torch

from shardkeep.errors import ShardkeepError
from shardkeep.ranks.process_memory import MAX_PLACES, read_memory, read_places

# Smaller ones are copied: that takes no longer than to ask for each.
_WORTH_NBYTES = 64 * 1024
_WATCH_SECONDS = 0.05


class FrozenTensor:
    """A tensor as it was when its memory was frozen, whatever became of the live one.

    Only what a writer needs of a tensor; `thawed` gives a real one.
    """

    __slots__ = ("_base", "_frozen", "_shape")

    def __init__(self, frozen: Frozen, base: int, shape: torch.Tensor) -> None:
        self._frozen = frozen
        self._base = base
        """The address of cell 0 of the storage."""
        self._shape = shape
        """Of the meta device: shape, strides, offset and dtype alone."""

    @classmethod
    def of(cls, live: torch.Tensor, frozen: Frozen) -> FrozenTensor:
        """What a tensor was when all memory was frozen."""
        shape = torch.empty_strided(live.shape, live.stride(), dtype=live.dtype, device="meta")
        return cls(frozen, live.data_ptr(), shape)

    @property
    def shape(self) -> torch.Size:
        return self._shape.shape

    @property
    def itemsize(self) -> int:
        return self._shape.itemsize

    @property
    def nbytes(self) -> int:
        return self._shape.nbytes

    def numel(self) -> int:
        return self._shape.numel()

    def is_contiguous(self) -> bool:
        """Whether its bytes lie in one piece."""
        return self._shape.is_contiguous()

    def flat(self) -> FrozenTensor:
        """A contiguous one as one row of cells."""
        return FrozenTensor(self._frozen, self._base, self._shape.view(-1))

    def __getitem__(self, index: slice | tuple[slice, ...]) -> FrozenTensor:
        return FrozenTensor(self._frozen, self._base, self._shape[index])

    def read_into(self, start: int, target: int, nbytes: int) -> None:
        """Copy `nbytes` bytes of a contiguous one, from `start` on, to the address `target`."""
        self._frozen.read_into(self._address + start, target, nbytes)

    def thawed(self) -> torch.Tensor:
        """A fresh tensor of the same strides with the old contents."""
        shape, strides, dtype = self._shape.shape, self._shape.stride(), self._shape.dtype
        if not self.numel():
            return torch.empty(shape, dtype=dtype)
        last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        room = torch.empty((last + 1) * self.itemsize, dtype=torch.uint8)
        self._frozen.read_into(self._address, room.data_ptr(), room.nbytes)
        return torch.empty(0, dtype=dtype).set_(room.untyped_storage(), 0, shape, strides)

    @property
    def _address(self) -> int:
        return self._base + int(self._shape.storage_offset()) * self.itemsize


Memory: TypeAlias = torch.Tensor | FrozenTensor
"""What a save reads from."""


def thawed(memory: Memory) -> torch.Tensor:
    """The tensor itself, or a copy of one that is frozen."""
    return memory.thawed() if isinstance(memory, FrozenTensor) else memory


class Frozen:
    """This process's private memory at one moment, kept by a child until `release`."""

    def __init__(self, pid: int) -> None:
        self._pid: int | None = pid

    def read_into(self, address: int, target: int, nbytes: int) -> None:
        """Copy `nbytes` bytes that were at `address` to `target`."""
        if self._pid is None or not read_memory(self._pid, address, target, nbytes):
            raise ShardkeepError(
                "the process that keeps the state as it was is gone: it was killed, perhaps for "
                'want of memory; save again, or with snapshot="copy"'
            )

    def has(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the first and the last byte of each can be read."""
        places = [
            (place, 1)
            for tensor in tensors
            for place in (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes - 1)
        ]
        pid, room = self._pid or 0, torch.empty(MAX_PLACES, dtype=torch.uint8)
        batches = [places[at : at + MAX_PLACES] for at in range(0, len(places), MAX_PLACES)]
        return all(read_places(pid, batch, room.data_ptr()) == len(batch) for batch in batches)

    def release(self) -> None:
        """Let the child go; without effect the second time."""
        pid, self._pid = self._pid, None
        if pid is not None:
            # Somebody who waits for any child may have taken it.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def is_freezable(part: Memory) -> TypeGuard[torch.Tensor]:
    """Whether a tensor is worth it, and lies plainly in the host's memory."""
    return (
        isinstance(part, torch.Tensor)
        and part.nbytes >= _WORTH_NBYTES
        and part.is_cpu
        and part.is_contiguous()
        and not part.is_conj()
        and not part.is_neg()
    )


def freeze(tensors: Sequence[torch.Tensor]) -> Frozen | None:
    """The memory of these tensors as it is now; None where that cannot be had safely.

    Not beside an accelerator, whose driver may not survive a fork; not for memory that is shared
    with other processes or files, which a fork does not part; not where the kernel refuses.
    """
    if sys.platform != "linux" or torch.accelerator.is_available() or not _all_private(tensors):
        return None
    try:
        frozen = Frozen(_fork())
    except OSError:
        # No room for another process, or for its share of memory.
        return None
    if frozen.has(tensors):
        return frozen
    frozen.release()
    return None


def _fork() -> int:
    parent = os.getpid()
    # A signal to the whole group must not run the training's handlers in the child, too.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            # Of threads and fork: what the child does needs none of their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _wait_for_end(parent)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _wait_for_end(parent: int) -> None:
    """All that the child does. It has no more than memory: what it held open would stay open."""
    try:
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
    finally:
        os._exit(0)


def _all_private(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a fork parts the memory of all of them."""
    starts, stops, private = _mappings()
    for tensor in tensors:
        at, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        number = bisect.bisect_right(starts, at) - 1
        while at < stop:
            if not (0 <= number < len(starts) and starts[number] <= at < stops[number]):
                return False
            if not private[number]:
                return False
            at = stops[number]
            number += 1
    return True


def _mappings() -> tuple[list[int], list[int], list[bool]]:
    """This process's mappings: where each starts and stops, and whether a fork parts it."""
    starts: list[int] = []
    stops: list[int] = []
    private: list[bool] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights = line.split(maxsplit=2)[:2]
        start, stop = span.split("-")
        starts.append(int(start, 16))
        stops.append(int(stop, 16))
        private.append(rights.endswith("p"))
    return starts, stops, private
