"""Where does host memory come from: plain, page-locked, shared between processes, or both?"""

import threading
import weakref
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from shardkeep.errors import UnsupportedError
from shardkeep.state.fresh_pages import well_placed

_CUDA_HOST_REGISTER_PORTABLE = 1


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A kind of CPU memory, and how to get some."""

    pin_memory: bool = False
    share_memory: bool = False

    def check(self) -> None:
        """Raise UnsupportedError (a RuntimeError) where this machine has no such memory."""
        if self.pin_memory and not torch.accelerator.is_available():
            raise UnsupportedError(
                "pin_memory=True needs an accelerator, and this machine offers none: page-locked "
                "memory would gain nothing here, pass pin_memory=False"
            )
        if self.pin_memory and self.share_memory and not torch.cuda.is_available():
            raise UnsupportedError(
                "memory that is both shared and page-locked needs CUDA: pass only one of "
                "pin_memory=True and share_memory=True"
            )

    def allocate(self, nbytes: int) -> torch.Tensor:
        """`nbytes` fresh bytes, not initialised."""
        if not self.share_memory:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.pin_memory)
        buffer = torch.empty(nbytes, dtype=torch.uint8)
        buffer.share_memory_()
        if self.pin_memory:
            _page_lock(buffer)
        return buffer

    def allocate_kept(self, nbytes: int) -> torch.Tensor:
        """The same for a buffer of our own, which nobody resizes: its pages come sooner."""
        is_plain = not (self.pin_memory or self.share_memory)
        return well_placed(nbytes) if is_plain else self.allocate(nbytes)


def _page_lock(buffer: torch.Tensor) -> None:
    """Lock shared memory for as long as its storage lives, whichever tensors still view it."""
    address = buffer.data_ptr()
    cudart = cast("Any", torch.cuda.cudart())  # pyright: ignore[reportUnknownMemberType]
    code = int(cudart.cudaHostRegister(address, buffer.nbytes, _CUDA_HOST_REGISTER_PORTABLE))
    if code != 0:
        raise RuntimeError(f"{buffer.nbytes} bytes could not be page-locked: CUDA error {code}")
    weakref.finalize(buffer.untyped_storage(), cudart.cudaHostUnregister, address)


@dataclass(slots=True)
class Buffers:
    """The buffers of one snapshot, and those left from an earlier one that it may use again."""

    memory: HostMemory
    spare: dict[int, list[torch.Tensor]] = field(default_factory=dict[int, list[torch.Tensor]])
    taken: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    fresh: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    """Those of the taken ones that no snapshot had before."""

    def take(self, nbytes: int) -> torch.Tensor:
        """A spare buffer of exactly this size, else a fresh one."""
        same_size = self.spare.get(nbytes)
        if same_size:
            buffer = same_size.pop(0)
        else:
            buffer = self.memory.allocate_kept(nbytes)
            self.fresh.append(buffer)
        self.taken.append(buffer)
        return buffer


class BufferPool:
    """Sets of buffers that no snapshot holds any more. Safe to use from several threads.

    A set is handed on as a whole: what the next snapshot does not take from it is freed, so that
    memory for tensors that are gone does not pile up.
    """

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._free: list[list[torch.Tensor]] = []
        self._lock = threading.Lock()

    def open(self) -> Buffers:
        """Buffers for a new snapshot, with those that were given back last as spare ones."""
        with self._lock:
            free = self._free.pop() if self._free else []
        spare: dict[int, list[torch.Tensor]] = {}
        for buffer in free:
            spare.setdefault(buffer.nbytes, []).append(buffer)
        return Buffers(self._memory, spare)

    def give_back(self, buffers: list[torch.Tensor]) -> None:
        """Let a later snapshot overwrite these."""
        with self._lock:
            self._free.append(buffers)

    def clear(self) -> None:
        """Free every buffer that no snapshot holds."""
        with self._lock:
            self._free.clear()
