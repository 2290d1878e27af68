"""Which files may be written again, in place of fresh ones?

Those of checkpoints that were removed from the run. Memory that is there already, or room on the
disk that is set aside already, saves a good part of a save's time. They wait in a hidden folder of
the run: the files of one checkpoint, not more.

No byte that anybody may still see is written over. A file comes here only after the removal of its
checkpoint is durable, and is taken only if nobody has it open or mapped and it has no other name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import closing, suppress

from shardkeep.manifest.names import parse_file_name
from shardkeep.storage.file_calls import FileCalls
from shardkeep.storage.folder import FOLDER_FLAGS, Folder
from shardkeep.storage.locks import close_quietly, is_current

SPARES = ".spare"
"""The folder's name in the run's folder."""

# ext2 to ext4, XFS, Btrfs, tmpfs: whoever has a file open is on this host, where it can be told.
_LOCAL_FILE_SYSTEMS = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994})
_WRITE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def keep_spares(root: Folder, removed: str) -> None:
    """Move the data files of a removed checkpoint to the spare ones, in place of those there.

    The caller has made the removal durable, and deletes what is left in the folder `removed`.
    """
    calls = root.calls
    if calls.file_system(root.fd) not in _LOCAL_FILE_SYSTEMS:
        return
    with suppress(FileExistsError):
        calls.mkdir(root.path_of(SPARES))
    with (
        closing(_open_below(root, removed)) as source,
        closing(_open_below(root, SPARES)) as spares,
    ):
        _empty(spares)
        try:
            for name in filter(parse_file_name, calls.listdir(source.fd)):
                calls.move(name, name, dir_fd=source.fd, new_dir_fd=spares.fd)
            # Else a file could come back under its old name, too, and go with it when it is swept.
            source.sync()
        except BaseException:
            _empty(spares)
            raise


def discard_spares(root: str) -> None:
    """Free the space of the spare files of the run at `root`."""
    with suppress(OSError):
        with closing(_open_spares(root, FileCalls())) as folder:
            _empty(folder)
        os.rmdir(os.path.join(root, SPARES))


def spare_nbytes(root: str) -> int:
    """How much space they take."""
    total = 0
    with suppress(OSError), os.scandir(os.path.join(root, SPARES)) as entries:
        for entry in entries:
            with suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_size
    return total


class Spares:
    """The spare files of the run at `root`, for one storage. There need not be any."""

    def __init__(self, root: str | os.PathLike[str], calls: FileCalls) -> None:
        self._root = os.path.abspath(root)
        self._calls = calls
        self._folder: Folder | None = None
        self._has_looked = False

    def take(self, into: Folder, key: str, fresh: int) -> int | None:
        """A spare file, open for writing, in place of the fresh and empty one under `key`.

        None if there is none that will do: then the fresh one stays. What the spare file holds is
        to be written over or cut off.
        """
        folder = self._opened()
        if folder is None:
            return None
        for name in _nearest_first(self._names(folder), key):
            fd = self._open(folder, name, fresh)
            if fd is None:
                continue
            if self._claim(folder, name, into, key, fd):
                close_quietly(into, fresh)
                return fd
            close_quietly(into, fd)
        return None

    def _names(self, folder: Folder) -> list[str]:
        with suppress(OSError):
            return self._calls.listdir(folder.fd)
        return []

    def _open(self, folder: Folder, name: str, fresh: int) -> int | None:
        """A spare file that may be written over, open."""
        with suppress(OSError):
            fd = self._calls.open(name, _WRITE_FLAGS, dir_fd=folder.fd)
            with suppress(OSError):
                fresh_status, status = self._calls.fstat(fresh), self._calls.fstat(fd)
                if is_like(fresh_status, status) and self._calls.is_mine_alone(fd):
                    return fd
            close_quietly(folder, fd)
        return None

    def _claim(self, folder: Folder, name: str, into: Folder, key: str, fd: int) -> bool:
        """Of several who have come as far as this, the one who moves the file has it."""
        try:
            self._calls.move(name, key, dir_fd=folder.fd, new_dir_fd=into.fd)
        except FileNotFoundError:
            return False
        except OSError:
            # Which file is under the key must be known: the other one is not seen by anybody.
            found = self._calls.fstat(fd)
            return is_current(into, key, (found.st_dev, found.st_ino))
        return True

    def sync(self) -> None:
        """Files that were taken have no second name here after a loss of power."""
        if self._folder is not None:
            self._folder.sync()

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _opened(self) -> Folder | None:
        if not self._has_looked:
            self._has_looked = True
            with suppress(OSError):
                folder = _open_spares(self._root, self._calls)
                if self._calls.file_system(folder.fd) in _LOCAL_FILE_SYSTEMS:
                    self._folder = folder
                else:
                    folder.close()
        return self._folder


def is_like(fresh: os.stat_result, spare: os.stat_result) -> bool:
    """Whether nobody could tell the spare file from a fresh one: the same owner and rights."""
    return (
        stat.S_ISREG(spare.st_mode)
        and spare.st_nlink == 1
        and (spare.st_dev, spare.st_mode, spare.st_uid, spare.st_gid)
        == (fresh.st_dev, fresh.st_mode, fresh.st_uid, fresh.st_gid)
    )


def _nearest_first(names: Sequence[str], key: str) -> list[str]:
    """For a data file: what the same thread of the same rank wrote is likely to have its size."""
    me = parse_file_name(key)
    if me is None:
        return []
    found = [(file, name) for name in names if (file := parse_file_name(name)) is not None]
    return [name for _, name in sorted(found, key=lambda one: (one[0][1:] != me[1:], one[1]))]


def _open_spares(root: str, calls: FileCalls) -> Folder:
    path = os.path.join(root, SPARES)
    return Folder(path, calls.open(path, FOLDER_FLAGS | os.O_NOFOLLOW), durable=True, calls=calls)


def _open_below(root: Folder, name: str) -> Folder:
    fd = root.calls.open(name, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=root.fd)
    return Folder(root.path_of(name), fd, durable=root.durable, calls=root.calls)


def _empty(folder: Folder) -> None:
    for name in folder.calls.listdir(folder.fd):
        # A folder is nothing of ours; another process may have taken the file meanwhile.
        with suppress(OSError):
            folder.calls.unlink(name, dir_fd=folder.fd)
