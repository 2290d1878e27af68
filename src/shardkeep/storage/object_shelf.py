"""Where do the checkpoints of a run stand in an object store? Below one prefix, one prefix each.

An object store cannot rename. What is taken off the shelf loses its manifest first: from that
moment it is no checkpoint, and what is left of it is a half-written one, which a prune removes.
"""

from __future__ import annotations

from shardkeep.errors import ConflictError
from shardkeep.manifest.names import MANIFEST_NAME, parse_lock_name
from shardkeep.storage.objects import ObjectStorage


class ObjectShelf:
    """The checkpoints below a storage's URL."""

    def __init__(self, root: ObjectStorage) -> None:
        self._root = root

    @property
    def location(self) -> str:
        return self._root.location

    def path(self, name: str) -> str:
        """The checkpoint's URL."""
        return f"{self.location}/{name}"

    def place(self, name: str) -> ObjectStorage:
        """Where it is saved and loaded, by the connections of this shelf."""
        return self._root.below(name)

    def names(self) -> list[str]:
        """The names below which there is something, in order."""
        return [name for name in self._root.list_below() if not name.startswith(".")]

    def has(self, name: str) -> bool:
        """Whether there is an object below this name."""
        return bool(self.open(name).list())

    def open(self, name: str) -> ObjectStorage:
        """A checkpoint's storage; whether anything is there shows when it is read."""
        return self._root.below(name)

    def changed_at(self, name: str) -> float:
        """When an object of it last changed, by the store's clock; 0 if there is none."""
        return self.open(name).changed_at()

    def remove(self, name: str) -> None:
        """Take a checkpoint away: its manifest first, then everything else.

        ConflictError if it is being saved.
        """
        storage = self.open(name)
        keys = [entry.key for entry in storage.list()]
        # Whoever is stopped in the middle of a save must not commit what is gone.
        for key in keys:
            if parse_lock_name(key) is not None and not storage.delete_unless_held(key):
                raise ConflictError(f"{storage.location} is being saved: it is not removed")
        for key in sorted(keys, key=lambda key: key != MANIFEST_NAME):
            storage.delete(key, missing_ok=True)
        for upload in storage.unfinished():
            storage.abort_unfinished(upload)

    @property
    def recycled_from(self) -> None:
        """Nothing: an object cannot be written again."""
        return None

    def spare_nbytes(self) -> int:
        """None are kept."""
        return 0

    def discard_spares(self) -> None:
        """Nothing to do."""

    def sweep(self) -> None:
        """Nothing to do: a removal that was broken off leaves a half-written checkpoint."""
