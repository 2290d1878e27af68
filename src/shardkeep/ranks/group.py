"""Who am I, who are the others, and which memory can messages travel from?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
import torch.distributed as dist

from shardkeep.errors import InvalidError


class Work(Protocol):
    """Something under way between ranks."""

    def wait(self) -> object: ...


class Messenger(Protocol):
    """What is used of a process group: byte messages and a small all-gather."""

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def send(self, tensors: list[torch.Tensor], dst: int, tag: int, /) -> Work: ...
    def recv(self, tensors: list[torch.Tensor], src: int, tag: int, /) -> Work: ...
    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], /
    ) -> Work: ...
    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        /,
    ) -> Work: ...
    def broadcast(self, tensors: list[torch.Tensor], options: dist.BroadcastOptions, /) -> Work: ...


@dataclass(frozen=True)
class RankGroup:
    """The ranks that act together. Without torch.distributed: one rank, number 0."""

    messenger: Messenger | None
    """None for a single process that has no group."""
    ranks: tuple[int, ...]
    """Global ranks by group rank."""
    me: int
    """My global rank."""

    @classmethod
    def of(cls, process_group: object = None) -> RankGroup:
        """The given process group, else the default one, else this process alone."""
        if process_group is None:
            if not (dist.is_available() and dist.is_initialized()):
                return cls(None, (0,), 0)
            process_group = dist.group.WORLD
        if process_group is dist.GroupMember.NON_GROUP_MEMBER or process_group is None:
            raise InvalidError(
                "this rank is not a member of the process group; call on the group's ranks only"
            )
        messenger: Messenger = process_group  # type: ignore[assignment]
        ranks = _global_ranks(messenger)
        return cls(messenger, ranks, ranks[messenger.rank()])

    @property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def _index_of_rank(self) -> dict[int, int]:
        return {rank: index for index, rank in enumerate(self.ranks)}

    @property
    def my_index(self) -> int:
        """My rank within the group."""
        return self._index_of_rank[self.me]

    def index_of(self, rank: int) -> int:
        """The group rank of a global rank."""
        index = self._index_of_rank.get(rank)
        if index is None:
            raise InvalidError(f"rank {rank} is not in the group of ranks {list(self.ranks)}")
        return index

    def __contains__(self, rank: object) -> bool:
        return rank in self._index_of_rank

    def broadcast(self, wire: torch.Tensor, index: int) -> None:
        """The bytes of group rank `index` in every rank's `wire`. SPMD."""
        if self.messenger is None:
            return
        options = dist.BroadcastOptions()
        options.rootRank = index
        options.rootTensor = 0
        self.messenger.broadcast([wire], options).wait()

    @cached_property
    def wire_device(self) -> torch.device:
        """Memory that this group's backend can send from: the CPU if it can."""
        devices: Sequence[torch.device] = getattr(self.messenger, "_device_types", ())
        types = [device.type for device in devices]
        if not types or "cpu" in types:
            return torch.device("cpu")
        return torch.device(types[0], torch.accelerator.current_device_index())


def _global_ranks(messenger: Messenger) -> tuple[int, ...]:
    try:
        return tuple(dist.get_process_group_ranks(messenger))  # type: ignore[arg-type]
    except (KeyError, ValueError):
        # A backend that was made by hand and never registered: it is its own world.
        return tuple(range(messenger.size()))
