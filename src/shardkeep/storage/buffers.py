"""How do many buffers pass through system calls that may stop anywhere?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from shardkeep.errors import InvalidError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

# How many buffers one call takes; POSIX promises 16.
MAX_BUFFERS_PER_CALL = max(16, os.sysconf("SC_IOV_MAX"))

_MAX_FILE_NBYTES = 2**63 - 1


def readable_views(buffers: Sequence[ReadableBuffer]) -> list[memoryview]:
    """The buffers as flat bytes, without the empty ones."""
    try:
        return [view.cast("B") for view in map(memoryview, buffers) if view.nbytes]
    except TypeError as error:
        raise InvalidError(
            f"a buffer cannot be seen as plain bytes ({error}): pass contiguous memory, as bytes"
        ) from error


def writable_views(buffers: Sequence[WriteableBuffer]) -> list[memoryview]:
    """The same for memory to be filled; InvalidError for memory that is read-only."""
    views = readable_views(buffers)
    if any(view.readonly for view in views):
        raise InvalidError("cannot read into memory that is read-only")
    return views


def total_nbytes(views: Sequence[memoryview]) -> int:
    """How many bytes flat views have together."""
    return sum(map(len, views))


def check_range(offset: int, nbytes: int) -> None:
    """InvalidError unless a file can have `nbytes` bytes at `offset`."""
    if offset < 0 or nbytes < 0 or offset + nbytes > _MAX_FILE_NBYTES:
        raise InvalidError(
            f"no object has {nbytes} bytes at offset {offset}: expected numbers from 0 to 2**63 - 1"
        )


def transfer(
    call: Callable[[Sequence[memoryview], int], int], views: list[memoryview], offset: int
) -> Iterator[int]:
    """Move all of `views` by repeated `call(views, offset)`; yields what each call moved.

    `call` may move fewer bytes than it is given. The iterator ends early if it moves none, as at
    the end of a file. Yielding tells the caller how far it came when a call raises. `views`
    is used up.
    """
    first, moved = 0, 0
    while first < len(views):
        batch = views[first : first + MAX_BUFFERS_PER_CALL]
        step = call(batch, offset + moved)
        if step == 0:
            return
        moved += step
        yield step
        if step == total_nbytes(batch):
            first += len(batch)
            continue
        while step >= len(views[first]):
            step -= len(views[first])
            first += 1
        views[first] = views[first][step:]
