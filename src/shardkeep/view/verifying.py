"""Is every byte of a checkpoint what was written? Read in windows, by all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError, NotFoundError, StorageError
from shardkeep.manifest import TensorRecord
from shardkeep.plan.reads import WindowRead
from shardkeep.transfer.open_manifest import Chunks
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.read import FileReads, OpenFile, Reader
from shardkeep.transfer.team import Team
from shardkeep.view.opening import checks_of
from shardkeep.view.pieces import run_all

_WINDOW_NBYTES = 8 * 2**20

Act = tuple[int, Callable[[Meter], list[str]]]


class Verified(msgspec.Struct):
    """What a verification found."""

    nbytes: int
    problems: list[str]
    checked: str
    """What was looked at."""


def verify(opened: Opened, team: Team) -> Verified | None:
    """Check all files; None on ranks that do not lead."""
    parts = team.gather("verify", lambda: _verify_own(opened, team), Verified)
    if parts is None:
        return None
    # Each rank finds the same fault with a header.
    problems = dict.fromkeys(problem for part in parts for problem in part.problems)
    nbytes = sum(opened.manifest.files.nbytes)
    return Verified(nbytes, list(problems), checks_of(opened.manifest))


def _verify_own(opened: Opened, team: Team) -> Verified:
    acts: list[Act] = []
    problems: list[str] = []
    by_file = _chunks_by_file(opened)
    for index in range(len(opened.manifest.files)):
        chunks = by_file.get(index, ())
        try:
            file = opened.places.open_file(index)
            for record, box in chunks:
                opened.places.chunk(index, record, box)
        except (CorruptError, NotFoundError, StorageError) as error:
            problems.append(str(error))
            continue
        acts += (
            _windows(opened, file)
            if file.digests is not None
            else [(file.nbytes, partial(_damage, opened, index, chunks))]
        )
    mine = team.share(acts, [nbytes for nbytes, _ in acts])
    nbytes = sum(size for size, _ in mine)
    own = [act for _, act in mine]
    for found in run_all(own, nbytes, "verifying", show=team.shows, threads=team.threads):
        problems += found
    return Verified(0, problems, "")


def _chunks_by_file(opened: Opened) -> Mapping[int, Chunks]:
    found: dict[int, list[tuple[TensorRecord, Box]]] = {}
    for record in opened.manifest.tensors:
        for box, index in opened.manifest.chunks(record):
            found.setdefault(index, []).append((record, box))
    return found


def _windows(opened: Opened, file: OpenFile) -> Iterator[Act]:
    silent = Meter("verifying", None, show=False)
    reader = Reader(opened.storage, threads=1, verify=True, meter=silent)
    step = max(file.block_nbytes, _WINDOW_NBYTES - _WINDOW_NBYTES % file.block_nbytes)
    for start in range(file.data_start, file.nbytes, step):
        stop = min(start + step, file.nbytes)
        yield stop - start, partial(_window_damage, reader, file, WindowRead(start, stop, ()))


def _window_damage(reader: Reader, file: OpenFile, window: WindowRead, meter: Meter) -> list[str]:
    meter.add(window.stop - window.start)
    try:
        reader.run([FileReads(file, [window], [])])
    except (CorruptError, StorageError) as error:
        return [str(error)]
    return []


def _damage(opened: Opened, index: int, chunks: Chunks, meter: Meter) -> list[str]:
    return opened.places.damage(index, chunks, meter)
