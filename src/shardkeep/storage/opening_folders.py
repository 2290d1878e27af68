"""How does a folder come to be, durably, and how is it opened?"""

from __future__ import annotations

import errno
import os

from shardkeep.errors import InvalidError, NotFoundError, ShardkeepError
from shardkeep.storage.failures import storage_error
from shardkeep.storage.file_calls import FileCalls
from shardkeep.storage.folder import FOLDER_FLAGS, Folder


def open_folder(path: str, *, create: bool, durable: bool, calls: FileCalls) -> Folder:
    """The folder at `path`, made with its parents if `create`; NotFoundError if it is not there."""
    if not path or "\0" in path:
        raise InvalidError(f"{path!r} is no path of a folder")
    # Absolute: messages stay true when the process changes its folder.
    path = os.path.abspath(path)
    if create:
        _make(path, durable=durable, calls=calls)
    try:
        fd = calls.open(path, FOLDER_FLAGS)
    except OSError as error:
        raise _cannot_open(error, path) from error
    return Folder(path, fd, durable=durable, calls=calls)


def _make(path: str, *, durable: bool, calls: FileCalls) -> None:
    try:
        is_new = _make_one(path, calls)
    except FileNotFoundError:
        _make(os.path.dirname(path), durable=durable, calls=calls)
        try:
            is_new = _make_one(path, calls)
        except FileNotFoundError as error:
            raise _cannot_make(error, path) from error
    # Also if it was there: whoever made it may not have come to this yet.
    if durable:
        _sync_parent(path, is_new=is_new, calls=calls)


def _make_one(path: str, calls: FileCalls) -> bool:
    try:
        calls.mkdir(path)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError as error:
        if _is_folder(path, calls):
            # Where nothing may be made, the error need not say that the folder is there.
            return False
        raise _cannot_make(error, path) from error
    return True


def _is_folder(path: str, calls: FileCalls) -> bool:
    try:
        calls.close(calls.open(path, FOLDER_FLAGS))
    except OSError:
        return False
    return True


def _sync_parent(path: str, *, is_new: bool, calls: FileCalls) -> None:
    parent = os.path.dirname(path)
    try:
        fd = calls.open(parent, FOLDER_FLAGS)
    except PermissionError as error:
        if not is_new:
            # Another user's folder, with ours in it.
            return
        raise storage_error(error, f"making {path} durable", parent) from error
    except OSError as error:
        raise storage_error(error, f"making {path} durable", parent) from error
    folder = Folder(parent, fd, durable=True, calls=calls)
    try:
        folder.sync()
    finally:
        folder.close()


def _cannot_make(error: OSError, path: str) -> ShardkeepError:
    if error.errno == errno.ENOTDIR:
        return InvalidError(f"cannot make the folder {path}: a part of the path is a file")
    return storage_error(error, "making the folder", path)


def _cannot_open(error: OSError, path: str) -> ShardkeepError:
    if error.errno == errno.ENOENT:
        return NotFoundError(f"there is no folder {path}")
    if error.errno == errno.ENOTDIR:
        return InvalidError(f"{path} is not a folder; a checkpoint is one")
    return storage_error(error, "opening the folder", path)
