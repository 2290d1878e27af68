"""Which shelf does a run's path or URL mean?"""

from __future__ import annotations

import os

from shardkeep.errors import UnsupportedError
from shardkeep.storage.protocols import Storage
from shardkeep.storage.shelf import LocalShelf, Shelf
from shardkeep.storage.urls import OBJECT_SCHEMES, split_url


def open_shelf(root: str | os.PathLike[str] | Storage, *, recycle: bool = False) -> Shelf:
    """The shelf at a path or URL, or of an ObjectStorage, which need not be there yet.

    With `recycle`, a folder's shelf keeps files of removed checkpoints to be written again.
    """
    if isinstance(root, os.PathLike):
        return LocalShelf(root, recycle=recycle)
    if not isinstance(root, str):
        from shardkeep.storage.object_shelf import ObjectShelf
        from shardkeep.storage.objects import ObjectStorage

        if isinstance(root, ObjectStorage):
            return ObjectShelf(root)
        raise UnsupportedError(
            f"no run can be kept in {root!r}: name a folder, or an ObjectStorage"
        )
    found = split_url(root)
    if found is None:
        return LocalShelf(root, recycle=recycle)
    scheme, rest = found
    if scheme in OBJECT_SCHEMES:
        from shardkeep.storage.object_shelf import ObjectShelf
        from shardkeep.storage.objects import ObjectStorage

        return ObjectShelf(ObjectStorage(root))
    if scheme == "file":
        from shardkeep.storage.opening import path_in_url

        return LocalShelf(path_in_url(rest, root), recycle=recycle)
    raise UnsupportedError(f"{root!r}: no run can be kept there; name a folder or an object store")
