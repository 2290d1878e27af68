"""`shardkeep bench`: how fast is this place?

A state of random numbers is saved and loaded, in turn with plain writes and reads of as many
bytes to as many files. Files leave the page cache before they are read, as far as it lets them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardkeep.cli.printing import print_json, print_out
from shardkeep.errors import InvalidError, StorageError
from shardkeep.view.words import parse_size, size_text

_THREADS = 2
_STEP_NBYTES = 8 * 2**20
_TENSOR_NBYTES = 64 * 2**20


def bench(
    path: Path = Path(), /, *, size: str = "1GiB", repeat: int = 3, json: bool = False
) -> int:
    """Measure how fast a place saves and loads, beside plain writes and reads.

    Takes twice the size in memory, and three times in the place, for a while.

    Examples:

      shardkeep bench /mnt/checkpoints
      shardkeep bench /mnt/checkpoints --size 8GiB --repeat 5

    Parameters
    ----------
    path
        A folder on the disk in question; this folder if none is given.
    size
        Of the state, such as 1GiB.
    repeat
        How often; the median counts.
    json
        Print JSON, for programs.
    """
    nbytes = parse_size(size)
    if repeat < 1:
        raise InvalidError(f"--repeat is at least 1, got {repeat}")
    with _folder(path, nbytes) as folder:
        seconds = _measure(folder, nbytes, repeat)
    if json:
        return print_json({"path": str(path.absolute()), "nbytes": nbytes, "seconds": seconds})
    _print(path, nbytes, seconds)
    return 0


@contextmanager
def _folder(path: Path, nbytes: int) -> Generator[Path]:
    """A folder of our own, gone afterwards."""
    if not path.is_dir():
        raise InvalidError(f"{path} is no folder; name one on the disk that is to be measured")
    free = shutil.disk_usage(path).free
    if free < 3 * nbytes:
        raise InvalidError(
            f"{path} has {size_text(free)} free; measuring {size_text(nbytes)} takes three times "
            "as much: take a smaller --size"
        )
    try:
        made = Path(tempfile.mkdtemp(prefix=".shardkeep-bench-", dir=path))
    except OSError as error:
        raise StorageError(error.errno, f"making a folder: {error.strerror}", str(path)) from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Place:
    folder: Path
    state: dict[str, Any]
    target: dict[str, Any]

    def save(self) -> None:
        import shardkeep as sk

        sk.save(self.state, self.folder / "saved", overwrite=True, threads=_THREADS)

    def load(self) -> None:
        import shardkeep as sk

        sk.load(self.folder / "saved", into=self.target, threads=_THREADS)

    def write(self) -> None:
        self._each_file(_write_file)
        _sync_folder(self.folder)

    def read(self) -> None:
        self._each_file(_read_file)

    def _each_file(self, act: Callable[[Path, list[Any]], None]) -> None:
        arrays = [tensor.numpy() for tensor in self.state.values()]
        with ThreadPoolExecutor(_THREADS) as pool:
            acts = [
                pool.submit(act, self.folder / f"plain-{number}", arrays[number::_THREADS])
                for number in range(_THREADS)
            ]
            for one in acts:
                one.result()

    def forget(self) -> None:
        """Have the page cache let go of what was written."""
        for file in [*self.folder.glob("plain-*"), *self.folder.glob("saved/*")]:
            fd = os.open(file, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def _write_file(path: Path, arrays: list[Any]) -> None:
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for array in arrays:
            data = memoryview(array).cast("B")
            for at in range(0, len(data), _STEP_NBYTES):
                _write_all(fd, data[at : at + _STEP_NBYTES])
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _read_file(path: Path, arrays: list[Any]) -> None:
    buffer = bytearray(_STEP_NBYTES)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _measure(folder: Path, nbytes: int, repeat: int) -> dict[str, list[float]]:
    """The seconds of each repetition, by act."""
    state = _random_state(nbytes)
    place = _Place(folder, state, {key: tensor.clone() for key, tensor in state.items()})
    found: dict[str, list[float]] = {"save": [], "write": [], "load": [], "read": []}
    acts = {"save": place.save, "write": place.write, "load": place.load, "read": place.read}
    for _ in range(repeat):
        for name, act in acts.items():
            if name in ("load", "read"):
                place.forget()
            start = time.perf_counter()
            act()
            found[name].append(time.perf_counter() - start)
    return found


def _random_state(nbytes: int) -> dict[str, Any]:
    import numpy as np
    from torch import from_numpy  # pyright: ignore[reportUnknownVariableType]

    rng = np.random.default_rng(0)
    sizes = [_TENSOR_NBYTES] * (nbytes // _TENSOR_NBYTES) + [nbytes % _TENSOR_NBYTES]
    arrays = [rng.random(max(1, size // 4), np.float32) for size in sizes if size]
    return {f"t{number}": from_numpy(array) for number, array in enumerate(arrays)}


def _print(path: Path, nbytes: int, seconds: dict[str, list[float]]) -> None:
    from shardkeep.view.table_style import plain_table

    table = plain_table("", "median", "fastest", "speed", "of plain", left=("",))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    rows = (
        ("sk.save", "save", "write"),
        ("plain write and fsync", "write", "write"),
        ("sk.load, every byte checked", "load", "read"),
        ("plain read", "read", "read"),
    )
    for text, name, plain in rows:
        speed = f"{size_text(int(nbytes / medians[name]))}/s"
        share = "" if name == plain else f"{medians[plain] / medians[name]:.0%}"
        fastest = f"{min(seconds[name]):.3f} s"
        table.add_row(text, f"{medians[name]:.3f} s", fastest, speed, share)
    count = len(seconds["save"])
    print_out(f"{size_text(nbytes)} at {path.absolute()}, {count} times, {_THREADS} threads", table)
