"""Where do the checkpoints of a run stand? On a shelf: in a folder, one folder each.

What is taken off the shelf is renamed first: from that moment nobody takes it for a checkpoint,
and if removing it is broken off, the next sweep goes on with it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from shardkeep.errors import NotFoundError, StorageError
from shardkeep.storage.file_calls import FileCalls
from shardkeep.storage.folder import Folder
from shardkeep.storage.local import LocalStorage
from shardkeep.storage.opening_folders import open_folder
from shardkeep.storage.protocols import Storage
from shardkeep.storage.spares import discard_spares, keep_spares, spare_nbytes

_REMOVED = ".removed-"


class Shelf(Protocol):
    """The checkpoints of a run, by name, wherever they are."""

    @property
    def location(self) -> str:
        """Where the run is, for messages."""
        ...

    def path(self, name: str) -> Path | str:
        """Where the checkpoint of this name is: a path, or a URL."""
        ...

    def place(self, name: str) -> Path | Storage:
        """The same for whoever saves or loads it."""
        ...

    def names(self) -> list[str]:
        """The names of all checkpoints, in order, half-written ones included."""
        ...

    def has(self, name: str) -> bool:
        """Whether there is anything under this name."""
        ...

    def open(self, name: str) -> Storage:
        """A checkpoint's storage, to be read; NotFoundError if it is not there."""
        ...

    def changed_at(self, name: str) -> float:
        """When something of it last changed, in seconds since 1970; 0 if it is gone."""
        ...

    def remove(self, name: str) -> None:
        """Take a checkpoint away, all at once, and free its space. Gone already: no matter."""
        ...

    def sweep(self) -> None:
        """Go on with removals that were broken off."""
        ...

    @property
    def recycled_from(self) -> str | None:
        """Where files of removed checkpoints are kept to be written again; None if none are."""
        ...

    def spare_nbytes(self) -> int:
        """The space that they take now, whoever has kept them."""
        ...

    def discard_spares(self) -> None:
        """Free that space."""
        ...


class LocalShelf:
    """The folder at `root`, which need not be there yet.

    With `recycle`, the files of the last checkpoint that was removed are kept to be written again.
    """

    def __init__(self, root: str | os.PathLike[str], *, recycle: bool = False) -> None:
        self._root = Path(os.path.abspath(root))
        self._recycles = recycle

    @property
    def location(self) -> str:
        return str(self._root)

    def path(self, name: str) -> Path:
        """Where the checkpoint of this name is."""
        return self._root / name

    def place(self, name: str) -> Path:
        """Where it is saved and loaded."""
        return self.path(name)

    def has(self, name: str) -> bool:
        """Whether the folder is there."""
        return self.path(name).exists()

    def names(self) -> list[str]:
        """The names of all folders, in order; links and what was removed are left out."""
        return [name for name in self._folders() if not name.startswith(".")]

    def _folders(self) -> list[str]:
        try:
            with os.scandir(self._root) as entries:
                return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failure(error, "listing the run") from error

    def open(self, name: str) -> LocalStorage:
        """A checkpoint's storage, to be read; NotFoundError if it is not there."""
        return LocalStorage(self.path(name))

    def changed_at(self, name: str) -> float:
        """When something in the folder last changed, in seconds since 1970; 0 if it is gone."""
        times = [0.0]
        with suppress(FileNotFoundError):
            folder = self.path(name)
            times.append(folder.stat().st_mtime)
            for entry in os.scandir(folder):
                with suppress(FileNotFoundError):
                    times.append(entry.stat(follow_symlinks=False).st_mtime)
        return max(times)

    def remove(self, name: str) -> None:
        """Take a checkpoint away, all at once, and free its space. Gone already: no matter."""
        gone = f"{_REMOVED}{name}-{secrets.token_hex(4)}"
        try:
            folder = open_folder(str(self._root), create=False, durable=True, calls=FileCalls())
        except NotFoundError:
            return
        try:
            folder.calls.rename(name, gone, dir_fd=folder.fd)
            # Else a loss of power could bring the name back, with half of the files.
            folder.sync()
            self._keep_spares(folder, gone)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failure(error, f"removing {name}") from error
        finally:
            folder.close()
        _remove_folder(self._root / gone)

    def _keep_spares(self, folder: Folder, gone: str) -> None:
        if self._recycles:
            # What cannot be kept goes with the rest.
            with suppress(OSError):
                keep_spares(folder, gone)

    @property
    def recycled_from(self) -> str | None:
        """The run's folder, if it keeps spare files."""
        return str(self._root) if self._recycles else None

    def spare_nbytes(self) -> int:
        """The space that spare files take."""
        return spare_nbytes(self.location)

    def discard_spares(self) -> None:
        """Remove them."""
        discard_spares(self.location)

    def sweep(self) -> None:
        """Go on with removals that were broken off; spare files go if this shelf keeps none."""
        if not self._recycles:
            self.discard_spares()
        for name in self._folders():
            if name.startswith(_REMOVED):
                _remove_folder(self._root / name)

    def _failure(self, error: OSError, what: str) -> StorageError:
        return StorageError(error.errno, f"{what}: {error.strerror}", self.location)


def _remove_folder(folder: Path) -> None:
    # Another process may be at the same folder; what cannot be removed now, a sweep removes.
    shutil.rmtree(folder, ignore_errors=True)
