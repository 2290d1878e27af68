"""How are the bytes of an open local file read, all of them or none?"""

from __future__ import annotations

from functools import partial

from shardkeep.storage.buffers import total_nbytes, transfer
from shardkeep.storage.failures import too_short
from shardkeep.storage.folder import Folder


def read_into(folder: Folder, fd: int, key: str, offset: int, views: list[memoryview]) -> None:
    """Fill `views`, which is used up, from `offset` on; CorruptError if the file ends before."""
    wanted, moved = total_nbytes(views), 0
    try:
        for step in transfer(partial(folder.calls.preadv, fd), views, offset):
            moved += step
    except OSError as error:
        act = f"reading {wanted} bytes at offset {offset} stopped after {moved}"
        raise folder.failure(error, act, key) from error
    if moved < wanted:
        raise too_short(folder.path_of(key), offset, wanted, moved)


def read_range(folder: Folder, fd: int, key: str, offset: int, nbytes: int) -> bytes:
    """`nbytes` bytes from `offset` on; CorruptError, before memory is taken, if there are less."""
    try:
        here = max(0, folder.calls.fstat(fd).st_size - offset)
    except OSError as error:
        raise folder.failure(error, "reading its status", key) from error
    if nbytes > here:
        raise too_short(folder.path_of(key), offset, nbytes, here)
    return read_bytes(folder, fd, key, offset, nbytes)


def read_bytes(folder: Folder, fd: int, key: str, offset: int, nbytes: int) -> bytes:
    """`nbytes` bytes from `offset` on. The caller has compared them with the file's size."""
    pieces: list[bytes] = []
    found = 0
    while found < nbytes:
        try:
            piece = folder.calls.pread(fd, nbytes - found, offset + found)
        except OSError as error:
            act = f"reading {nbytes} bytes at offset {offset} stopped after {found}"
            raise folder.failure(error, act, key) from error
        if not piece:
            raise too_short(folder.path_of(key), offset, nbytes, found)
        pieces.append(piece)
        found += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
