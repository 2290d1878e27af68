"""How does memory stay readable as it is now, while training goes on changing it?

A child process is forked that does nothing but wait. The kernel copies a page only when one of
the two changes it; what the child has is read from its memory, a piece at a time. The child runs
no code of ours but a loop that ends with the parent, and holds no file, socket or lock of it.
"""

from __future__ import annotations

import bisect
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias, TypeGuard

import torch

from shardkeep.errors import ShardkeepError
from shardkeep.ranks.process_memory import MAX_PLACES, read_memory, read_places
from shardkeep.state.huge_pages import Span

# Smaller ones are copied: that takes no longer than to ask for each.
_WORTH_NBYTES = 64 * 1024
_WATCH_SECONDS = 0.05
# Where it starts and stops, and the last of its rights: whether it is private.
_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ...(.)", re.MULTILINE)


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
    def span(self) -> Span:
        """Where a contiguous one lay, or still lies, in this process."""
        return self._address, self._address + self.nbytes

    @property
    def _address(self) -> int:
        return self._base + int(self._shape.storage_offset()) * self.itemsize


Memory: TypeAlias = torch.Tensor | FrozenTensor
"""What a save reads from."""


def thawed(memory: Memory) -> torch.Tensor:
    """The tensor itself, or a copy of one that is frozen."""
    return memory.thawed() if isinstance(memory, FrozenTensor) else memory


class Frozen:
    """This process's private memory at one moment, kept by a child from `begin` to `release`."""

    def __init__(self) -> None:
        self._pid: int | None = None

    def begin(self, addresses: Sequence[int]) -> bool:
        """Freeze it now; False where the kernel refuses, or one of the addresses is not in it."""
        try:
            self._pid = _fork()
        except OSError:
            # No room for another process, or for its share of memory.
            return False
        if self.has(addresses):
            return True
        self.release()
        return False

    def read_into(self, address: int, target: int, nbytes: int) -> None:
        """Copy `nbytes` bytes that were at `address` to `target`."""
        if self._pid is None or not read_memory(self._pid, address, target, nbytes):
            raise ShardkeepError(
                "the process that keeps the state as it was is gone: it was killed, perhaps for "
                'want of memory; save again, or with snapshot="copy"'
            )

    def has(self, addresses: Sequence[int]) -> bool:
        """Whether the byte at each of them can be read."""
        places = [(address, 1) for address in addresses]
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


def freezable_spans(memory: Mapping[str, Sequence[Memory]]) -> list[Span]:
    """Where the tensors lie that a snapshot would freeze; none if it may not."""
    large = [part for parts in memory.values() for part in parts if is_freezable(part)]
    return _spans(large) if freezable_at(large) else []


def frozen_spans(memory: Mapping[str, Sequence[Memory]]) -> list[Span]:
    """Where those lie that a snapshot has frozen."""
    frozen = (part for parts in memory.values() for part in parts if isinstance(part, FrozenTensor))
    return [part.span for part in frozen]


def freezable_at(tensors: Sequence[Memory]) -> list[int]:
    """An address in each mapping that tensors lie in; none where a fork is not safe for all.

    Not beside an accelerator, whose driver may not survive a fork; not for memory that is shared
    with other processes or files, which a fork does not part. A mapping comes along in a fork or
    does not: one byte of each tells.
    """
    if sys.platform != "linux" or torch.accelerator.is_available():
        return []
    return _in_mappings([one for one in tensors if isinstance(one, torch.Tensor)])


def _spans(tensors: Sequence[torch.Tensor]) -> list[Span]:
    return [(one.data_ptr(), one.data_ptr() + one.nbytes) for one in tensors]


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


def _in_mappings(tensors: Sequence[torch.Tensor]) -> list[int]:
    """An address of theirs in each mapping that they lie in; none unless a fork parts them all."""
    starts, stops, private = _mappings()
    found: dict[int, int] = {}
    for at, stop in _spans(tensors):
        number = bisect.bisect_right(starts, at) - 1
        while at < stop:
            if not (0 <= number < len(starts) and starts[number] <= at < stops[number]):
                return []
            if not private[number]:
                return []
            found[number] = at
            at = stops[number]
            number += 1
    return list(found.values())


def _mappings() -> tuple[list[int], list[int], list[bool]]:
    """This process's mappings: where each starts and stops, and whether a fork parts it."""
    found = _MAPPING.findall(Path("/proc/self/maps").read_bytes())
    starts = [int(start, 16) for start, _, _ in found]
    stops = [int(stop, 16) for _, stop, _ in found]
    return starts, stops, [way == b"p" for _, _, way in found]
