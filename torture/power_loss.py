"""Is an acknowledged save still there after a real loss of power?

A file system of its own (ext4 in a file, mounted as a loop) is shut down without its log being
written, at random moments of saves and right after a save has returned; then it is mounted again,
as after a reboot, and looked at.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import shardkeep as sk
from shardkeep.errors import ShardkeepError
from torture.campaign import Say, Scale, Tally, replay
from torture.crash_replay import find_checkpoint, find_newest_step, state_of

_CYCLES = {"short": 12, "long": 1_000}
_IMAGE_NBYTES = 64 * 2**20
_SHUTDOWN = 0x8004587D
_WITHOUT_LOG = 2
_SAVE_SECONDS = 0.03


@dataclass(frozen=True)
class Cycle:
    """How power goes in one cycle."""

    kind: str
    """`overwrite` one path, or `steps` of a run."""
    at_once: bool
    """Right after a save has returned; else at a random moment."""
    saves: int
    seconds: float
    recycle: bool
    """Whether a run writes files of removed steps again."""

    @classmethod
    def draw(cls, seed: int, number: int) -> Cycle:
        dice = random.Random(f"{seed}/{number}")
        return cls(
            dice.choice(("overwrite", "steps")),
            dice.random() < 0.4,
            dice.randint(1, 3),
            dice.uniform(0, 4 * _SAVE_SECONDS),
            dice.random() < 0.5,
        )


class PowerLoss:
    """The campaign. `durable=False` leaves out every fsync, which it must find out."""

    name = "power-loss"
    promise = "What was acknowledged is there after a real loss of power; what is there is whole."

    def __init__(self, *, durable: bool = True) -> None:
        self._durable = durable

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        if why := cannot_run():
            tally.skipped = why
            return tally
        acknowledged = 0
        with disk() as (image, place):
            for number in range(_CYCLES[scale]) if case is None else [int(case)]:
                cycle = Cycle.draw(seed, number)
                before = {kind: find(place, kind) for kind in ("overwrite", "steps")}
                acked = self._lose_power(place, cycle, before[cycle.kind])
                remounted(image, place)
                tally.cases += 1
                acknowledged += acked > before[cycle.kind]
                wrong = _judge(place, cycle.kind, acked)
                if wrong:
                    tally.violations.append(f"{wrong}  {replay(self.name, seed, str(number))}")
                    _empty(place)
                if tally.cases % 100 == 0:
                    say(f"{tally.cases} cycles, {len(tally.violations)} violations")
        tally.facts["cycles with an acknowledged save"] = acknowledged
        return tally

    def _lose_power(self, place: Path, cycle: Cycle, version: int) -> int:
        """Save in another process until power is gone; the last version that it acknowledged."""
        board = mmap.mmap(-1, 16)
        board[:] = struct.pack("qq", version, 0)
        child = os.fork()
        if child == 0:
            self._save_for_ever(place, cycle, board)
        if not cycle.at_once:
            while not struct.unpack("qq", board)[1]:
                time.sleep(0.001)
            time.sleep(cycle.seconds)
            shut_down(place)
        else:
            os.waitpid(child, 0)
            child = 0
        acked = struct.unpack("qq", board)[0]
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return acked

    def _save_for_ever(self, place: Path, cycle: Cycle, board: mmap.mmap) -> None:
        # That removing old steps fails when power is gone is not worth a word.
        logging.disable()
        version, saves = struct.unpack("qq", board)[0], 0
        save = self._saver(place, cycle)
        try:
            while True:
                board[8:] = struct.pack("q", 1)
                version, saves = version + 1, saves + 1
                save(version)
                board[:8] = struct.pack("q", version)
                if cycle.at_once and saves == cycle.saves:
                    shut_down(place)
                    break
        finally:
            os._exit(0)

    def _saver(self, place: Path, cycle: Cycle) -> Callable[[int], object]:
        if cycle.kind == "overwrite":
            return lambda version: sk.save(
                state_of(version), place / "c", overwrite=True, durable=self._durable
            )
        run = sk.Checkpointer(
            place / "run", keep_last=2, durable=self._durable, recycle=cycle.recycle
        )
        return lambda version: run.save(version, state_of(version))


def find(place: Path, kind: str) -> int:
    """The version that is there."""
    return find_checkpoint(place) if kind == "overwrite" else find_newest_step(place)


def _judge(place: Path, kind: str, acked: int) -> str | None:
    try:
        version = find(place, kind)
    except (ShardkeepError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    if version not in (acked, acked + 1):
        return f"version {version} is there, after {acked} was acknowledged"
    return None


def shut_down(place: Path) -> None:
    """The file system stops at once; what it has not written is lost."""
    fd = os.open(place, os.O_RDONLY)
    fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _WITHOUT_LOG))
    os.close(fd)


def cannot_run() -> str:
    """Why file systems cannot be mounted here; empty if they can."""
    if os.geteuid() != 0:
        return "it takes root to mount a file system"
    if shutil.which("mkfs.ext4") is None:
        return "mkfs.ext4 (e2fsprogs) is not installed"
    try:
        with disk():
            return ""
    except subprocess.CalledProcessError as error:
        return f"loop mounts are not allowed here ({error.stderr.decode().strip()})"


@contextmanager
def disk() -> Generator[tuple[Path, Path]]:
    """An ext4 file system of its own: its image, and where it is mounted."""
    home = Path(tempfile.mkdtemp(prefix="shardkeep-disk-"))
    image, place = home / "image", home / "mounted"
    try:
        with image.open("wb") as file:
            file.truncate(_IMAGE_NBYTES)
        place.mkdir()
        # Blocks as on a disk of usual size: some libraries count on them.
        _run("mkfs.ext4", "-q", "-F", "-b", "4096", str(image))
        _mount(image, place)
        try:
            yield image, place
        finally:
            _umount(place)
    finally:
        shutil.rmtree(home)


def remounted(image: Path, place: Path) -> None:
    """Mount it again, as after a reboot."""
    _umount(place)
    _mount(image, place)


def _mount(image: Path, place: Path) -> None:
    _run("mount", "-o", "loop", str(image), str(place))


def _umount(place: Path) -> None:
    for _ in range(50):
        try:
            return _run("umount", str(place))
        except subprocess.CalledProcessError:
            # Whoever was killed may still be on its way out.
            time.sleep(0.02)
    return _run("umount", str(place))


def _empty(place: Path) -> None:
    for name in ("c", "run"):
        shutil.rmtree(place / name, ignore_errors=True)
    # Else the next loss of power brings it back.
    fd = os.open(place, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
