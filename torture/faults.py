"""What does a save or load do when the disk is full, or answers with an error?

Nothing is committed after a failed fsync, what was there stays whole, the error says what happened
where, and prune removes what is left. Three ways to ask: a disk with too little room, by every few
percent of what is needed; calls that fail one after the other, in one process; and calls of one
of four processes, by strace, where all ranks must raise.
"""

from __future__ import annotations

import errno
import random
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import shardkeep as sk
from shardkeep.errors import ShardkeepError, StorageError
from shardkeep.storage import LocalStorage, OutcomeUnknownError
from tests.storage.faulty_calls import FaultyCalls
from torture.attempts import PATIENCE, SIZE, Attempt, Kind
from torture.campaign import Say, Scale, Tally, replay
from torture.processes import MEMORY, serving, warm
from torture.small_disks import SmallDisk, cannot_mount, small_disk
from torture.syscalls import Case as Call
from torture.tracing import CALLS, cannot_trace, count_calls, only
from torture.versions import prune_all, save_version, state_of, version_of

_ITEMS = 16 * 1024
_FEW_ITEMS = 512
_PERCENT = {"short": 20, "long": 2}
_TIMEOUT = 30.0
_SHORT_CALLS = 60
_SHORT_TRACED = 3
_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
_FULL = re.compile(r"no space left, \d+ bytes are free")
# A failed close of a file that was only read means nothing; the space is asked for after an error.
_UNIMPORTANT = ("close", "fstatvfs")


class Faults:
    """The campaign."""

    name = "faults"
    promise = "A full disk or a failed call never costs the old checkpoint, and the error says why."

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        warm()
        parts: dict[str, Callable[[Scale, int, str | None], Iterator[tuple[str, str | None]]]] = {
            "full": full_disks,
            "save": failing_saves,
            "load": failing_loads,
            "traced": failing_processes,
        }
        for part, ask in parts.items():
            if case is not None and case.split(":")[0] != part:
                continue
            before = tally.cases
            try:
                for name, wrong in ask(scale, seed, case):
                    tally.cases += 1
                    if wrong:
                        here = replay(self.name, seed, name)
                        tally.violations.append(f"{name}: {wrong}  {here}")
            except CannotAskError as error:
                tally.facts[f"{part}: not asked"] = str(error)
            tally.facts[part] = tally.cases - before
            say(f"{part}: {tally.cases - before} cases, {len(tally.violations)} violations")
        return tally


class CannotAskError(Exception):
    """This machine does not allow it."""


def _wanted(cases: Sequence[str], case: str | None, count: int | None, seed: int) -> Sequence[str]:
    """The one that is asked for, some by chance, or all."""
    if case is not None:
        return [one for one in cases if one == case]
    if count is None or count >= len(cases):
        return cases
    return random.Random(seed).sample(list(cases), count)


# A full disk


def full_disks(scale: Scale, seed: int, case: str | None) -> Iterator[tuple[str, str | None]]:
    """A save by one process and by four, with a share of the room that it needs."""
    if why := cannot_mount():
        raise CannotAskError(why)
    shares = range(0, 121, _PERCENT[scale])
    cases = [f"full:{ranks}:{share}" for ranks in (1, SIZE) for share in shares]
    with small_disk() as disk, serving() as port:
        need = {ranks: _need(disk, ranks, port) for ranks in (1, SIZE)}
        for name in _wanted(cases, case, None, seed):
            _, ranks, share = name.split(":")
            yield name, _full(disk, int(ranks), int(share), need[int(ranks)], port)
            disk.resize()
            for path in disk.place.iterdir():
                shutil.rmtree(path)


def _need(disk: SmallDisk, ranks: int, port: int) -> int:
    """How much room a save takes beside the old one."""
    path = disk.place / f"need-{ranks}"
    before = disk.used()
    if ranks == 1:
        save_version(1, path, None, size=1, items=_ITEMS)
    else:
        attempt = _attempt(path, port, is_overwrite=False)
        attempt.start()
        attempt.wait()
        wrong = attempt.judge()
        if wrong or not attempt.acks:
            raise AssertionError(f"a save with all the room it wants fails: {wrong}")
        attempt.close()
    need = disk.used() - before
    shutil.rmtree(path)
    return need


def _attempt(path: Path, port: int, *, is_overwrite: bool) -> Attempt:
    kind = Kind(is_overwrite, False, SIZE - 1)
    return Attempt(kind, path, port, timeout=_TIMEOUT, items=_ITEMS)


def _full(disk: SmallDisk, ranks: int, share: int, need: int, port: int) -> str | None:
    path = disk.place / f"c-{ranks}-{share}"
    if ranks == 1:
        return _full_alone(disk, path, share, need)
    attempt = _attempt(path, port, is_overwrite=True)
    attempt.prepare()
    disk.resize(disk.used() + need * share // 100)
    attempt.start()
    attempt.wait()
    wrong = attempt.judge()
    disk.resize()
    wrong = wrong or _wrong_of_ranks(attempt, share) or attempt.save_again()
    attempt.close()
    return wrong


def _wrong_of_ranks(attempt: Attempt, share: int) -> str | None:
    said = [attempt.said(rank) for rank in range(SIZE)]
    failed = [one for one in said if one and one["kind"]]
    if not failed:
        return None if share >= 90 else f"all were saved with {share} % of the room"
    if len(failed) < SIZE:
        return f"only {len(failed)} of {SIZE} ranks raised"
    for one in failed:
        if wrong := _wrong_text(one["text"], attempt.path):
            return wrong
    return None


def _wrong_text(text: str, path: Path) -> str | None:
    if not _FULL.search(text):
        return f"the error does not speak of space: {text}".replace("\n", " ")
    if str(path) not in text:
        return f"the error does not name the path: {text}".replace("\n", " ")
    if "writing" in text and not re.search(r"writing \d+ bytes at offset \d+", text):
        return f"the error does not tell the bytes: {text}".replace("\n", " ")
    return None


def _full_alone(disk: SmallDisk, path: Path, share: int, need: int) -> str | None:
    save_version(1, path, None, size=1, items=_ITEMS)
    disk.resize(disk.used() + need * share // 100)
    error = _error_of(lambda: save_version(2, path, None, size=1, durable=True, items=_ITEMS))
    found = version_of(path)
    if error is None:
        if found != 2 or share < 90:
            return f"it was saved with {share} % of the room, and version {found} is there"
    elif found != 1:
        return f"version {found} is there after {error}"
    elif not isinstance(error, StorageError) or error.errno != errno.ENOSPC:
        return f"{type(error).__name__} instead of a StorageError: {error}"
    elif wrong := _wrong_text(str(error), path):
        return wrong
    prune_all(path)
    disk.resize()
    save_version(3, path, None, size=1, items=_ITEMS)
    return None if version_of(path) == 3 else "the next save is not there"


def _error_of(act: Callable[[], object]) -> Exception | None:
    try:
        act()
    except Exception as error:
        return error
    return None


# Calls that fail, in one process


def failing_saves(scale: Scale, seed: int, case: str | None) -> Iterator[tuple[str, str | None]]:
    """Every call of a save fails once, or has its reply lost."""
    base = Path(tempfile.mkdtemp(prefix="shardkeep-faults-", dir=MEMORY))
    try:
        counts = _calls_of_a_save(base / "counted")
        cases = [
            f"save:{kind}:{number}:{errno.errorcode[error]}:{how}"
            for kind in sorted(counts)
            for number in range(1, counts[kind] + 1)
            for error in _ERRORS
            for how in ("refused", "reply-lost")
        ]
        count = None if scale == "long" else _SHORT_CALLS
        for at, name in enumerate(_wanted(cases, case, count, seed)):
            yield name, _failing_save(base / str(at), name)
    finally:
        shutil.rmtree(base)


def _calls_of_a_save(path: Path) -> Counter[str]:
    calls = FaultyCalls()
    save_version(1, path, None, size=1, items=_FEW_ITEMS)
    _save_with(calls, path)
    return Counter({kind: n for kind, n in calls.counts.items() if kind not in _UNIMPORTANT})


def _save_with(calls: FaultyCalls, path: Path) -> None:
    with LocalStorage(path, create=True, calls=calls) as storage:
        sk.save(
            state_of(2, 0, _FEW_ITEMS),
            storage,
            overwrite=True,
            threads=1,
            metadata={"version": 2, "size": 1, "items": _FEW_ITEMS},
        )


def _failing_save(path: Path, name: str) -> str | None:
    _, kind, number, error_name, how = name.split(":")
    save_version(1, path, None, size=1, items=_FEW_ITEMS)
    calls = FaultyCalls()
    lost = how == "reply-lost" and kind != "open"
    calls.fail(kind, getattr(errno, error_name), nth=int(number), done=lost)
    error = _error_of(lambda: _save_with(calls, path))
    try:
        return _wrong_after(path, kind, int(number), calls, error)
    except (ShardkeepError, AssertionError) as failure:
        return f"{type(failure).__name__}: {failure}".replace("\n", " ")


def _wrong_after(
    path: Path, kind: str, number: int, calls: FaultyCalls, error: Exception | None
) -> str | None:
    found = version_of(path)
    if error is None and found != 2:
        return f"it was told to be saved, and version {found} is there"
    if error is not None and not isinstance(error, ShardkeepError):
        return f"{type(error).__name__} is no error of ours: {error}"
    if error is not None and found != 1 and not isinstance(error, OutcomeUnknownError):
        return f"version {found} is there after {error}"
    # Of a new folder, the one above it is synced.
    if isinstance(error, StorageError) and str(path.parent) not in str(error):
        return f"the error does not name the path: {error}"
    if kind == "fsync" and (wrong := _wrong_after_sync(number, calls, error, found)):
        return wrong
    prune_all(path)
    save_version(3, path, None, size=1, items=_FEW_ITEMS)
    return None if version_of(path) == 3 else "the next save is not there"


def _wrong_after_sync(
    number: int, calls: FaultyCalls, error: Exception | None, found: int
) -> str | None:
    """Nothing may be committed after a sync that failed; nor told, if it was the commit's own."""
    at = [i for i, call in enumerate(calls.log) if call == "fsync"][number - 1]
    renames = [i for i, call in enumerate(calls.log) if call.endswith(" manifest.json")]
    committed = [i for i in renames if calls.log[i].startswith("rename ")]
    if not committed or at < committed[0]:
        return f"version {found} was committed after a failed fsync" if found != 1 else None
    syncs_between = calls.log[committed[0] : at].count("fsync")
    if syncs_between == 0 and error is None:
        return "the commit's own fsync failed, and nobody was told"
    return None


def failing_loads(scale: Scale, seed: int, case: str | None) -> Iterator[tuple[str, str | None]]:
    """Every call of a load fails once."""
    with tempfile.TemporaryDirectory(prefix="shardkeep-faults-", dir=MEMORY) as folder:
        path = Path(folder) / "c"
        save_version(1, path, None, size=1, items=_FEW_ITEMS)
        calls = FaultyCalls()
        _load_with(calls, path)
        cases = [
            f"load:{kind}:{number}"
            for kind in sorted(calls.counts.keys() - set(_UNIMPORTANT))
            for number in range(1, calls.counts[kind] + 1)
        ]
        for name in _wanted(cases, case, None, seed):
            yield name, _failing_load(path, name)


def _load_with(calls: FaultyCalls, path: Path) -> None:
    with LocalStorage(path, calls=calls) as storage:
        state = sk.load(storage, keys=["own*", "common", "small*"])
        wanted = state_of(1, 0, _FEW_ITEMS)
        for found, right in zip(state["own"].values(), wanted["own"].values(), strict=True):
            assert bool((found == right).all()), "wrong values were loaded"
        assert bool((state["common"] == wanted["common"]).all()), "wrong values were loaded"


def _failing_load(path: Path, name: str) -> str | None:
    _, kind, number = name.split(":")
    calls = FaultyCalls()
    calls.fail(kind, errno.EIO, nth=int(number))
    error = _error_of(lambda: _load_with(calls, path))
    if error is None:
        return f"a failed {kind} was not noticed"
    if not isinstance(error, StorageError):
        return f"{type(error).__name__} instead of a StorageError: {error}"
    if str(path) not in str(error):
        return f"the error does not name the path: {error}"
    if kind.startswith("pread") and not re.search(r"reading \d+ bytes at offset \d+", str(error)):
        return f"the error does not tell the bytes: {error}"
    return None


# Calls of one of four processes


def failing_processes(
    scale: Scale, seed: int, case: str | None
) -> Iterator[tuple[str, str | None]]:
    """A real call of one rank fails by strace; all ranks must raise, or none."""
    if why := cannot_trace():
        raise CannotAskError(why)
    base = Path(tempfile.mkdtemp(prefix="shardkeep-faults-", dir=MEMORY))
    with serving() as port, ExitStack() as stack:
        stack.callback(shutil.rmtree, base)
        kinds = [Kind(True, False, victim) for victim in (0, SIZE - 1)]
        cases = [f"traced:{one.name}" for kind in kinds for one in _calls_of(kind, base, port)]
        count = None if scale == "long" else _SHORT_TRACED
        for at, name in enumerate(_wanted(cases, case, count, seed)):
            yield name, _traced(base / f"case-{at}" / "c", name, port, cases)


def _calls_of(kind: Kind, base: Path, port: int) -> Iterator[Call]:
    log = base / "log"
    attempt = Attempt(
        kind, base / f"count-{kind.victim}" / "c", port, timeout=PATIENCE, items=_FEW_ITEMS
    )
    attempt.prepare()
    attempt.start(["-f", "-o", str(log), only(CALLS)])
    attempt.wait()
    if wrong := attempt.judge():
        raise AssertionError(f"{kind.name} does not go through by itself: {wrong}")
    first, others = count_calls(log, attempt.pids[kind.victim])
    attempt.close()
    of_file = {call: others[call] for call in ("pwritev", "pwritev2", "fsync")}
    for thread, counts in (("first", first), ("file", of_file)):
        for call in CALLS:
            for number in range(1, counts.get(call, 0) + 1):
                yield Call(kind, thread, call, number)


def _traced(path: Path, name: str, port: int, cases: Sequence[str]) -> str | None:
    _, _, _, victim, thread, call, number = name.split(":")
    kind = Kind(True, False, int(victim))
    attempt = Attempt(kind, path, port, timeout=_TIMEOUT, items=_FEW_ITEMS)
    attempt.prepare()
    attempt.start(Call(kind, thread, call, int(number)).options(path, "error=EIO"))
    attempt.wait()
    is_last = f"{name.rpartition(':')[0]}:{int(number) + 1}" not in cases
    wrong = attempt.judge() or _wrong_traced(attempt, call, is_last) or attempt.save_again()
    attempt.close()
    return wrong


def _wrong_traced(attempt: Attempt, call: str, is_last: bool) -> str | None:
    acks, victim = attempt.acks, attempt.kind.victim
    if acks and len(acks) < SIZE:
        return f"only ranks {acks} were told that it is saved"
    # The chair's last sync is that of the report, on which nothing depends.
    if acks and call == "fsync" and not (victim == 0 and is_last):
        return "it was committed after a failed fsync"
    if acks:
        return None
    for rank in range(SIZE):
        text = (attempt.said(rank) or {}).get("text", "")
        if "I/O error" not in text or str(attempt.path.parent) not in text:
            return f"rank {rank} does not tell what failed where: {text}".replace("\n", " ")
        if rank != victim and not re.search(rf"rank {victim}\b", text):
            return f"rank {rank} does not name rank {victim}: {text}".replace("\n", " ")
    return None
