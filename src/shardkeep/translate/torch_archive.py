"""Where in a file of torch.save lie the bytes of its tensor? Torch-free, nothing unpickled freely.

Such a file is a ZIP archive of uncompressed entries: `data.pkl` describes the value, `data/0` and
so on hold the memory of its tensors. Here, the value must be one plain tensor.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardkeep.errors import CorruptError, ShardkeepError, UnsupportedError
from shardkeep.manifest import itemsize, tensor_nbytes
from shardkeep.manifest.limits import MAX_INT, MAX_NDIM
from shardkeep.translate.pickle_reading import Known, read_pickle
from shardkeep.translate.torch_dtypes import OTHER_TORCH_NAMES, STORAGE_NAMES, TORCH_NAMES

Read = Callable[[int, int], bytes]
"""The bytes from an offset of the archive on, so many."""

_HEAD_NBYTES = 4096
_TAIL_NBYTES = 4096
_MAX_DIRECTORY_NBYTES = 2**24
_MAX_PICKLE_NBYTES = 2**20
_STEP_NBYTES = 2**22
_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_LISTED = b"PK\x01\x02"
LOCAL = b"PK\x03\x04"
"""What an archive starts with."""
_MANY16, _MANY32 = 0xFFFF, 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of the archive: where its local header is, how long it is, and its CRC-32."""

    header: int
    nbytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor in an archive: what it is, and where its memory lies, counted from the archive's."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In items."""
    start: int
    """Of the tensor's first item."""
    memory: tuple[int, int]
    """Of all that was stored with it."""

    @property
    def is_row_major(self) -> bool:
        return is_row_major(self.shape, self.strides)


def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the items follow each other as indices count.

    >>> is_row_major((2, 3), (3, 1)), is_row_major((2, 3), (1, 2)), is_row_major((1, 3), (9, 1))
    (True, False, True)
    """
    expected = 1
    for side, stride in zip(reversed(shape), reversed(strides), strict=True):
        if side != 1 and stride != expected:
            return False
        expected *= side
    return True


class Archive:
    """An archive of torch.save within a file; its directory is read at once."""

    def __init__(self, read: Read, nbytes: int, where: str) -> None:
        self._read_raw = read
        self._nbytes = nbytes
        self._where = where
        # Small archives, and the front of large ones, are read once.
        self._head = self._read(0, min(nbytes, _HEAD_NBYTES))
        self.members = self._directory()

    def _read(self, start: int, nbytes: int) -> bytes:
        if start < 0 or nbytes < 0 or start + nbytes > self._nbytes:
            raise self._corrupt(f"bytes {start} to {start + nbytes} of {self._nbytes} are wanted")
        return self._read_raw(start, nbytes)

    def _bytes(self, start: int, nbytes: int) -> bytes:
        if 0 <= start <= start + nbytes <= len(self._head):
            return self._head[start : start + nbytes]
        return self._read(start, nbytes)

    def _corrupt(self, text: str) -> CorruptError:
        return CorruptError(
            f"{self._where} is not as torch.save writes it: {text}; take another copy"
        )

    def _directory(self) -> dict[str, Member]:
        if not self._head.startswith(LOCAL):
            raise UnsupportedError(
                f"{self._where} is no ZIP archive, as torch.save writes them since 1.6: it was "
                "written by an older torch, or in another serialization format"
            )
        start, nbytes, count = self._directory_place()
        if nbytes > _MAX_DIRECTORY_NBYTES:
            raise self._corrupt(f"a directory of {nbytes} bytes")
        return dict(self._members(self._bytes(start, nbytes), count))

    def _directory_place(self) -> tuple[int, int, int]:
        """Where the directory is, its length, and the number of its entries."""
        tail_start = max(0, self._nbytes - _TAIL_NBYTES)
        tail = self._bytes(tail_start, self._nbytes - tail_start)
        # torch writes no comment: the record is the last that there is.
        if len(tail) < 22 or tail[-22:-18] != _END or tail[-2:] != b"\0\0":
            raise self._corrupt("the end of the archive is missing, it was cut off")
        count, nbytes, start = struct.unpack("<HII", tail[-12:-2])
        if _MANY32 not in (nbytes, start) and count != _MANY16:
            return start, nbytes, count
        if len(tail) < 42 or tail[-42:-38] != _LOCATOR64:
            raise self._corrupt("the locator of its directory is missing")
        (end64,) = struct.unpack("<Q", tail[-34:-26])
        found = self._bytes(end64, 56)
        if found[:4] != _END64:
            raise self._corrupt("the record of its directory is missing")
        count, nbytes, start = struct.unpack("<QQQ", found[32:56])
        return start, nbytes, count

    def _members(self, listed: bytes, count: int) -> Iterator[tuple[str, Member]]:
        at = 0
        for _ in range(min(count, len(listed) // 46)):
            if listed[at : at + 4] != _LISTED or len(listed) < at + 46:
                raise self._corrupt("its directory is damaged")
            method, crc, packed, nbytes = struct.unpack_from("<H4xIII", listed, at + 10)
            name_nbytes, extra_nbytes, note_nbytes = struct.unpack_from("<HHH", listed, at + 28)
            (header,) = struct.unpack_from("<I", listed, at + 42)
            name_end = at + 46 + name_nbytes
            name = listed[at + 46 : name_end].decode("utf-8", "replace")
            if _MANY32 in (packed, nbytes, header):
                extra = listed[name_end : name_end + extra_nbytes]
                packed, nbytes, header = self._large(extra, packed, nbytes, header)
            if method or packed != nbytes:
                raise self._corrupt(f"its entry {name!r:.100} is compressed")
            yield name.partition("/")[2], Member(header, nbytes, crc)
            at = name_end + extra_nbytes + note_nbytes

    def _large(self, extra: bytes, packed: int, nbytes: int, header: int) -> tuple[int, int, int]:
        """Sizes that 32 bits cannot hold stand in a field of their own."""
        at = 0
        while at + 4 <= len(extra):
            kind, length = struct.unpack_from("<HH", extra, at)
            at += 4
            missing = (nbytes, packed, header).count(_MANY32)
            if kind == 1 and 8 * missing <= min(length, len(extra) - at):
                words = iter(struct.unpack_from(f"<{missing}Q", extra, at))
                nbytes = next(words) if nbytes == _MANY32 else nbytes
                packed = next(words) if packed == _MANY32 else packed
                header = next(words) if header == _MANY32 else header
                return packed, nbytes, header
            at += length
        raise self._corrupt("an entry's size is missing")

    def place(self, name: str) -> tuple[int, int]:
        """First byte and end of an entry's content."""
        if name not in self.members:
            raise self._corrupt(f"it lacks the entry {name!r}")
        member = self.members[name]
        local = self._bytes(member.header, 30)
        if local[:4] != LOCAL:
            raise self._corrupt(f"its entry {name!r} is not where the directory says")
        start = member.header + 30 + sum(struct.unpack("<HH", local[26:30]))
        if start + member.nbytes > self._nbytes:
            raise self._corrupt(f"its entry {name!r} was cut off")
        return start, start + member.nbytes

    def require_apart(self) -> None:
        """Raise CorruptError if entries share bytes: these would be taken once for each of them."""
        stop, last = 0, ""
        for start, end, name in sorted((*self.place(name), name) for name in self.members):
            if start < stop:
                raise self._corrupt(f"its entries {last!r} and {name!r:.100} overlap")
            stop, last = end, name

    def content(self, name: str, *, max_nbytes: int) -> bytes:
        """A small entry, whole, checked."""
        start, stop = self.place(name)
        if stop - start > max_nbytes:
            raise self._corrupt(f"its entry {name!r} has {stop - start} bytes")
        data = self._bytes(start, stop - start)
        crc = self.members[name].crc
        if crc and zlib.crc32(data) != crc:
            raise self._corrupt(f"its entry {name!r} is damaged: the CRC-32 differs")
        return data

    def damage(self, add: Callable[[int], None]) -> list[str]:
        """What is wrong with the entries; reads all of them."""
        return [problem for name in self.members for problem in self._damage_of(name, add)]

    def _damage_of(self, name: str, add: Callable[[int], None]) -> Iterator[str]:
        start, stop = self.place(name)
        crc = 0
        for at in range(start, stop, _STEP_NBYTES):
            step = self._read(at, min(_STEP_NBYTES, stop - at))
            crc = zlib.crc32(step, crc)
            add(len(step))
        # torch can be told to leave the CRC out, and writes 0.
        if self.members[name].crc not in (0, crc):
            yield f"{self._where}: entry {name!r} is not what was written, its CRC-32 differs"

    def tensor(self) -> TensorBytes:
        """The one tensor that the archive holds."""
        if "byteorder" in self.members and self.content("byteorder", max_nbytes=16) != b"little":
            raise UnsupportedError(
                f"{self._where} was written by a machine with another byte order; load and save it "
                "there with torch, in little endian"
            )
        pickled = self.content("data.pkl", max_nbytes=_MAX_PICKLE_NBYTES)
        try:
            described = _described(pickled)
        except (CorruptError, UnsupportedError) as error:
            raise type(error)(f"{self._where}: {error}") from None
        return self._placed(described)

    def _placed(self, found: _Described) -> TensorBytes:
        start, stop = self.place(f"data/{found.key}")
        size = itemsize(found.dtype)
        first = start + found.offset * size
        last = sum((n - 1) * stride for n, stride in zip(found.shape, found.strides, strict=True))
        if 0 not in found.shape and first + (last + 1) * size > stop:
            raise self._corrupt(f"a tensor of shape {found.shape} is longer than its memory")
        return TensorBytes(found.dtype, found.shape, found.strides, first, (start, stop))


@dataclass(frozen=True, slots=True)
class _Memory:
    key: str
    dtype: str | None
    """None: bytes, of which the tensor says what they mean."""


@dataclass(frozen=True, slots=True)
class _Described:
    """What `data.pkl` says of the tensor."""

    key: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


# Layers alike have the same description, to the byte.
@lru_cache(maxsize=4096)
def _described(pickled: bytes) -> _Described:
    found = read_pickle(pickled, known=_KNOWN, where="data.pkl", persistent=_memory)
    if not isinstance(found, _Described):
        raise CorruptError("data.pkl describes no tensor")
    return found


def _memory(identity: Any) -> _Memory:
    match identity:
        case ("storage", _Memory() as kind, str() as key, str(), int()):
            if not key.isascii() or not key.isalnum() or len(key) > 20:
                raise CorruptError("data.pkl names its memory in a way that torch does not")
            return _Memory(key, kind.dtype)
        case _:
            raise CorruptError("data.pkl refers to something that is no tensor's memory")


def _tensor_v2(
    memory: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    requires_grad: Any,
    hooks: Any,
    metadata: Any = None,
) -> _Described:
    if not isinstance(memory, _Memory) or memory.dtype is None:
        raise CorruptError("data.pkl makes a tensor of what is no typed memory")
    return _checked(memory, memory.dtype, offset, shape, strides, hooks, metadata)


def _tensor_v3(
    memory: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    requires_grad: Any,
    hooks: Any,
    dtype: Any,
    metadata: Any = None,
) -> _Described:
    if not isinstance(memory, _Memory) or not isinstance(dtype, str):
        raise CorruptError("data.pkl makes a tensor of what is no memory")
    return _checked(memory, dtype, offset, shape, strides, hooks, metadata)


def _checked(
    memory: _Memory, dtype: str, offset: Any, shape: Any, strides: Any, hooks: Any, metadata: Any
) -> _Described:
    if hooks or metadata:
        raise UnsupportedError("a tensor with hooks, or one that stands for a conjugate")
    try:
        tensor_nbytes(dtype, shape)
    except ShardkeepError as error:
        raise CorruptError(str(error)) from None
    if len(strides) != len(shape) or not all(_is_count(one) for one in (*strides, offset)):
        raise CorruptError("data.pkl has strides that are none")
    return _Described(memory.key, dtype, offset, tuple(shape), tuple(strides))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT


def torch_size(values: Any) -> tuple[int, ...]:
    """What stands for a torch.Size: plain counts."""
    if (
        not isinstance(values, tuple | list)
        or len(values) > MAX_NDIM  # type: ignore[arg-type]
        or not all(map(_is_count, values))  # type: ignore[arg-type]
    ):
        raise CorruptError("a shape is none")
    return tuple(values)  # type: ignore[arg-type]


def _parameter(found: Any, requires_grad: Any, hooks: Any) -> _Described:
    if not isinstance(found, _Described) or hooks:
        raise CorruptError("data.pkl makes a parameter of what is no tensor")
    return found


def ordered_dict() -> dict[Any, Any]:
    """What stands for an empty OrderedDict."""
    return {}


def dtype_names() -> dict[tuple[str, str], str]:
    """All dtypes of torch as a pickle names them; those that we lack are named as torch does."""
    ours = {("torch", name): dtype for name, dtype in TORCH_NAMES.items()}
    return ours | {("torch", name): f"torch.{name}" for name in OTHER_TORCH_NAMES}


_KNOWN: Known = {
    **dtype_names(),
    **{("torch", name): _Memory("", dtype) for name, dtype in STORAGE_NAMES.items()},
    ("torch.storage", "UntypedStorage"): _Memory("", None),
    ("torch", "UntypedStorage"): _Memory("", None),
    ("torch", "Size"): torch_size,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): ordered_dict,
}
