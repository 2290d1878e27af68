"""What may a file of torch.save ask for, when torch itself is to load it?

Told to make plain values only, torch runs no code of a file. Yet it believes what the file says of
sizes, and a value of a few bytes may stand for more than any machine holds. So the archive is
looked at before torch gets it, and the value before anybody walks through it.
"""

# torch leaves the members of its tensors and storages partly untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Iterable
from mmap import mmap
from typing import TYPE_CHECKING, Any

from shardkeep.errors import CorruptError, ShardkeepError, UnsupportedError

if TYPE_CHECKING:
    from shardkeep.translate.torch_archive import Archive

_MAX_PICKLE_NBYTES = 2**26
_FREE_CONTAINERS = 2**14
# What torch.save writes of a container: an opcode, and its number for who refers to it.
_MIN_NBYTES_PER_CONTAINER = 3
_CONTAINERS = (b"]", b"}", b"(", b"\x85", b"\x86", b"\x87", b"\x8f")
_FREE_PARTS = 1000
_FREE_NBYTES = 2**24
_MAX_GROWTH = 4


def check_archive(archive: Archive, *, where: str) -> None:
    """Raise unless loading the archive takes memory in proportion to its length."""
    archive.require_apart()
    pickled = archive.content("data.pkl", max_nbytes=_MAX_PICKLE_NBYTES)
    count = sum(map(pickled.count, _CONTAINERS))
    if count > _FREE_CONTAINERS + len(pickled) // _MIN_NBYTES_PER_CONTAINER:
        raise CorruptError(f"{where} holds more containers than a file of its size would")
    check_pickled(pickled, where=where)


def check_pickled(data: bytes | mmap, *, where: str) -> None:
    """Raise if a pickle asks for a bytearray: torch would make one of any length."""
    if data.find(b"\nbytearray\n") >= 0:
        raise UnsupportedError(
            f"{where} holds a bytearray, which a checkpoint cannot; save it as bytes with torch"
        )


def check_loaded(value: Any, nbytes: int, *, where: str) -> None:
    """Raise unless a value that was loaded from so many bytes has no more parts than these.

    A list may stand in a list a thousand times, and that one in another: who walks through it never
    ends. A tensor may show one item a billion times: who copies it takes the memory of a billion.
    """
    parts, room = _FREE_PARTS + nbytes, _FREE_NBYTES + _MAX_GROWTH * nbytes
    memory: set[tuple[Any, ...]] = set()
    left: list[Iterable[Any]] = [(value,)]
    while left:
        for one in left.pop():
            parts -= 1
            room -= _new_nbytes(one, memory)
            if parts < 0 or room < 0:
                raise CorruptError(
                    f"{where} stands for far more than its {nbytes} bytes hold: the same part or "
                    "item is in it over and over; save it anew with torch, with copies of its own"
                )
            if isinstance(one, dict):
                left += [one.keys(), one.values()]
            elif isinstance(one, list | tuple | set | frozenset):
                left.append(one)


def _new_nbytes(value: Any, memory: set[tuple[Any, ...]]) -> int:
    """What a copy of a tensor takes, unless it was seen before: tied ones are kept once."""
    import torch

    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return 0
    place = value.data_ptr(), value.dtype, tuple(value.shape), value.stride()
    if place in memory:
        return 0
    memory.add(place)
    return value.numel() * value.element_size()


def unreadable(where: str, error: Exception) -> ShardkeepError:
    """Why torch would not load a value without running code."""
    asked = re.search(
        r"GLOBAL (\S+)|(?:Unsupported|unsupported) (?:class|global|operand).*", str(error)
    )
    if "weights_only" in str(error) or "Weights only" in str(error) or asked:
        name = asked[1] or asked[0] if asked else "what torch does not take for plain data"
        return UnsupportedError(
            f"{where} is pickled with {name:.200}, which might run code: nothing was run. Leave it "
            "out with keys=, or load it with torch where you trust it"
        )
    said = (str(error).splitlines() or ["it ends early"])[0]
    return CorruptError(f"{where} cannot be read: {said:.200}; take another copy")
