"""How do several processes share the work of one command?

`torchrun -m shardkeep ...` starts the same command on every rank. Each works on its part and
hands what it found to rank 0, which alone speaks. A single process needs no torch for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

T = TypeVar("T")

# Ranks differ by as long as their disks do; a rank that dies is noticed by torchrun.
_TIMEOUT = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Team:
    """The processes that run this command."""

    rank: int = 0
    size: int = 1
    threads: int = 0
    """For each; 0 for as many as there are cores."""
    quiet: bool = False
    """Whether nobody wants to see how far the work is."""

    @property
    def shows(self) -> bool:
        """Whether this one shows how far the work is."""
        return self.leads and not self.quiet

    @property
    def leads(self) -> bool:
        """Whether this one speaks for all."""
        return self.rank == 0

    def share(self, items: Sequence[T], nbytes: Sequence[int]) -> list[T]:
        """Consecutive items for this rank; all ranks get about as many bytes.

        >>> [Team(rank, 2).share("abcd", [9, 1, 1, 9]) for rank in range(2)]
        [['a', 'b'], ['c', 'd']]
        """
        if self.size == 1:
            return list(items)
        mine: list[T] = []
        total, before = sum(nbytes) or 1, 0
        for item, size in zip(items, nbytes, strict=True):
            # Where the item's middle lies says whose it is.
            if (2 * before + size) * self.size // (2 * total + 1) == self.rank:
                mine.append(item)
            before += size
        return mine

    def gather(self, what: str, act: Callable[[], T], kind: type[T]) -> list[T] | None:
        """What `act` gave on each rank, on rank 0; None on the others. If one fails, all raise."""
        if self.size == 1:
            return [act()]
        from shardkeep.transfer.groups import council_of

        council = council_of(None, act=what, timeout=_TIMEOUT)
        found: list[T] | None = None
        try:
            council.report(what, msgspec.msgpack.encode(act()))
            if self.leads:
                notes = council.collect(what)
                found = [msgspec.msgpack.decode(notes[r], type=kind) for r in sorted(notes)]
                council.announce(what, b"")
            council.hear(what)
        except BaseException as error:
            council.fail(what, error, undone=True)
            council.leave(done=False)
            raise
        council.leave(done=True)
        return found

    def together(self, what: str, act: Callable[[], T]) -> T:
        """What `act` gave on this rank, once it has succeeded on all."""
        kept: list[T] = []
        self.gather(what, lambda: len([kept.append(act())]), int)
        return kept[0]

    def tell(self, what: str, text: str) -> str:
        """Rank 0's text, on all ranks."""
        if self.size == 1:
            return text
        from shardkeep.transfer.groups import council_of

        council = council_of(None, act=what, timeout=_TIMEOUT)
        if self.leads:
            council.announce(what, text.encode())
        heard = council.hear(what).decode()
        council.leave(done=True)
        return heard


ALONE = Team()


def join_team(rank: int, size: int, threads: int) -> Team:
    """The team that torchrun started; imports torch only if there is more than one."""
    if size > 1:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
    return Team(rank, size, threads)
