"""Which peers run on this host, so that one can read the other's memory?

Found out once for each pair and direction of a process group: who sends shows a random word and
where it lies, who receives tries to read it. Where the kernel refuses, or the peer is on another
host, messages go through the group's backend.
"""

from __future__ import annotations

import os
import secrets
import weakref
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from shardkeep.ranks.group import Messenger, RankGroup, Work
from shardkeep.ranks.process_memory import read_memory

_HELLO_TAG = 0x5ED - 2
_REPLY_TAG = 0x5ED - 1
_HELLO_NUMBERS = 4
# From so many bytes on, a neighbour's memory is read instead of a message sent.
_READ_NBYTES = 256 * 1024
REPLY = 0x10000
"""What is added to the tag of an offer by whoever has taken it."""


class Neighbours:
    """What is known of the peers of one process group."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}
        """By peer whose memory I can read: its process. 0: I cannot."""
        self.readers: dict[int, bool] = {}
        """By peer: whether it can read mine."""

    def meet(self, group: RankGroup, to: Iterable[int], of: Iterable[int]) -> None:
        """Find out about peers that I send to, and those that I receive from.

        On both sides of a pair, in the same direction, at the same time.
        """
        strangers_to = [peer for peer in to if peer not in self.readers]
        strangers_of = [peer for peer in of if peer not in self.pids]
        word = torch.tensor([secrets.randbits(62)])
        hello = os.getpid(), word.data_ptr(), int(word.item()), 0
        found, answers = introduce(
            group,
            dict.fromkeys(strangers_to, hello),
            strangers_of,
            lambda _, said: _readable(*said[:3]),
        )
        self.pids |= found
        self.readers |= {peer: bool(answer) for peer, answer in answers.items()}

    def reads_mine(self, peer: int, nbytes: int) -> bool:
        """Whether a peer, whom I have met, reads so many bytes of my memory by itself."""
        return is_worth_reading(nbytes) and self.readers[peer]

    def process_of(self, peer: int, nbytes: int) -> int:
        """The process of a peer, whom I have met, if I read so many bytes of its memory; else 0."""
        return self.pids[peer] if is_worth_reading(nbytes) else 0


def introduce(
    group: RankGroup,
    hellos: Mapping[int, Sequence[int]],
    of: Sequence[int],
    answer: Callable[[int, list[int]], int],
) -> tuple[dict[int, int], dict[int, int]]:
    """Say some numbers to peers, and answer those of others: my answers, and theirs, by peer.

    On both sides of a pair, in the same direction, at the same time, as many numbers.
    """
    messenger = group.messenger
    if messenger is None or not (hellos or of):
        return {}, {}
    said = {peer: torch.tensor(hello) for peer, hello in hellos.items()}
    heard = {peer: torch.zeros(_HELLO_NUMBERS, dtype=torch.int64) for peer in of}
    answers = {peer: torch.zeros(1, dtype=torch.int64) for peer in hellos}
    # All is asked before anything is waited for: nobody waits in a circle.
    hears = [
        messenger.recv([room], group.index_of(peer), _HELLO_TAG) for peer, room in heard.items()
    ]
    listens = [
        messenger.recv([room], group.index_of(peer), _REPLY_TAG) for peer, room in answers.items()
    ]
    says = [
        messenger.send([hello], group.index_of(peer), _HELLO_TAG) for peer, hello in said.items()
    ]
    for work in hears:
        work.wait()
    mine = {peer: answer(peer, list(map(int, room))) for peer, room in heard.items()}
    replies = {peer: torch.tensor([number]) for peer, number in mine.items()}
    says += [
        messenger.send([reply], group.index_of(peer), _REPLY_TAG) for peer, reply in replies.items()
    ]
    for work in (*listens, *says):
        work.wait()
    return mine, {peer: int(room.item()) for peer, room in answers.items()}


@dataclass(frozen=True, slots=True)
class Line:
    """The way to one peer for messages of one tag."""

    messenger: Messenger
    index: int
    tag: int

    def send(self, wire: torch.Tensor) -> Work:
        return self.messenger.send([wire], self.index, self.tag)

    def recv(self, wire: torch.Tensor) -> Work:
        return self.messenger.recv([wire], self.index, self.tag)

    def offer(self, wire: torch.Tensor, peer: int, near: Neighbours) -> Work:
        """Send bytes, or have a neighbour read them where that is faster."""
        if near.reads_mine(peer, wire.nbytes):
            return Offer(self, wire.data_ptr(), wire)
        return self.send(wire)

    def fetch(self, wire: torch.Tensor, peer: int, near: Neighbours) -> Work:
        """Receive what a peer offers."""
        pid = near.process_of(peer, wire.nbytes)
        if not pid:
            return self.recv(wire)
        return Fetch(self, lambda at: read_memory(pid, at, wire.data_ptr(), wire.nbytes))


def is_worth_reading(nbytes: int) -> bool:
    """Whether a neighbour's memory is read for so many bytes, so that the two must have met."""
    return nbytes >= _READ_NBYTES


class Offer:
    """Memory that a neighbour reads: done when it has. It stays where it is until then."""

    def __init__(self, line: Line, address: int, memory: object) -> None:
        # Sent there, and sent back by whoever has read: it needs no second one.
        self._place = _word(address)
        reply = replace(line, tag=line.tag + REPLY)
        self._works = line.send(self._place), reply.recv(self._place)
        self._memory = memory

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class Fetch:
    """A neighbour's memory that I read: `read` gets its address, and says whether it could."""

    def __init__(self, line: Line, read: Callable[[int], bool]) -> None:
        self._line = line
        self._read = read
        self._place = _word()
        self._told = line.recv(self._place)

    def wait(self) -> None:
        self._told.wait()
        if not self._read(int(self._place.item())):
            raise RuntimeError("its memory can be read no more")
        reply = replace(self._line, tag=self._line.tag + REPLY)
        reply.send(self._place).wait()


def _word(number: int = 0) -> torch.Tensor:
    """A message of one number; unlike `torch.tensor`, without other tensors on the way."""
    return torch.frombuffer(array("q", [number]), dtype=torch.int64)


def _readable(pid: int, address: int, word: int) -> int:
    """The process, if the word is there; else 0."""
    room = torch.zeros(1, dtype=torch.int64)
    found = read_memory(pid, address, room.data_ptr(), 8) and int(room.item()) == word
    return pid if found else 0


_known: weakref.WeakKeyDictionary[Messenger, Neighbours] = weakref.WeakKeyDictionary()


def neighbours_of(group: RankGroup) -> Neighbours:
    """What is known so far in this group; forgotten with it."""
    if group.messenger is None:
        return Neighbours()
    return _known.setdefault(group.messenger, Neighbours())
