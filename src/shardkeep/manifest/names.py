"""How are data files and the chunks in them called?

A file's name is made of checked parts, so that no name leaves the checkpoint's folder. A chunk's
name says which box of which tensor it is, in one way only.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from shardkeep.errors import InvalidError
from shardkeep.manifest.limits import MAX_NUMBER, MAX_RANKS
from shardkeep.manifest.plain_json import shown

if TYPE_CHECKING:
    from shardkeep.boxes import Box

MANIFEST_NAME = "manifest.json"
"""The file whose appearance commits the checkpoint."""

_SAVE_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_FILE = re.compile(r"([0-9a-f]{16})-([0-9]{5,10})-([0-9]{1,10})\.safetensors", re.ASCII)
_REPORT = re.compile(r"([0-9a-f]{16})-report\.json", re.ASCII)
_LOCK = re.compile(r"([0-9a-f]{16})\.lock", re.ASCII)


class DataFile(NamedTuple):
    """What the name of a data file says."""

    save_id: str
    rank: int
    number: int


def new_save_id() -> str:
    """A fresh name for one attempt to save: 16 hex digits."""
    return secrets.token_hex(8)


def check_save_id(save_id: str) -> str:
    """The save id itself; raises InvalidError unless it is 16 lower-case hex digits."""
    if not _SAVE_ID.fullmatch(save_id):
        raise InvalidError(f"save id {shown(save_id)} is not 16 lower-case hex digits")
    return save_id


def file_name(save_id: str, rank: int, number: int) -> str:
    """The name of a rank's data file.

    >>> file_name("0123456789abcdef", 3, 0)
    '0123456789abcdef-00003-0.safetensors'
    """
    check_save_id(save_id)
    if not (0 <= rank < MAX_RANKS and 0 <= number < MAX_NUMBER):
        raise InvalidError(f"no file has rank {shown(rank)} and number {shown(number)}")
    return f"{save_id}-{rank:05d}-{number}.safetensors"


def parse_file_name(name: str) -> DataFile | None:
    """What `name` says, or None if `file_name` would not have written it.

    >>> parse_file_name("0123456789abcdef-00003-0.safetensors")
    DataFile(save_id='0123456789abcdef', rank=3, number=0)
    >>> parse_file_name("manifest.json") is None
    True
    """
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    found = DataFile(match[1], int(match[2]), int(match[3]))
    if found.rank >= MAX_RANKS or found.number >= MAX_NUMBER or file_name(*found) != name:
        return None
    return found


def report_name(save_id: str) -> str:
    """The name of what is kept of how the save went.

    >>> report_name("0123456789abcdef")
    '0123456789abcdef-report.json'
    """
    return f"{check_save_id(save_id)}-report.json"


def parse_report_name(name: str) -> str | None:
    """The save id, or None if `report_name` would not have written it."""
    match = _REPORT.fullmatch(name)
    return match[1] if match else None


def lock_name(save_id: str) -> str:
    """The name of the file that a save holds locked while it is under way.

    >>> lock_name("0123456789abcdef")
    '0123456789abcdef.lock'
    """
    return f"{check_save_id(save_id)}.lock"


def parse_lock_name(name: str) -> str | None:
    """The save id, or None if `lock_name` would not have written it."""
    match = _LOCK.fullmatch(name)
    return match[1] if match else None


def chunk_name(key: str, box: Box, shape: Sequence[int]) -> str:
    """The name of the chunk that holds `box` of the tensor `key`.

    >>> from shardkeep.boxes import Box
    >>> chunk_name("wq", Box((0, 0), (4, 8)), (4, 8)), chunk_name("wq", Box((2, 0), (4, 8)), (4, 8))
    ('wq', 'wq@[2:4,0:8]')
    >>> chunk_name("a@[0]", Box((0,), (4,)), (4,))
    'a@[0]@[0:4]'
    """
    if box.stop == tuple(shape) and not any(box.start) and not _needs_suffix(key):
        return key
    return key + _suffix(box)


def chunk_names(keys: Sequence[str], box: Box, shape: Sequence[int]) -> list[str]:
    """As `chunk_name`, for the same box of many tensors of one shape."""
    namer = ChunkNamer.of(box, shape)
    if not namer.is_whole:
        return [key + namer.suffix for key in keys]
    # There may be many thousands: no call is made for a key that can be taken for nothing else.
    return [key if key[-1:] not in "]_" else namer.name(key) for key in keys]


class ChunkNamer(NamedTuple):
    """How chunks of one box of tensors of one shape are called."""

    suffix: str
    is_whole: bool

    @classmethod
    def of(cls, box: Box, shape: Sequence[int]) -> ChunkNamer:
        """For a box of such tensors."""
        return cls(_suffix(box), box.stop == tuple(shape) and not any(box.start))

    def name(self, key: str) -> str:
        """The name of the chunk of the tensor `key`."""
        return key if self.is_whole and not _needs_suffix(key) else key + self.suffix


def parse_chunk_name(name: str) -> tuple[str, Box | None]:
    """The key, and the box unless the chunk is the whole tensor.

    >>> parse_chunk_name("wq@[2:4,0:8]")
    ('wq', Box(start=(2, 0), stop=(4, 8)))
    """
    if not _needs_suffix(name):
        return name, None
    if name == "__metadata__":
        raise InvalidError("no chunk is called '__metadata__'")
    from shardkeep.boxes import Box

    key, _, box = name.rpartition("@[")
    return key, Box.parse(f"[{box}")


def _suffix(box: Box) -> str:
    spans = [f"{a}:{b}" for a, b in zip(box.start, box.stop, strict=True)]
    return f"@[{','.join(spans)}]"


def _needs_suffix(key: str) -> bool:
    """Whether the bare key could be taken for something else."""
    return key == "__metadata__" or (key.endswith("]") and "@[" in key)
