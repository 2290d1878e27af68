"""How does an export appear at its place: whole, or not at all?

Everything is written to a folder with a name that starts with a dot, made durable, and only then
moved to where it belongs. What was there before goes at the very end, if that is wanted.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

from shardkeep.errors import ConflictError, InvalidError, StorageError
from shardkeep.storage.failures import storage_error
from shardkeep.storage.folder import FOLDER_FLAGS
from shardkeep.storage.local import LocalStorage
from shardkeep.translate.opening import format_of

_WEIGHTS = re.compile(r"model(-[0-9]{5}-of-[0-9]{5})?\.safetensors|model\.safetensors\.index\.json")
"""What an earlier export left; config.json and the like stay."""


def require_free(dest: Path, *, is_file: bool, force: bool) -> None:
    """Raise unless an export may be written to `dest`: a file, or a folder."""
    if not os.path.lexists(dest):
        return
    if is_file:
        if not dest.is_file() or dest.is_symlink():
            raise ConflictError(f"{dest} is there already, and is no regular file; name another")
        if not force:
            raise ConflictError(f"{dest} is there already; name another file, or force it")
        return
    if not dest.is_dir():
        raise ConflictError(f"{dest} is there already, and is no folder; name another")
    found = format_of(dest)
    if found in ("shardkeep", "dcp"):
        raise ConflictError(f"{dest} is a checkpoint of {found}; name another folder")
    if found is not None and not force:
        raise ConflictError(
            f"{dest} holds the weights of a model already; name another folder, or force it"
        )


def require_space(dest: Path, nbytes: int) -> None:
    """Raise unless so many bytes are free where `dest` will be."""
    place = next(one for one in (dest, *dest.absolute().parents) if one.is_dir())
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if nbytes > free:
        raise StorageError(
            errno.ENOSPC,
            f"the export takes {nbytes} bytes, but {free} are free; make room, or name another "
            "place",
            str(dest),
        )


def hidden_place(dest: Path, *, is_file: bool) -> Path:
    """Where an export to `dest` grows: a fresh name beside it, or inside of a folder."""
    home = dest if not is_file and dest.is_dir() else dest.absolute().parent
    return home / f".{dest.name}-export-{secrets.token_hex(8)}"


@contextmanager
def staged(
    dest: Path, *, is_file: bool, force: bool, hidden: Path | None = None
) -> Generator[LocalStorage]:
    """A storage for files that appear at `dest` when all went well, else nowhere.

    A folder that is there already keeps what is no weights, such as config.json.
    """
    is_inside = not is_file and dest.is_dir()
    hidden = hidden or hidden_place(dest, is_file=is_file)
    storage = LocalStorage(hidden, create=True)
    try:
        yield storage
        storage.sync()
        require_free(dest, is_file=is_file, force=force)
        _publish(hidden, dest, is_file=is_file, is_inside=is_inside)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise storage_error(error, "putting the export in its place", str(dest)) from error
    finally:
        storage.close()
        shutil.rmtree(hidden, ignore_errors=True)


def _publish(hidden: Path, dest: Path, *, is_file: bool, is_inside: bool) -> None:
    if is_file:
        (only,) = hidden.iterdir()
        os.replace(only, dest)
    elif is_inside:
        _move_in(hidden, dest)
        _sync(dest)
        return
    else:
        os.rename(hidden, dest)
    _sync(dest.absolute().parent)


def _move_in(hidden: Path, dest: Path) -> None:
    """Old weights go first, the index foremost: half of a model is never taken for one."""
    old = [one.name for one in dest.iterdir() if _WEIGHTS.fullmatch(one.name)]
    for name in _index_last(old)[::-1]:
        (dest / name).unlink()
    for name in _index_last(one.name for one in hidden.iterdir()):
        os.rename(hidden / name, dest / name)


def _index_last(names: Iterable[str]) -> Sequence[str]:
    return sorted(names, key=lambda name: (name.endswith(".json"), name))


def _sync(folder: Path) -> None:
    fd = os.open(folder, FOLDER_FLAGS)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(fd)


def require_ending(dest: Path, ending: str) -> None:
    """Raise unless a file that is to be written has a name that tells what it is."""
    if dest.suffix != ending:
        raise InvalidError(f"{dest}: name a file that ends with {ending}")
