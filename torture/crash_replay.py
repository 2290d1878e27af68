"""Does a folder open as the old or the new checkpoint, whatever a loss of power left of a save?

Every operation of a save is recorded. For every prefix of the record, the disk is put together as
a file system may leave it there, and looked at: what is there must be complete, and new once the
save was acknowledged.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

import shardkeep as sk
from shardkeep.errors import NotFoundError, ShardkeepError, StorageError
from shardkeep.state.keeping import keep_state
from shardkeep.storage import LocalStorage
from shardkeep.storage.shelf import LocalShelf
from shardkeep.transfer.council import StoreCouncil
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.save import SaveOptions, Timings, run_save
from shardkeep.transfer.steps import read_steps
from torture.campaign import Say, Scale, Tally, replay
from torture.crashes import Disk, Weather, crash, weathers
from torture.file_log import Ack, Cut, Name, Operation, Recorder, Sync

MEMORY = "/dev/shm"
_STATES = {"short": 2_000, "long": 500_000}


def state_of(version: int) -> dict[str, Any]:
    """A state that only this version has."""
    big = torch.arange(3000, dtype=torch.float32) + 10_000 * version
    return {"big": big, "small": torch.full((5,), version), "version": version}


@dataclass(frozen=True)
class Scenario:
    """What is done, and what may be found after a crash in its course."""

    name: str
    act: Callable[[Path, Recorder], None]
    find: Callable[[Path], int]
    """The version that is found, 0 for none; raises if what is there is not complete."""


@contextmanager
def recorded(base: Path) -> Generator[Recorder]:
    """Every local storage made meanwhile records what it does."""
    recorder = Recorder(str(base))
    with ExitStack() as stack:
        for module in ("local", "shelf"):
            stack.enter_context(patch(f"shardkeep.storage.{module}.FileCalls", lambda: recorder))
        yield recorder


def _fresh(base: Path, recorder: Recorder) -> None:
    sk.save(state_of(1), base / "c")
    recorder.ack(1)


def _overwrite(base: Path, recorder: Recorder) -> None:
    _fresh(base, recorder)
    for version in (2, 3):
        sk.save(state_of(version), base / "c", overwrite=True)
        recorder.ack(version)


def _asynchronous(base: Path, recorder: Recorder) -> None:
    for version in (1, 2):
        sk.save_async(state_of(version), base / "c", overwrite=True).result()
        recorder.ack(version)


def _prune(base: Path, recorder: Recorder) -> None:
    """A save that fails at its commit leaves files; prune takes them; another save follows."""
    _fresh(base, recorder)
    with (
        patch.object(Recorder, "rename", side_effect=OSError(5, "planted")),
        patch.object(Recorder, "unlink", side_effect=OSError(5, "planted")),
    ):
        try:
            sk.save(state_of(9), base / "c", overwrite=True)
        except StorageError:
            pass
        else:
            raise AssertionError("the planted failure did not show")
    if not sk.prune(base / "c").names:
        raise AssertionError("nothing was left behind")
    sk.save(state_of(2), base / "c", overwrite=True)
    recorder.ack(2)


def _ranks(base: Path, recorder: Recorder) -> None:
    """Three ranks write one checkpoint, over and over."""
    for version in (1, 2):
        save_by_threads(state_of(version), base / "c", ranks=3, topic=str(version))
        recorder.ack(version)


def save_by_threads(state: Any, path: Path, *, ranks: int, topic: str) -> None:
    """Save a state that every rank has, ranks being threads that share a Store."""
    store: Any = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    meter = Meter("saving", None, show=False)

    def act(rank: int) -> None:
        council = StoreCouncil(store, range(ranks), rank, topic=topic, timeout=30.0)
        with LocalStorage(path, create=True) as storage:
            options = SaveOptions(True, 1, "none", {}, meter)
            run_save(lambda: (keep_state(state), storage), council, options, Timings())

    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(act, range(ranks)))


def _steps(base: Path, recorder: Recorder) -> None:
    """Two steps in a row and a third, of which the newest stays."""
    with sk.Checkpointer(base / "run", keep_last=1) as checkpointer:
        for version in (1, 2, 3):
            checkpointer.save(version, state_of(version))
            recorder.ack(version)


def _recycle(base: Path, recorder: Recorder) -> None:
    """Steps of which the newest stays, in files of the one before; the sizes differ."""
    checkpointer = sk.Checkpointer(base / "run", keep_last=1, recycle=True)
    for version in (1, 2, 3, 4):
        checkpointer.save(version, {**state_of(version), "more": torch.zeros(400 * (version % 3))})
        recorder.ack(version)
    checkpointer.close()
    if not any(isinstance(one, Cut) for one in recorder.log):
        raise AssertionError("no file was written again")


def find_checkpoint(base: Path) -> int:
    """The version at `base/c`, read whole and compared."""
    try:
        return _version_at(base / "c")
    except NotFoundError:
        return 0


def find_newest_step(base: Path) -> int:
    """The newest step that is listed as committed; every one that is must be whole."""
    shelf = LocalShelf(base / "run")
    steps = [one for one in read_steps(shelf) if one.condition != "half-written"]
    versions = [_version_at(shelf.path(one.name)) for one in steps]
    if versions != [one.step for one in steps]:
        raise AssertionError(f"steps {[one.step for one in steps]} hold versions {versions}")
    return max(versions, default=0)


def find_after_going_on(base: Path) -> int:
    """The newest step; a run that goes on in the files that are left spoils none of its steps."""
    version = find_newest_step(base)
    with sk.Checkpointer(base / "run", recycle=True) as checkpointer:
        for later in (5, 6):
            checkpointer.save(later, state_of(later))
        if find_newest_step(base) != 6:
            raise AssertionError("what was saved later is not there")
    return version


def _version_at(path: Path) -> int:
    with sk.open(path) as checkpoint:
        report = checkpoint.verify()
        if not report:
            raise AssertionError(f"damaged: {report.problems[0]}")
        version = int(checkpoint["small"].numpy()[0])
        wanted = state_of(version)
        for key in ("big", "small"):
            if not np.array_equal(checkpoint[key].numpy(), wanted[key].numpy()):
                raise AssertionError(f"{key!r} is not of version {version}")
        checkpoint.report()
    return version


SCENARIOS = (
    Scenario("fresh", _fresh, find_checkpoint),
    Scenario("overwrite", _overwrite, find_checkpoint),
    Scenario("async", _asynchronous, find_checkpoint),
    Scenario("prune", _prune, find_checkpoint),
    Scenario("ranks", _ranks, find_checkpoint),
    Scenario("steps", _steps, find_newest_step),
    Scenario("recycle", _recycle, find_after_going_on),
)


@dataclass(frozen=True)
class Record:
    """What a scenario asked of the file system."""

    log: Sequence[Operation]
    folders: set[int]
    root: int


def record(scenario: Scenario) -> Record:
    """Run a scenario for real and write down what it does."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as base, recorded(Path(base)) as recorder:
        scenario.act(Path(base), recorder)
    return Record(recorder.log, recorder.folders, recorder.root)


Mutation = Callable[[Sequence[Operation], set[int]], list[Operation]]


def without_file_syncs(log: Sequence[Operation], folders: set[int]) -> list[Operation]:
    """As if no file was ever synced."""
    return _without(log, lambda one: isinstance(one, Sync) and one.object not in folders)


def without_folder_syncs(log: Sequence[Operation], folders: set[int]) -> list[Operation]:
    """As if no folder was ever synced."""
    return _without(log, lambda one: isinstance(one, Sync) and one.object in folders)


def committed_early(log: Sequence[Operation], folders: set[int]) -> list[Operation]:
    """As if the manifest came to its place before the data files were synced."""
    late = [one for one in log if isinstance(one, Name) and one.name == "manifest.json"]
    moved = list(log)
    for one in late:
        at = moved.index(one)
        del moved[at]
        before = max((i for i in range(at) if isinstance(moved[i], Ack)), default=-1)
        moved.insert(before + 1, one)
    return moved


def recycled_early(log: Sequence[Operation], folders: set[int]) -> list[Operation]:
    """As if files were written again before the step that they were of was renamed away."""
    moved = list(log)
    for one in [one for one in log if isinstance(one, Name) and one.name.startswith(".removed-")]:
        at = moved.index(one)
        cuts = (i for i in range(at, len(moved)) if isinstance(moved[i], Cut))
        moved.insert(next(cuts, at), one)
        del moved[at]
    return moved


def _without(log: Sequence[Operation], goes: Callable[[Operation], bool]) -> list[Operation]:
    # Numbers of operations must stay what they are: what goes becomes a sync of nothing.
    return [Sync(0, 0) if goes(one) else one for one in log]


class CrashReplay:
    """The campaign."""

    name = "crash-replay"
    promise = "After a loss of power the folder opens as old or new, and new once acknowledged."

    def __init__(self, mutate: Mutation | None = None) -> None:
        self._mutate = mutate

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        distinct = 0
        for scenario in SCENARIOS:
            if case is None or case.split(":")[0] == scenario.name:
                distinct += self._replay(scenario, scale, seed, case, tally)
                say(f"{scenario.name}: {tally.cases} states, {len(tally.violations)} violations")
        tally.facts["distinct states"] = distinct
        return tally

    def _replay(
        self, scenario: Scenario, scale: Scale, seed: int, case: str | None, tally: Tally
    ) -> int:
        found = record(scenario)
        log = found.log if self._mutate is None else self._mutate(found.log, found.folders)
        variants = -(-_STATES[scale] // (len(SCENARIOS) * (len(log) + 1))) + 1
        seen: dict[Any, str | None] = {}
        for prefix in range(len(log) + 1):
            acked = max((one.version for one in log[:prefix] if isinstance(one, Ack)), default=0)
            dice = random.Random(f"{seed}/{scenario.name}/{prefix}")
            for number, weather in enumerate(weathers(dice, variants)):
                here = f"{scenario.name}:{prefix}:{number}"
                disk = crash(log[:prefix], found.folders, found.root, weather, dice)
                if case not in (None, here):
                    continue
                tally.cases += 1
                wrong = _judge(scenario, disk, acked, seen)
                if wrong is not None:
                    told = f"{_told(weather)}: {wrong}  {replay(self.name, seed, here)}"
                    tally.violations.append(told)
        return len(seen)


def _judge(scenario: Scenario, disk: Disk, acked: int, seen: dict[Any, str | None]) -> str | None:
    """What is wrong with a disk; None if nothing is. The same disk is looked at once."""
    key = acked, disk.key
    if key not in seen:
        seen[key] = _look(scenario, disk, acked)
    return seen[key]


def _look(scenario: Scenario, disk: Disk, acked: int) -> str | None:
    base = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        for folder in disk.folders:
            (base / folder).mkdir(parents=True)
        for name, content in disk.files.items():
            if (other := disk.links.get(name)) is not None:
                (base / name).hardlink_to(base / other)
            else:
                (base / name).write_bytes(content)
        version = scenario.find(base)
    except (ShardkeepError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(base)
    if version not in (acked, acked + 1):
        return f"version {version} is there, after {acked} was acknowledged"
    return None


def _told(weather: Weather) -> str:
    return f"names {weather.names}, data {weather.data} by {weather.sector} bytes"
