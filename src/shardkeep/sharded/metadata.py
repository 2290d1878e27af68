"""What do all ranks know of a sharded tensor: its shards, owners, size and dtype?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError
from shardkeep.sharded.remote_device import RemoteDevice


@dataclass(frozen=True, slots=True, init=False)
class ShardMetadata:
    """One shard: where it starts, how large it is, who owns it.

    >>> ShardMetadata([0, 4], [2, 4], "rank:1/cpu").placement
    RemoteDevice('rank:1/cpu')
    """

    shard_offsets: tuple[int, ...]
    shard_sizes: tuple[int, ...]
    placement: RemoteDevice | None

    def __init__(
        self,
        shard_offsets: Sequence[int],
        shard_sizes: Sequence[int],
        placement: str | torch.device | RemoteDevice | None = None,
    ) -> None:
        _check_extent(shard_offsets, shard_sizes)
        object.__setattr__(self, "shard_offsets", tuple(map(int, shard_offsets)))
        object.__setattr__(self, "shard_sizes", tuple(map(int, shard_sizes)))
        if not (placement is None or isinstance(placement, RemoteDevice)):
            placement = RemoteDevice(placement)
        object.__setattr__(self, "placement", placement)

    @classmethod
    def of_box(cls, box: Box, placement: str | RemoteDevice | None = None) -> ShardMetadata:
        """The shard that covers `box`."""
        return cls(box.start, box.shape, placement)

    @property
    def box(self) -> Box:
        """The shard's cells."""
        return Box.sized(self.shard_offsets, self.shard_sizes)

    @property
    def rank(self) -> int | None:
        """The owner's global rank, if the placement names one."""
        return None if self.placement is None else self.placement.rank()

    def __str__(self) -> str:
        return f"{self.box} on {self.placement or 'nobody'}"


def _check_extent(offsets: Sequence[int], sizes: Sequence[int]) -> None:
    if len(offsets) != len(sizes):
        raise InvalidError(
            f"shard_offsets and shard_sizes differ in length: {list(offsets)} and {list(sizes)}"
        )
    if any(offset < 0 for offset in offsets):
        raise InvalidError(f"shard_offsets must not be negative, got {list(offsets)}")
    if any(size < 0 for size in sizes):
        raise InvalidError(f"shard_sizes must not be negative, got {list(sizes)}")


class MemoryFormatEncoding(Enum):
    """Names for torch.memory_format, which cannot be pickled."""

    CONTIGUOUS = 0
    CHANNELS_LAST = 1
    PRESERVE = 2

    @classmethod
    def of(cls, memory_format: torch.memory_format) -> MemoryFormatEncoding:
        for encoding, known in _MEMORY_FORMATS.items():
            if known == memory_format:
                return encoding
        raise RuntimeError(f"memory format {memory_format} has no encoding")

    def memory_format(self) -> torch.memory_format:
        return _MEMORY_FORMATS[self]


_MEMORY_FORMATS = {
    MemoryFormatEncoding.CONTIGUOUS: torch.contiguous_format,
    MemoryFormatEncoding.CHANNELS_LAST: torch.channels_last,
    MemoryFormatEncoding.PRESERVE: torch.preserve_format,
}


@dataclass(slots=True)
class TensorProperties:
    """How the tensors of all shards are made."""

    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    layout: torch.layout = torch.strided
    requires_grad: bool = False
    memory_format: torch.memory_format = torch.contiguous_format
    pin_memory: bool = False

    def __getstate__(
        self,
    ) -> tuple[torch.dtype, torch.layout, bool, MemoryFormatEncoding, bool]:
        encoding = MemoryFormatEncoding.of(self.memory_format)
        return self.dtype, self.layout, self.requires_grad, encoding, self.pin_memory

    def __setstate__(
        self, state: tuple[torch.dtype, torch.layout, bool, MemoryFormatEncoding, bool]
    ) -> None:
        self.dtype, self.layout, self.requires_grad, encoding, self.pin_memory = state
        if not isinstance(encoding, MemoryFormatEncoding):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RuntimeError(f"{encoding!r} encodes no memory format")
        self.memory_format = encoding.memory_format()

    @staticmethod
    def create_from_tensor(tensor: torch.Tensor) -> TensorProperties:
        """The properties of an existing tensor."""
        return TensorProperties(
            dtype=tensor.dtype,
            layout=tensor.layout,
            requires_grad=tensor.requires_grad,
            memory_format=_memory_format_of(tensor),
            pin_memory=tensor.device.type == "cpu" and tensor.is_pinned(),
        )


def _memory_format_of(tensor: torch.Tensor) -> torch.memory_format:
    if tensor.layout is torch.strided and not tensor.is_contiguous():
        if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
            return torch.channels_last
        return torch.preserve_format
    return torch.contiguous_format


@dataclass(slots=True)
class ShardedTensorMetadata:
    """All shards of all ranks, the global size and the properties of every shard."""

    shards_metadata: list[ShardMetadata] = field(default_factory=list[ShardMetadata])
    size: torch.Size = torch.Size([])  # noqa: RUF009  immutable
    tensor_properties: TensorProperties = field(default_factory=TensorProperties)
