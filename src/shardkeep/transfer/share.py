"""How does a load fetch each byte once, though many ranks want it?

The ranks come together in the council first, so that nobody waits for one that has failed. Then
bytes move through a process group of gloo that is ours alone, in a thread, while the council is
watched: when one rank gives up, all do. After a failure the group is not used again, since
messages may be under way in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Generic, Literal, TypeVar

import msgspec
import numpy as np
import xxhash

from shardkeep.errors import (
    DeadlineError,
    InvalidError,
    RankFailedError,
    RanksDisagreeError,
    name_ranks,
)
from shardkeep.plan.sharing import (
    Reach,
    SharedRead,
    Stake,
    Window,
    broker_of,
    divide,
    is_worth_sharing,
    is_worth_sharing_near,
)
from shardkeep.ranks import RankGroup, host_key, memory_key, share_bytes, swap_bytes
from shardkeep.storage import CanMap
from shardkeep.transfer.council import Council
from shardkeep.transfer.pump import BrokenOffError, Moved, Pump, WindowActs
from shardkeep.transfer.wire import Wire, wire_of

Share = Literal["auto", "none", "host", "job"]
Scope = Literal["memory", "host", "job"]
"""Of those that can share memory, those of a host, or all ranks each byte is read once."""
Worth = Callable[[Iterable[Stake]], bool] | None
T = TypeVar("T")

_WHAT = "load (share)"
_LOOK_SECONDS = 0.05
_SECONDS_PER_RANK = 0.0002
# So often a rank that finds a connection closed looks for the reason.
_LOOKS = 20
# When connections are closed, a thread that waits in one ends at once.
_LAST_SECONDS = 5.0
_FIRST_TAG = 0x5A4E


def check_share(share: str) -> None:
    """InvalidError unless it is one of the choices."""
    if share not in ("auto", "none", "host", "job"):
        raise InvalidError(f"share is 'auto', 'none', 'host' or 'job', got {share!r}")


class _Arrival(msgspec.Struct, array_like=True):
    """What a rank says as it comes."""

    save_id: str
    host: str
    stake: Stake | None


class _Meeting(msgspec.Struct, array_like=True):
    """What the chair says when all have come."""

    hosts: list[tuple[int, int]]
    """The number of a host, and how many ranks in a row it has. Empty if nothing is shared."""
    is_worth_it: bool


class Sharing:
    """The ranks of one load, who pass on to each other what they read. Use it on all or none."""

    def __init__(
        self,
        council: Council,
        wire: Wire,
        scope: Scope,
        *,
        timeout: float,
        reach: Reach | None = None,
        worth: Worth = None,
    ) -> None:
        """If it is `worth` it, by what all ranks want; without that, in any case."""
        self._council = council
        self._wire = wire
        self._scope: Scope = scope
        self._timeout = timeout
        self._reach = reach or Reach()
        self._worth = worth
        self._others_go_on = False
        self._tag = _FIRST_TAG
        self.nbytes_received = 0

    def begin(self, save_id: str, stake: Stake | None = None) -> bool:
        """Return when all ranks have come, with the same checkpoint; False if they do not share.

        `stake` is what this rank wants of it.
        """
        council, word = self._council, save_id.encode()
        place = memory_key() if self._scope == "memory" else host_key()
        council.report("share", msgspec.msgpack.encode(_Arrival(save_id, place, stake)))
        if council.me == council.chair:
            arrivals = _arrivals(council.collect("share"))
            hosts = _hosts(arrivals)
            stakes = [one.stake for one in arrivals.values() if one.stake is not None]
            is_alone = self._scope == "memory" and len(set(hosts.values())) == len(hosts)
            is_worth_it = self._worth is None or (self._worth(stakes) and not is_alone)
            numbers = groupby(hosts[rank] for rank in council.ranks) if is_worth_it else ()
            rows = [(number, len(list(row))) for number, row in numbers]
            said = _Meeting(rows, is_worth_it)
            council.announce("share", msgspec.msgpack.encode(said), word=word)
        met = msgspec.msgpack.decode(council.hear("share", word=word), type=_Meeting)
        if not met.is_worth_it:
            return False
        host_of = [number for number, count in met.hosts for _ in range(count)]
        mine = host_of[council.ranks.index(council.me)]
        near = [r for r, host in zip(council.ranks, host_of, strict=True) if host == mine]
        self._members = list(council.ranks) if self._scope == "job" else near
        self._group = self._wire.connect(self._members)
        return True

    @property
    def member_count(self) -> int:
        """How many ranks pass windows on to each other; known once it has begun."""
        return len(self._members)

    @property
    def is_of_files(self) -> bool:
        """Whether each rank had better look into files by itself before anything is shared."""
        return self._scope == "memory"

    def exchange(
        self, windows: Sequence[Window], acts: WindowActs, *, threads: int, more: bool
    ) -> Moved:
        """Have every window taken; `more` if another exchange follows on this rank. SPMD."""
        self._tag += 1
        self._last = acts, threads
        act = _Exchange(self._group, self._members, self._reach, self._tag, acts)
        outcome = _Outcome[tuple[Moved, bool]](lambda: act.run(windows, threads=threads, more=more))
        try:
            self._watch(outcome, act)
            moved, self._others_go_on = outcome.result()
        except BaseException as error:
            act.stop.set()
            # Before the others see that the connections are closed: they ask why.
            self._council.fail(_WHAT, error, undone=True)
            self._wire.drop()
            outcome.is_over.wait(_LAST_SECONDS)
            raise
        self.nbytes_received += moved.nbytes_received
        return moved

    def finish(self) -> None:
        """Take part in what other ranks still exchange; they may want what is at hand here."""
        while self._others_go_on:
            acts, threads = self._last
            self.exchange((), acts, threads=threads, more=False)

    def _watch(self, outcome: _Outcome[T], exchange: _Exchange) -> None:
        """Return when it is over; raises if a rank gives up, or if nothing moves any more."""
        pause = max(_LOOK_SECONDS, _SECONDS_PER_RANK * len(self._council.ranks))
        seen, deadline = -1, 0.0
        while not outcome.is_over.wait(pause):
            self._council.look(_WHAT)
            if exchange.finished != seen:
                seen, deadline = exchange.finished, time.monotonic() + self._timeout
            if time.monotonic() > deadline:
                raise self._late(exchange)
        if isinstance(outcome.error, RankFailedError):
            # Somebody is gone, or has given up: then it has said why, or is about to.
            for _ in range(_LOOKS):
                self._council.look(_WHAT)
                time.sleep(pause)

    def _late(self, exchange: _Exchange) -> DeadlineError:
        awaited = exchange.awaited
        who = (
            [awaited] if awaited is not None else [r for r in self._members if r != self._group.me]
        )
        return DeadlineError(
            f"{_WHAT}: nothing came from {name_ranks(who)} for {self._timeout:g} s; it may be dead "
            "or cut off"
        )


class _Outcome(Generic[T]):
    """What comes of an act in a thread of its own."""

    def __init__(self, act: Callable[[], T]) -> None:
        self.is_over = threading.Event()
        self.error: BaseException | None = None
        self._value: list[T] = []
        # A daemon: it may wait within gloo for as long as gloo likes.
        threading.Thread(target=self._run, args=(act,), name="shardkeep-share", daemon=True).start()

    def _run(self, act: Callable[[], T]) -> None:
        try:
            self._value.append(act())
        except BrokenOffError:
            return
        except BaseException as error:
            self.error = error
        finally:
            self.is_over.set()

    def result(self) -> T:
        """What the act returned or raised."""
        if self.error is not None:
            raise self.error
        return self._value[0]


class _Exchange:
    """One exchange, on one rank."""

    def __init__(
        self,
        group: RankGroup,
        members: Sequence[int],
        reach: Reach,
        tag: int,
        acts: WindowActs,
    ) -> None:
        self._group = group
        self._members = members
        self._reach = reach
        self._tag = tag
        self.stop = threading.Event()
        self._pump = Pump(group, acts, stop=self.stop)
        self._is_planned = 0

    @property
    def finished(self) -> int:
        """Grows while something moves."""
        return self._pump.finished + self._is_planned

    @property
    def awaited(self) -> int | None:
        return self._pump.awaited

    def run(self, windows: Sequence[Window], *, threads: int, more: bool) -> tuple[Moved, bool]:
        try:
            digest = xxhash.xxh3_128_digest(_encode(windows))
            said = share_bytes(self._group, digest + bytes([more]))
            digests = {r: s[:-1] for r, s in zip(self._group.ranks, said, strict=True)}
            tasks = self._divide(windows, digests)
        except RuntimeError as error:
            if isinstance(error, RankFailedError):
                raise
            raise RankFailedError(
                {self._group.me: f"the group is broken ({error})"}, _WHAT
            ) from error
        self._is_planned = 1
        moved = self._pump.run(tasks, threads=threads, tag=self._tag)
        return moved, any(one[-1] for one in said)

    def _divide(self, windows: Sequence[Window], digests: dict[int, bytes]) -> list[SharedRead]:
        alike: dict[bytes, list[int]] = {}
        for rank in self._members:
            alike.setdefault(digests[rank], []).append(rank)
        if len(set(digests.values())) == 1:
            return _of(divide({tuple(self._members): windows}, self._reach), self._group.me)
        return self._brokered(windows, alike, digests[self._group.me])

    def _brokered(
        self, windows: Sequence[Window], alike: dict[bytes, list[int]], mine: bytes
    ) -> list[SharedRead]:
        """The same when ranks want different things: each asks the brokers, who answer."""
        group, me = self._group, self._group.me
        asked: dict[int, list[Window]] = {}
        if alike[mine][0] == me:
            for window in windows:
                asked.setdefault(broker_of(window, self._members), []).append(window)
        heard = swap_bytes(group, [_encode(asked.get(rank, ())) for rank in group.ranks])
        same = {ranks[0]: tuple(ranks) for ranks in alike.values()}
        wanted = {
            same[rank]: _decode(data)
            for rank, data in zip(group.ranks, heard, strict=True)
            if data and rank in same
        }
        decided = divide(wanted, self._reach, turn=group.my_index)
        answers: dict[int, list[SharedRead]] = {rank: [] for rank in group.ranks}
        for one in decided:
            answers[one.reader].append(one)
            for rank in one.takers:
                if rank != one.reader:
                    # Who takes need not know who else does.
                    answers[rank].append(one._replace(takers=(rank,)))
        replies = swap_bytes(group, [msgspec.msgpack.encode(answers[r]) for r in group.ranks])
        return sorted(
            one for data in replies for one in msgspec.msgpack.decode(data, type=list[SharedRead])
        )


def _of(shared: Sequence[SharedRead], me: int) -> list[SharedRead]:
    """What one rank has a part in."""
    return [one for one in shared if one.reader == me or me in one.takers]


def _encode(windows: Sequence[Window]) -> bytes:
    return np.array(windows, np.int64).tobytes()


def _decode(data: bytes) -> list[Window]:
    rows = np.frombuffer(data, np.int64).reshape(-1, 4).tolist()
    return [Window(*row) for row in rows]


def _arrivals(notes: Mapping[int, bytes]) -> dict[int, _Arrival]:
    return {rank: msgspec.msgpack.decode(note, type=_Arrival) for rank, note in notes.items()}


def _hosts(arrivals: Mapping[int, _Arrival]) -> dict[int, int]:
    """The number of each rank's host; RanksDisagreeError unless all see the same checkpoint."""
    by_id: dict[str, list[int]] = {}
    for rank, one in arrivals.items():
        by_id.setdefault(one.save_id, []).append(rank)
    if len(by_id) > 1:
        said = "; ".join(f"{name_ranks(ranks)}: {one}" for one, ranks in by_id.items())
        raise RanksDisagreeError(
            f"ranks have opened different saves ({said}): the checkpoint was replaced meanwhile, "
            "or the ranks do not share the storage; load again"
        )
    numbers: dict[str, int] = {}
    return {rank: numbers.setdefault(arrivals[rank].host, len(numbers)) for rank in arrivals}


def sharing_of(
    share: Share, storage: object, council: Council, group: Any, *, timeout: float
) -> Sharing | None:
    """How to share what is read of a storage; None where each rank had better read for itself."""
    if share == "none":
        return None
    wire = wire_of(group, timeout=timeout)
    if wire is None:
        return None
    if share != "auto":
        return Sharing(council, wire, share, timeout=timeout)
    # What can be mapped is in the page cache of each host, which is faster than messages.
    if isinstance(storage, CanMap):
        return Sharing(council, wire, "memory", timeout=timeout, worth=is_worth_sharing_near)
    return Sharing(council, wire, "job", timeout=timeout, worth=is_worth_sharing)
