"""What does the `.metadata` of a torch DCP folder say? Torch-free, and nothing is unpickled freely.

The file is a pickle. It is read by a machine that knows the names of DCP's classes and refuses
everything else; what comes of it is checked before it is believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError, ShardkeepError, UnsupportedError
from shardkeep.manifest import DTYPES, tensor_nbytes
from shardkeep.manifest.limits import MAX_INT, MAX_TREE_DEPTH
from shardkeep.translate.pickle_reading import Known, Record, read_pickle, record
from shardkeep.translate.torch_archive import dtype_names, ordered_dict, torch_size

MAX_METADATA_NBYTES = 256 * 1024 * 1024

Path = tuple[str | int, ...]
"""Keys of dicts and indices of lists, from the root down."""

# A chunk takes more bytes than this; a list that stands in many places would count again and again.
_MIN_CHUNK_NBYTES = 4


@dataclass(frozen=True, slots=True)
class Item:
    """Where something that DCP wrote lies: so many bytes of a file."""

    file: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class DcpTensor:
    """A tensor and its chunks, each with its item; empty ones are left out."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[tuple[Box, Item], ...]


@dataclass(frozen=True, slots=True)
class DcpMetadata:
    """All that a `.metadata` file says and that matters here."""

    tensors: Mapping[str, DcpTensor]
    objects: Mapping[str, Item]
    """What is no tensor: pickled by torch.save."""
    tied: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys of tensors that are the same items in the files as another's, with that one's key."""
    paths: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """The places of keys in the nested state, in its order; a key without one is at the root."""


def read_metadata(data: bytes, *, where: str) -> DcpMetadata:
    """The checked content of a `.metadata` file."""
    if len(data) > MAX_METADATA_NBYTES:
        raise CorruptError(f"{where} has {len(data)} bytes; expected {MAX_METADATA_NBYTES} at most")
    return _Reader(where, len(data)).read(read_pickle(data, known=_KNOWN, where=where))


class _Reader:
    def __init__(self, where: str, nbytes: int) -> None:
        self._where = where
        self._room = nbytes // _MIN_CHUNK_NBYTES

    def read(self, root: Any) -> DcpMetadata:
        fields = self._fields(root, "Metadata")
        listed = self._dict(fields.get("state_dict_metadata"), "state_dict_metadata")
        items = self._items(fields.get("storage_data"))
        tensors: dict[str, DcpTensor] = {}
        objects: dict[str, Item] = {}
        for key, found in listed.items():
            if type(key) is not str:
                raise self._corrupt("a key of the state is no text")
            if isinstance(found, Record) and found.name == "BytesStorageMetadata":
                objects[key] = self._item(items, key, None)
            else:
                tensors[key] = self._tensor(key, found, items)
        tied = _tied(tensors)
        alone = {key: tensor for key, tensor in tensors.items() if key not in tied}
        paths = self._paths(fields.get("planner_data"), listed)
        return DcpMetadata(alone, objects, tied, paths)

    def _corrupt(self, text: str) -> CorruptError:
        return CorruptError(f"{self._where} is not as DCP writes it: {text}")

    def _fields(self, found: Any, name: str) -> dict[Any, Any]:
        if not isinstance(found, Record) or found.name != name:
            raise self._corrupt(f"no {name} where one should be")
        return self._dict(found.state, name)

    def _dict(self, found: Any, name: str) -> dict[Any, Any]:
        if type(found) is not dict:
            raise self._corrupt(f"{name} has no fields")
        return cast("dict[Any, Any]", found)

    def _items(self, found: Any) -> dict[tuple[str, tuple[int, ...] | None], Any]:
        """The places in the files by key and first cell."""
        items: dict[tuple[str, tuple[int, ...] | None], Any] = {}
        for index, info in self._dict(found, "storage_data").items():
            fields = self._fields(index, "MetadataIndex")
            key, offset = fields.get("fqn"), fields.get("offset")
            if type(key) is not str or not (offset is None or type(offset) is tuple):
                raise self._corrupt("an index of storage_data names no key")
            items[key, None if offset is None else torch_size(offset)] = info
        return items

    def _item(
        self,
        items: Mapping[tuple[str, tuple[int, ...] | None], Any],
        key: str,
        offset: tuple[int, ...] | None,
    ) -> Item:
        if (key, offset) not in items:
            raise self._corrupt(f"nothing says where {key!r} at {offset} lies")
        fields = self._fields(items[key, offset], "_StorageInfo")
        if fields.get("transform_descriptors"):
            raise UnsupportedError(
                f"{self._where}: {key!r} was written through a stream transform (an extension of "
                "DCP's writer, such as compression), which is not read here; load it with DCP"
            )
        file, start, nbytes = (fields.get(n) for n in ("relative_path", "offset", "length"))
        return Item(self._file(file), self._count(start), self._count(nbytes))

    def _file(self, name: Any) -> str:
        if (
            type(name) is not str
            or not name
            or name in (".", "..")
            or any(sign in name for sign in "/\\\0")
        ):
            raise self._corrupt(f"the file {_shown(name)} does not lie in the checkpoint's folder")
        return name

    def _count(self, value: Any) -> int:
        if type(value) is not int or not 0 <= value <= MAX_INT:
            raise self._corrupt(f"{_shown(value)} is no place or size")
        return value

    def _tensor(self, key: str, found: Any, items: Any) -> DcpTensor:
        fields = self._fields(found, "TensorStorageMetadata")
        dtype, shape = self._dtype(key, fields.get("properties")), torch_size(fields.get("size"))
        try:
            tensor_nbytes(dtype, shape)
        except ShardkeepError as error:
            raise self._corrupt(f"{key!r}: {error}") from None
        listed = fields.get("chunks")
        if type(listed) is not list:
            raise self._corrupt(f"{key!r} has no list of chunks")
        chunks: dict[Box, Item] = {}
        for one in cast("list[Any]", listed):
            self._room -= 1
            if self._room < 0:
                raise self._corrupt("more chunks than a file of its size would list")
            box = self._box(key, one, shape)
            if box.is_empty:
                continue
            if box in chunks:
                raise self._corrupt(f"{key!r} lists the chunk {box} twice")
            chunks[box] = self._item(items, key, box.start)
        return DcpTensor(dtype, shape, tuple(chunks.items()))

    def _dtype(self, key: str, properties: Any) -> str:
        state = properties.state if isinstance(properties, Record) else None
        # TensorProperties sets its fields by a tuple, dtype and layout first.
        match state:
            case (str() as dtype, str() as layout, *_):
                pass
            case {"dtype": str() as dtype}:
                layout = "torch.strided"
            case _:
                raise self._corrupt(f"{key!r} has no dtype")
        if dtype not in DTYPES or layout != "torch.strided":
            raise UnsupportedError(
                f"{self._where}: {key!r} is {dtype} and {layout}, which a checkpoint cannot hold; "
                "load it with DCP and convert it"
            )
        return dtype

    def _box(self, key: str, found: Any, shape: tuple[int, ...]) -> Box:
        fields = self._fields(found, "ChunkStorageMetadata")
        start, sizes = torch_size(fields.get("offsets")), torch_size(fields.get("sizes"))
        stop = tuple(a + n for a, n in zip(start, sizes, strict=False))
        if not len(start) == len(sizes) == len(shape) or any(
            b > side for b, side in zip(stop, shape, strict=True) if 0 not in sizes
        ):
            raise self._corrupt(
                f"a chunk of {key!r} at {start} of shape {sizes} is not within {shape}"
            )
        return Box(start, stop)

    def _paths(self, found: Any, listed: Mapping[Any, Any]) -> dict[str, Path]:
        """The places in the state, where the planner has written them down."""
        if type(found) is not dict:
            return {}
        mapping = cast("dict[Any, Any]", found)
        return {key: self._path(key, path) for key, path in mapping.items() if key in listed}

    def _path(self, key: str, found: Any) -> Path:
        parts = cast("tuple[Any, ...] | list[Any]", found)
        if (
            type(found) not in (tuple, list)
            or not 0 < len(parts) <= MAX_TREE_DEPTH
            or not all(type(p) is str or (type(p) is int and 0 <= p <= MAX_INT) for p in parts)
        ):
            raise self._corrupt(f"the path of {key!r} is none")
        return tuple(parts)


def _tied(tensors: Mapping[str, DcpTensor]) -> dict[str, str]:
    """Keys of tensors that another key has as well. DCP writes no such folder, but reads it."""
    first: dict[DcpTensor, str] = {}
    found = {key: first.setdefault(tensor, key) for key, tensor in tensors.items() if tensor.chunks}
    return {key: other for key, other in found.items() if other != key}


def _shown(value: Any) -> str:
    """A value for a message; a nested one, which repr might never come out of, by its type."""
    return repr(value)[:100] if type(value) in (str, int, float) else f"a {type(value).__name__}"


def _layout(name: Any) -> str:
    return name if type(name) is str else ""


def _one(value: Any) -> Any:
    return value


def _path_of(*parts: Any) -> None:
    """A path says where the checkpoint was saved, which is nobody's business here."""


_METADATA = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
_PLANNER = "torch.distributed.checkpoint.planner"
_KNOWN: Known = {
    **dtype_names(),
    **{
        (_METADATA, name): record(name)
        for name in (
            "Metadata",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "MetadataIndex",
            "StorageMeta",
        )
    },
    **{(_FILES, name): record(name) for name in ("_StorageInfo", "_StoragePrefix")},
    # Megatron keeps the plans of all ranks beside what they came to. They are not looked at.
    **{
        (_PLANNER, name): record(name)
        for name in ("SavePlan", "WriteItem", "TensorWriteData", "BytesIOWriteData")
    },
    (_PLANNER, "WriteItemType"): _one,
    # Where earlier versions of torch had them.
    ("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties"): record(
        "TensorProperties"
    ),
    ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"): _one,
    (_METADATA, "_MEM_FORMAT_ENCODING"): _one,
    ("torch.serialization", "_get_layout"): _layout,
    ("torch", "Size"): torch_size,
    ("collections", "OrderedDict"): ordered_dict,
    **{
        (module, name): _path_of
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path")
    },
}
