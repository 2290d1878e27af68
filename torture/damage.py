"""Is every kind of damage found by a load that verifies, and named?

Every bit of every file of a small checkpoint, random bits of a large one; files cut off, extended
and zeroed at every sector, exchanged, taken from an older save, removed.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import shardkeep as sk
from shardkeep.errors import NotFoundError, ShardkeepError
from shardkeep.storage import MemoryStorage
from shardkeep.transfer import planning
from shardkeep.transfer.lazy import Checkpoint
from shardkeep.transfer.opened import open_committed
from torture.campaign import Say, Scale, Tally, replay

SECTOR = 512
_SMALL_NBYTES = 72 * 1024
_NAMED = re.compile(r"\.safetensors|manifest\.json|'[wv]'")
_FLIPS = {"short": 4_000, "long": None}
_LARGE_FLIPS = {"short": 50, "long": 10_000}
_LARGE_NBYTES = {"short": 4 * 2**20, "long": 100 * 2**20}
_BATCH = 2_000


class ByteFiles:
    """A storage whose bytes may be changed."""

    location = "bytes"

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = {name: bytearray(data) for name, data in files.items()}

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        return bytes(self._file(key))

    def size(self, key: str) -> int:
        return len(self._file(key))

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        return bytes(self._file(key)[offset : offset + nbytes])

    def read_into(self, key: str, offset: int, buffers: Sequence[Any]) -> None:
        for buffer in buffers:
            buffer[:] = memoryview(self._file(key))[offset : offset + len(buffer)]
            offset += len(buffer)

    def close(self) -> None:
        """There is nothing to close."""

    def _file(self, key: str) -> bytearray:
        if key not in self.files:
            raise NotFoundError(f"{key!r} is not in {self.location}")
        return self.files[key]


@dataclass(frozen=True)
class Sample:
    """A checkpoint's files, those of a save before it, and what it holds."""

    files: dict[str, bytes]
    older: dict[str, bytes]
    """By the names that took their place."""
    values: dict[str, np.ndarray[Any, Any]]


@cache
def sample(nbytes: int) -> Sample:
    """A checkpoint of two data files, all of them together about `nbytes` large."""
    saves = [_saved(nbytes, version) for version in (1, 2)]
    (old, _), (new, state) = saves
    # The same ranks and numbers, under other ids: what a hand might put in the wrong place.
    older = dict(zip(sorted(new), (old[name] for name in sorted(old)), strict=True))
    return Sample(new, older, {key: value.numpy() for key, value in state.items()})


def _saved(nbytes: int, version: int) -> tuple[dict[str, bytes], dict[str, torch.Tensor]]:
    make = torch.Generator().manual_seed(version)
    room = max(1024, nbytes - 3 * 4096 - 2048) // 2
    state = {
        "w": torch.randint(1, 255, (room,), dtype=torch.uint8, generator=make),
        "v": torch.randint(1, 2**31, (room // 8,), generator=make),
    }
    name = f"torture-damage-{os.getpid()}-{nbytes}-{version}"
    with patch.object(planning, "_MIN_NBYTES_FOR_FILES", 0), MemoryStorage(name) as storage:
        sk.save(state, storage)
        named = [entry for entry in storage.list() if not entry.key.endswith("-report.json")]
        files = {entry.key: storage.read(entry.key, 0, entry.nbytes) for entry in named}
        for entry in storage.list():
            storage.delete(entry.key)
    if len(files) != 3:
        raise AssertionError(f"expected two data files and a manifest, there are {sorted(files)}")
    return files, state


Case = tuple[str, int, int]
"""What is done, to which file, and where: `("flip", 2, 17)`."""


def small_cases(scale: Scale, seed: int, files: Mapping[str, bytes]) -> Iterator[Case]:
    """Every flip, or some; then all the other damages."""
    sizes = [len(files[name]) for name in sorted(files)]
    flips = ((("flip", file, bit)) for file, size in enumerate(sizes) for bit in range(8 * size))
    wanted = _FLIPS[scale]
    if wanted is None:
        yield from flips
    else:
        yield from random.Random(seed).sample(list(flips), wanted)
    for file, size in enumerate(sizes):
        for act in ("truncate", "zero"):
            yield from ((act, file, at) for at in range(0, size, SECTOR))
        yield from (("extend", file, by) for by in (1, SECTOR, 4096))
        yield from (("delete", file, 0), ("replay", file, 0))
        yield from (("swap", file, other) for other in range(file + 1, len(sizes)))


def damaged(found: Sample, case: Case) -> dict[str, bytes] | None:
    """The files after the damage; None if it changes nothing."""
    act, number, at = case
    names = sorted(found.files)
    name, files = names[number], dict(found.files)
    data = bytearray(files[name])
    match act:
        case "flip":
            data[at // 8] ^= 1 << at % 8
        case "truncate":
            del data[at:]
        case "zero":
            data[at : at + SECTOR] = bytes(len(data[at : at + SECTOR]))
        case "extend":
            data += bytes(at)
        case "replay":
            data = bytearray(found.older[name])
        case "swap":
            files[names[at]] = bytes(data)
            data = bytearray(found.files[names[at]])
        case "delete":
            del files[name]
            return files
        case _:
            raise ValueError(f"no damage is called {act}")
    files[name] = bytes(data)
    return files if files != found.files else None


Check = Callable[[Sample, Mapping[str, bytes]], str | None]


def undetected(found: Sample, files: Mapping[str, bytes]) -> str | None:
    """What is wrong with a verified load of damaged files; None if it names the damage."""
    try:
        with Checkpoint(open_committed(ByteFiles(files)), threads=1, owns_storage=False) as one:  # type: ignore[arg-type]
            read = {key: one[key].numpy() for key in one}
    except ShardkeepError as error:
        return None if _NAMED.search(str(error)) else f"it names no file: {error}"
    equal = all(np.array_equal(read[key], found.values[key]) for key in found.values)
    return f"it was loaded without a word, {'and equal' if equal else 'wrong'}"


class Damage:
    """The campaign."""

    name = "damage"
    promise = "Whatever happens to a byte, a verified load refuses it and names the file or tensor."

    def __init__(self, check: Check = undetected) -> None:
        self._check = check

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        small = sample(_SMALL_NBYTES)
        if case is not None:
            self._take(tally, seed, [self._judge(_SMALL_NBYTES, [_parsed(case)])])
            return tally
        cases = small_cases(scale, seed, small.files)
        self._take(tally, seed, self._judged(_SMALL_NBYTES, cases))
        say(f"{tally.cases} damages of {sum(map(len, small.files.values()))} bytes")
        flips = self._large_flips(scale, seed)
        self._take(tally, seed, self._judged(_LARGE_NBYTES[scale], flips))
        say(f"{tally.cases} damages with those of {_LARGE_NBYTES[scale]} bytes")
        return tally

    def _large_flips(self, scale: Scale, seed: int) -> Iterator[Case]:
        dice, files = random.Random(seed), sample(_LARGE_NBYTES[scale]).files
        sizes = [len(files[name]) for name in sorted(files)]
        for _ in range(_LARGE_FLIPS[scale]):
            file = dice.choices(range(len(sizes)), sizes)[0]
            yield "flip", file, dice.randrange(8 * sizes[file])

    def _judged(self, nbytes: int, cases: Iterator[Case]) -> Iterator[tuple[int, list[str]]]:
        sample(nbytes)
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
            batches = iter(lambda: list(islice(cases, _BATCH)), [])
            yield from pool.map(_Judge(self._check, nbytes), batches)

    def _judge(self, nbytes: int, cases: Sequence[Case]) -> tuple[int, list[str]]:
        return _Judge(self._check, nbytes)(cases)

    def _take(self, tally: Tally, seed: int, found: Any) -> None:
        for count, wrong in found:
            tally.cases += count
            tally.violations += [
                f"{line}  {replay(self.name, seed, line.split()[0])}" for line in wrong
            ]


@dataclass(frozen=True)
class _Judge:
    """Judges cases in a process of its own."""

    check: Check
    nbytes: int

    def __call__(self, cases: Sequence[Case]) -> tuple[int, list[str]]:
        found, count, wrong = sample(self.nbytes), 0, list[str]()
        for case in cases:
            files = damaged(found, case)
            if files is None:
                continue
            count += 1
            said = self.check(found, files)
            if said is not None:
                wrong.append(f"{':'.join(map(str, case))} {said}")
        return count, wrong


def _parsed(case: str) -> Case:
    act, file, at = case.split(":")
    return act, int(file), int(at)
