"""Which peers of a process group run on this host, so that we can share memory?

Found out once for each pair and direction: who has bytes for others says where its memory is to be
found, and who wants them tries to map it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable

from shardkeep.ranks.common_memory import (
    CAN_SHARE,
    SLOT_NBYTES,
    Array,
    CommonMemory,
    Track,
    map_memory,
)
from shardkeep.ranks.group import Messenger, RankGroup
from shardkeep.ranks.neighbours import introduce

# For less, a message will do: peers need not meet.
_MIN_NBYTES = 256 * 1024


class Commons:
    """What is known of the peers of one process group, and the memory for them."""

    def __init__(self) -> None:
        self.memory: CommonMemory | None = None
        self._tracks_to: dict[int, Track | None] = {}
        """By peer that wants bytes of me. None: it cannot map my memory."""
        self._tracks_of: dict[int, tuple[Track, Array] | None] = {}
        """By peer whose bytes I want."""

    def meet(self, group: RankGroup, to: Iterable[int], of: Iterable[int]) -> None:
        """Find out about peers that I have bytes for, and those whose bytes I want.

        On both sides of a pair, in the same direction, at the same time.
        """
        strangers_to = [peer for peer in to if peer not in self._tracks_to]
        strangers_of = [peer for peer in of if peer not in self._tracks_of]
        if strangers_to and self.memory is None and CAN_SHARE:
            self.memory = CommonMemory()
        numbers = {peer: self.memory.next_track() if self.memory else -1 for peer in strangers_to}
        hellos = {peer: self._hello(number) for peer, number in numbers.items()}
        _, answers = introduce(group, hellos, strangers_of, self._answer)
        for peer, pid in answers.items():
            memory = self.memory.memory if self.memory and pid else None
            self._tracks_to[peer] = (
                Track(memory, numbers[peer], pid) if memory is not None else None
            )

    def _hello(self, number: int) -> tuple[int, int, int, int]:
        if self.memory is None or number < 0:
            return 0, 0, 0, -1
        Track(self.memory.memory, number, os.getpid()).prepare()
        return os.getpid(), self.memory.fd, self.memory.word, number

    def _answer(self, peer: int, said: list[int]) -> int:
        """My process, if I see the peer's memory; else 0."""
        pid, fd, word, number = said
        memory = map_memory(pid, fd, word) if number >= 0 and CAN_SHARE else None
        self._tracks_of[peer] = (Track(memory, number, pid), memory) if memory is not None else None
        return os.getpid() if memory is not None else 0

    def sees_mine(self, peer: int, nbytes: int) -> bool:
        """Whether a peer, whom I have met, takes so many bytes out of my memory."""
        return is_for_commons(nbytes) and self._tracks_to[peer] is not None

    def shows(self, peer: int, nbytes: int) -> bool:
        """Whether a peer, whom I have met, has so many bytes for me in its memory."""
        return is_for_commons(nbytes) and self._tracks_of[peer] is not None

    def lend(self, peer: int, place: int, look: Callable[[], None]) -> Lent:
        """Have a peer take the bytes at a place of my memory."""
        track = self._tracks_to[peer]
        if track is None:
            raise ValueError(f"rank {peer} does not see this memory")
        track.post(place)
        return Lent(track, look)

    def borrow(
        self, peer: int, nbytes: int, use: Callable[[Array], None], look: Callable[[], None]
    ) -> Borrowed:
        """The next bytes that a peer has for me; they are used when they are waited for."""
        found = self._tracks_of[peer]
        if found is None:
            raise ValueError(f"the memory of rank {peer} is not seen here")
        return Borrowed(*found, nbytes, use, look)


class Lent:
    """Bytes that a peer takes: done when it has. They stay where they are until then."""

    def __init__(self, track: Track, look: Callable[[], None]) -> None:
        self._track = track
        self._look = look

    def wait(self) -> None:
        self._track.await_taken(self._look)


class Borrowed:
    """Bytes of a peer that I use when they are there."""

    def __init__(
        self,
        track: Track,
        memory: Array,
        nbytes: int,
        use: Callable[[Array], None],
        look: Callable[[], None],
    ) -> None:
        self._track = track
        self._memory = memory
        self._nbytes = nbytes
        self._use = use
        self._look = look

    def wait(self) -> None:
        place = self._track.await_posted(self._look)
        self._use(self._memory[place : place + self._nbytes])
        self._track.say_taken()


def is_for_commons(nbytes: int) -> bool:
    """Whether so many bytes go through common memory, so that the two must have met."""
    return _MIN_NBYTES <= nbytes <= SLOT_NBYTES


_known: weakref.WeakKeyDictionary[Messenger, Commons] = weakref.WeakKeyDictionary()


def commons_of(group: RankGroup) -> Commons:
    """What is known so far in this group; forgotten with it."""
    if group.messenger is None:
        return Commons()
    return _known.setdefault(group.messenger, Commons())
