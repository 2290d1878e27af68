"""Which bytes lie where in the files of a folder of DCP?"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardkeep.boxes import Box
from shardkeep.manifest import itemsize
from shardkeep.storage import LocalStorage
from shardkeep.transfer.load import BIT_DTYPES
from shardkeep.translate.torch_archive import TensorBytes

VALUES_FILE = "values of .metadata"
"""Goes for a file: the tensors within values, which are read when the folder is opened."""

# Reads of places that are further apart are never joined.
_APART_NBYTES = 2**20
_KEPT_COPIES = 4


class DcpFiles:
    """The folder's files. What does not lie in them row by row is shown as if it did.

    A tensor whose items are stored in another order appears behind the end of its file: it is put
    in order when it is read.
    """

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage
        self._behind: dict[str, dict[int, tuple[TensorBytes, int]]] = {}
        """By file: tensors by the place where they appear, with their archives' places."""
        self._copies: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._lock = threading.Lock()
        self._values = b""

    @property
    def location(self) -> str:
        return self._storage.location

    def keep_values(self, data: bytes) -> None:
        """The bytes of tensors that lie within values."""
        self._values = data

    def size(self, key: str) -> int:
        return len(self._values) if key == VALUES_FILE else self._storage.size(key)

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        return self._storage.get(key, max_nbytes=max_nbytes)

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        return self._storage.read(key, offset, nbytes)

    def map(self, key: str) -> memoryview:
        return memoryview(self._values) if key == VALUES_FILE else self._storage.map(key)

    def read_into(self, key: str, offset: int, buffers: Sequence[Any]) -> None:
        behind = self._found_behind(key, offset)
        if key == VALUES_FILE:
            _fill(buffers, memoryview(self._values)[offset:])
        elif behind is not None:
            start, copy = behind
            _fill(buffers, memoryview(copy)[offset - start :])
        else:
            self._storage.read_into(key, offset, buffers)

    def end(self, key: str) -> int:
        """Where the last of what appears in a file, or behind it, ends."""
        known = self._behind.get(key)
        if not known:
            return self.size(key)
        last = max(known)
        return last + _nbytes(known[last][0])

    def put_behind(self, key: str, tensor: TensorBytes, archive: int) -> int:
        """The place behind the file's end where a tensor appears, its items in order."""
        with self._lock:
            start = -(-self.end(key) // 64) * 64 + _APART_NBYTES
            self._behind.setdefault(key, {})[start] = tensor, archive
            return start

    def _found_behind(self, key: str, offset: int) -> tuple[int, Any] | None:
        with self._lock:
            starts = [start for start in self._behind.get(key, ()) if start <= offset]
            if not starts:
                return None
            start = max(starts)
            tensor, archive = self._behind[key][start]
            if (key, start) not in self._copies:
                self._copies[key, start] = self._in_order(key, tensor, archive)
                while len(self._copies) > _KEPT_COPIES:
                    self._copies.popitem(last=False)
            return start, self._copies[key, start]

    def _in_order(self, key: str, tensor: TensorBytes, archive: int) -> bytes:
        size = itemsize(tensor.dtype)
        stored = self._storage.read(key, archive + tensor.start, tensor.memory[1] - tensor.start)
        items = np.ndarray(
            tensor.shape,
            BIT_DTYPES[size],
            buffer=stored,
            strides=[stride * size for stride in tensor.strides],
        )
        return items.tobytes()

    def close(self) -> None:
        self._storage.close()


def _nbytes(tensor: TensorBytes) -> int:
    return Box.whole(tensor.shape).numel * itemsize(tensor.dtype)


def _fill(buffers: Sequence[Any], data: memoryview) -> None:
    at = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        view[:] = data[at : at + len(view)]
        at += len(view)
