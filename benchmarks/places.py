"""Where are checkpoints written, and how does everyone find the place alike?"""

import math
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

BUILD = Path(__file__).parents[1] / "build"
TMPFS = Path("/dev/shm")
_PIECE = bytes(2**24)
_MOST_PASSES = 10
_least_seconds: dict[int, float] = {}


@contextmanager
def folder_on(place: Path) -> Generator[Path]:
    """A fresh folder that is gone afterwards."""
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, prefix="shardkeep-bench-") as folder:
        yield Path(folder)


def level_the_field(nbytes: int) -> None:
    """Nobody pays for what the one before left to be written, or for pages never touched before.

    A virtual machine gives free memory back to its host, at moments of its own; the next to use it
    waits for it. So it is used until that takes as little time as it ever did, twice in a row.
    """
    os.sync()
    before = math.inf
    for _ in range(_MOST_PASSES):
        seconds = _seconds_to_use(nbytes)
        least = _least_seconds[nbytes] = min(seconds, _least_seconds.get(nbytes, math.inf))
        if max(before, seconds) < 1.1 * least:
            return
        before = seconds


def _seconds_to_use(nbytes: int) -> float:
    start = time.perf_counter()
    with tempfile.TemporaryFile(dir=TMPFS) as file:
        for _ in range(2 + nbytes // len(_PIECE)):
            file.write(_PIECE)
    return time.perf_counter() - start


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def evict(path: Path) -> None:
    """Make the next read of these files come from the disk."""
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            # Only clean pages can be dropped.
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
