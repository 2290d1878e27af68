"""What may be on the disk after a loss of power? Everything that the file system did not promise.

What was synced is there. Of the rest, each change of a name or a size is there or not, each sector
of each write is there or not, and a file may have its size without its bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torture.file_log import Cut, Name, Operation, Sync, Write

SECTORS = (512, 4096)
Fate = Literal["kept", "lost", "drawn"]


@dataclass(frozen=True)
class Weather:
    """What becomes of what was not synced."""

    names: Fate
    data: Fate
    sector: int = 512
    keeps_sizes: bool = False
    """Files have the size that was written, with zeros where bytes were lost."""


CALM = (
    Weather("lost", "lost"),
    Weather("kept", "kept"),
    Weather("kept", "lost"),
    Weather("kept", "lost", keeps_sizes=True),
    Weather("lost", "kept"),
)


@dataclass
class Disk:
    """Files by path, and folders, as they are found after the crash."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    folders: list[str] = field(default_factory=list[str])
    links: dict[str, str] = field(default_factory=dict[str, str])
    """Files that are the same as one before them."""

    @property
    def key(self) -> tuple[object, ...]:
        links = tuple(sorted(self.links.items()))
        return tuple(sorted(self.files.items())), tuple(sorted(self.folders)), links


def weathers(dice: random.Random, count: int) -> Iterator[Weather]:
    """The calm ones, then others by chance, `count` in all."""
    yield from CALM[:count]
    fates: tuple[Fate, ...] = ("kept", "lost", "drawn")
    for _ in range(count - len(CALM)):
        names, data = dice.choice(fates), dice.choice((*fates, "drawn"))
        yield Weather(names, data, dice.choice(SECTORS), dice.random() < 0.5)


def crash(
    log: Sequence[Operation],
    folders: set[int],
    root: int,
    weather: Weather,
    dice: random.Random,
) -> Disk:
    """The disk after a crash behind the last operation of `log`."""
    durable = _durable_upto(log)
    entries: dict[tuple[int, str], int] = {}
    contents: dict[int, bytearray] = {}
    for at, one in enumerate(log):
        if isinstance(one, Name):
            if at < durable.get(one.folder, 0) or _keeps(weather.names, dice):
                _apply_name(entries, one)
        elif isinstance(one, Write):
            content = contents.setdefault(one.object, bytearray())
            if at < durable.get(one.object, 0):
                _put(content, one.offset, one.data)
            else:
                _put_sectors(content, one, weather, dice)
        elif isinstance(one, Cut) and (
            at < durable.get(one.object, 0) or _keeps(weather.names, dice)
        ):
            del contents.setdefault(one.object, bytearray())[one.nbytes :]
    disk = Disk()
    _walk(disk, root, "", entries, contents, folders, {})
    return disk


def _durable_upto(log: Sequence[Operation]) -> dict[int, int]:
    found: dict[int, int] = {}
    for one in log:
        if isinstance(one, Sync):
            found[one.object] = max(one.upto, found.get(one.object, 0))
    return found


def _keeps(fate: Fate, dice: random.Random) -> bool:
    return fate == "kept" or (fate == "drawn" and dice.random() < 0.5)


def _apply_name(entries: dict[tuple[int, str], int], one: Name) -> None:
    if one.object is None:
        entries.pop((one.folder, one.name), None)
        return
    entries[one.folder, one.name] = one.object
    if one.gone is not None:
        entries.pop((one.folder, one.gone), None)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset + len(data):
        content.extend(bytes(offset + len(data) - len(content)))
    content[offset : offset + len(data)] = data


def _put_sectors(content: bytearray, one: Write, weather: Weather, dice: random.Random) -> None:
    stop = one.offset + len(one.data)
    if weather.keeps_sizes:
        _put(content, stop, b"")
    at = one.offset
    while at < stop:
        end = min(stop, at - at % weather.sector + weather.sector)
        if _keeps(weather.data, dice):
            _put(content, at, one.data[at - one.offset : end - one.offset])
        at = end


def _walk(
    disk: Disk,
    folder: int,
    path: str,
    entries: dict[tuple[int, str], int],
    contents: dict[int, bytearray],
    folders: set[int],
    seen: dict[int, str],
) -> None:
    for (parent, name), number in entries.items():
        if parent != folder:
            continue
        here = f"{path}/{name}" if path else name
        if number in folders:
            disk.folders.append(here)
            _walk(disk, number, here, entries, contents, folders, seen)
        else:
            disk.files[here] = bytes(contents.get(number, b""))
            if number in seen:
                disk.links[here] = seen[number]
            seen.setdefault(number, here)
