"""Which file is meant by a name in a folder of the Hugging Face cache?

The cache keeps a model's files by their hash, and its folders hold links to them, such as
`snapshots/<revision>/model.safetensors -> ../../blobs/<hash>`. A blob that several models share
is in turn a link to `../../blobs/<first two digits>/<hash>` of the whole cache. These links are
followed, each checked to the letter; any other one is refused.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shardkeep.errors import CorruptError
from shardkeep.storage.keys import check_key
from shardkeep.storage.local import LocalStorage

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BLOB = re.compile(r"((?:\.\./){2,8})blobs/([0-9a-f]{40,64})")
_SHARED_BLOB = re.compile(r"\.\./\.\./blobs/([0-9a-f]{2})/(\1[0-9a-f]{62})")


class HubFiles:
    """The files of a folder, those among them that are links of the Hugging Face cache included."""

    def __init__(self, folder: Path) -> None:
        self._home = LocalStorage(folder, durable=False)
        # The links are relative to where the folder really is.
        self._folder = Path(os.path.realpath(folder))
        self._storages = {self._folder: self._home}
        self._places: dict[str, tuple[LocalStorage, str]] = {}
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return self._home.location

    def read_into(self, key: str, offset: int, buffers: Sequence[WriteableBuffer]) -> None:
        storage, name = self._place(key)
        storage.read_into(name, offset, buffers)

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        storage, name = self._place(key)
        return storage.read(name, offset, nbytes)

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        storage, name = self._place(key)
        return storage.get(name, max_nbytes=max_nbytes)

    def size(self, key: str) -> int:
        storage, name = self._place(key)
        return storage.size(name)

    def map(self, key: str) -> memoryview:
        storage, name = self._place(key)
        return storage.map(name)

    def close(self) -> None:
        for storage in self._storages.values():
            storage.close()

    def _place(self, key: str) -> tuple[LocalStorage, str]:
        check_key(key)
        with self._lock:
            if key not in self._places:
                folder, name = real_place(self._folder, key)
                if folder not in self._storages:
                    self._storages[folder] = LocalStorage(folder, durable=False)
                self._places[key] = self._storages[folder], name
            return self._places[key]


def real_place(folder: Path, name: str) -> tuple[Path, str]:
    """The folder and name of the file that is meant by `name` in `folder`, a real path.

    Whether it is there, and is a regular file, is not looked at.
    """
    if not (folder / name).is_symlink():
        return folder, name
    match = _BLOB.fullmatch(os.readlink(folder / name))
    depth = match[1].count("/") if match else 0
    if (
        match is None
        or depth > len(folder.parents)
        or folder.parents[depth - 2].name != "snapshots"
    ):
        raise _refused(folder / name)
    blobs = folder.parents[depth - 1] / "blobs"
    return _shared_place(_real_folder(blobs), match[2])


def _shared_place(blobs: Path, name: str) -> tuple[Path, str]:
    if not (blobs / name).is_symlink():
        return blobs, name
    match = _SHARED_BLOB.fullmatch(os.readlink(blobs / name))
    if match is None:
        raise _refused(blobs / name)
    store = _real_folder(blobs.parent.parent / "blobs")
    return _real_folder(store / match[1]), match[2]


def _real_folder(folder: Path) -> Path:
    if folder.is_symlink():
        raise _refused(folder)
    return folder


def _refused(link: Path) -> CorruptError:
    return CorruptError(
        f"{link} is a link, but none that the Hugging Face cache makes; other links are not "
        "followed: put the file itself there"
    )
