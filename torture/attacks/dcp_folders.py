"""Which lies can a folder of torch DCP tell, and where may it hide pickles?"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from torture.attacks.attack import HARMLESS, Attack, Row, attacks_of
from torture.attacks.pickles import (
    COSTLY,
    CYCLE,
    LAUGHS,
    RUNNING,
    SYSTEM,
    call,
    named,
    number,
    pickled,
    text,
)
from torture.attacks.special_files import SPECIAL, hole

CORRUPT, UNSUPPORTED = "CorruptError", "UnsupportedError"
FILE = "__0_0.distcp"
Make = Callable[[Path], None]


def saved(value: Any) -> bytes:
    """What torch.save makes of a value."""
    made = io.BytesIO()
    torch.save(value, made)
    return made.getvalue()


def archive(data_pkl: bytes, *, compressed: bool = False, memory: bytes = bytes(8)) -> bytes:
    """A file of torch.save with this pickle in it."""
    made = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(made, "w", method) as file:
        file.writestr("archive/data.pkl", data_pkl)
        file.writestr("archive/byteorder", b"little")
        file.writestr("archive/data/0", memory)
        file.writestr("archive/version", b"3\n")
    return made.getvalue()


def strided(
    *, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0, numel: int = 2
) -> bytes:
    """The pickle of a tensor with this view of memory of so many floats."""
    memory = (
        b"("
        + text("storage")
        + named("torch", "FloatStorage")
        + text("0")
        + text("cpu")
        + number(numel)
        + b"tQ"
    )
    tuples = [b"(" + b"".join(map(number, one)) + b"t" for one in (size, stride)]
    hooks = call("collections", "OrderedDict")
    arguments = memory, number(offset), *tuples, b"\x89", hooks
    return pickled(call("torch._utils", "_rebuild_tensor_v2", *arguments))


@dataclass
class Folder:
    """A folder of DCP in parts: one tensor `w` of two floats, one value `v`."""

    tensor: bytes = field(default_factory=lambda: saved(torch.tensor([1.0, 2.0])))
    value: bytes = field(default_factory=lambda: saved({"step": 7}))
    size: Any = (2,)
    chunks: Any = (((0,), (2,)),)
    dtype: Any = torch.float32
    file: Any = FILE
    offset: Any = 0
    length: Any = None
    path: Any = ("w",)
    descriptors: Any = None
    change: Callable[[Metadata], object] = lambda _: None
    metadata: Callable[[bytes], bytes] = lambda raw: raw

    def write(self, folder: Path) -> None:
        """The files."""
        (folder / FILE).write_bytes(self.tensor + self.value)
        chunks = [
            ChunkStorageMetadata(torch.Size(start), torch.Size(size)) for start, size in self.chunks
        ]
        properties = TensorProperties(dtype=self.dtype)
        size = torch.Size(self.size)
        length = len(self.tensor) if self.length is None else self.length
        info = _StorageInfo(self.file, self.offset, length, self.descriptors)
        made = Metadata(
            {"w": TensorStorageMetadata(properties, size, chunks), "v": BytesStorageMetadata()},
            planner_data={"w": self.path, "v": ("v",)},
            storage_data={
                **{MetadataIndex("w", torch.Size(start)): info for start, _ in self.chunks},
                MetadataIndex("v"): _StorageInfo(FILE, len(self.tensor), len(self.value)),
            },
        )
        self.change(made)
        (folder / ".metadata").write_bytes(self.metadata(pickle.dumps(made)))


def _of(**fields: Any) -> Make:
    return lambda folder: Folder(**fields).write(folder)


def _metadata(data: bytes) -> Make:
    return _of(metadata=lambda _: data)


def _also(alter: Callable[[Path], object]) -> Make:
    def make(folder: Path) -> None:
        Folder().write(folder)
        alter(folder)

    return make


def _planned(**paths: Any) -> Make:
    return _of(change=lambda made: made.planner_data.update(paths))


def _many(less: int) -> Callable[[Metadata], None]:
    """A hundred tensors that lie in the same bytes, each `less` shorter than the one before."""

    def change(made: Metadata) -> None:
        tensor, where = made.state_dict_metadata["w"], made.storage_data[_W]
        for at in range(100):
            made.state_dict_metadata[f"w{at}"] = tensor
            shorter = replace(where, length=where.length - less * at)
            made.storage_data[MetadataIndex(f"w{at}", torch.Size((0,)))] = shorter

    return change


def _state(key: Any, value: Any) -> Make:
    return _of(change=lambda made: made.state_dict_metadata.update({key: value}))


_W = MetadataIndex("w", torch.Size((0,)))
_NO_PLACE = "has no place in such a file|which no such file has|no pickle as it should be"
BYTEARRAY_BOMB = pickled(call("builtins", "bytearray", number(2**30)))
_NUMPY = pickled(call("numpy._core.multiarray", "_reconstruct", named("numpy", "ndarray")))

_METADATA: list[Row] = [
    ("sound", HARMLESS, "", _of()),
    *(
        (f"metadata-{name}", f"{UNSUPPORTED}|{CORRUPT}", _NO_PLACE, _metadata(data))
        for name, data in RUNNING.items()
    ),
    *(
        (f"metadata-{name}", CORRUPT, "metadata", _metadata(data))
        for name, data in {**COSTLY, "laughs": LAUGHS, "cycle": CYCLE}.items()
    ),
    ("metadata-empty", CORRUPT, "no pickle", _metadata(b"")),
    ("metadata-cut-off", CORRUPT, "no pickle|is cut off", _of(metadata=lambda raw: raw[:-30])),
    ("metadata-of-nothing", CORRUPT, "no Metadata", _metadata(pickled(b"N"))),
    ("metadata-of-persistent", CORRUPT, "outside of it", _metadata(pickled(text("x") + b"Q"))),
    (
        "metadata-record-with-arguments",
        CORRUPT,
        "takes no arguments",
        _metadata(pickled(call("torch.distributed.checkpoint.metadata", "Metadata", number(1)))),
    ),
    (
        "metadata-of-a-terabyte",
        CORRUPT,
        "expected at most",
        _also(lambda f: hole(2**40)(f / ".metadata")),
    ),
    ("metadata-old-code-appended", HARMLESS, "", _of(metadata=lambda raw: raw + SYSTEM)),
    ("file-escapes", CORRUPT, "does not lie in", _of(file="../secret")),
    ("file-absolute", CORRUPT, "does not lie in", _of(file="/etc/passwd")),
    ("file-nul", CORRUPT, "does not lie in", _of(file="x\0y")),
    ("file-dots", CORRUPT, "does not lie in", _of(file="..")),
    ("file-back-slash", CORRUPT, "does not lie in", _of(file="..\\x")),
    ("file-number", CORRUPT, "does not lie in", _of(file=7)),
    ("file-missing", "NotFoundError", "lacks the file", _of(file="__9_0.distcp")),
    ("file-is-metadata", f"{UNSUPPORTED}|{CORRUPT}", "", _of(file=".metadata", length=100)),
    ("offset-negative", CORRUPT, "no place or size", _of(offset=-1)),
    ("offset-beyond-file", CORRUPT, "was cut off", _of(offset=2**40)),
    ("offset-2**63", CORRUPT, "no place or size", _of(offset=2**63)),
    ("offset-float", CORRUPT, "no place or size", _of(offset=0.0)),
    ("length-beyond-file", CORRUPT, "share the bytes", _of(length=10**9)),
    ("length-too-short", CORRUPT, "cut off|not as torch.save", _of(length=100)),
    ("stream-transform", UNSUPPORTED, "stream transform", _of(descriptors=["zstd"])),
    ("shape-larger", CORRUPT, "do not make it up", _of(size=(4,))),
    ("shape-2**63", CORRUPT, r"2\*\*63", _of(size=(2**62,))),
    ("shape-product", CORRUPT, r"2\*\*63", _of(size=(2**40, 2**40))),
    ("chunk-outside", CORRUPT, "not within", _of(chunks=[((1,), (2,))])),
    ("chunk-other-dims", CORRUPT, "not within", _of(chunks=[((0, 0), (2, 1))])),
    ("chunk-twice", CORRUPT, "twice", _of(chunks=[((0,), (2,)), ((0,), (2,))])),
    (
        "chunk-overlap",
        CORRUPT,
        "do not make it up|overlap",
        _of(chunks=[((0,), (2,)), ((1,), (1,))]),
    ),
    ("chunk-hole", CORRUPT, "do not make it up", _of(chunks=[((0,), (1,))])),
    (
        "chunk-larger-than-file",
        CORRUPT,
        "which takes 4398046511104",
        _of(size=(2**40,), chunks=[((0,), (2**40,))]),
    ),
    ("same-bytes-a-hundred-times", CORRUPT, "share the bytes", _of(change=_many(1))),
    ("tied-a-hundred-times", HARMLESS, "", _of(change=_many(0))),
    ("dtype-quantized", UNSUPPORTED, "cannot hold", _of(dtype=torch.quint8)),
    ("dtype-other-than-file", CORRUPT, "not of one save", _of(dtype=torch.int32)),
    ("key-no-text", CORRUPT, "no text", _state(7, BytesStorageMetadata())),
    ("key-unplaced", CORRUPT, "nothing says where", _state("x", BytesStorageMetadata())),
    ("key-of-nothing", CORRUPT, "no TensorStorageMetadata", _state("x", None)),
    ("path-deep", CORRUPT, "is none", _planned(w=("a",) * 201)),
    ("path-empty", CORRUPT, "is none", _planned(w=())),
    ("path-of-nothing", CORRUPT, "is none", _planned(w=(None,))),
    ("path-2**40", CORRUPT, "a list of", _planned(w=("a", 2**40))),
    ("path-in-both", CORRUPT, "both a dict and a list", _planned(w=("a", 0), v=("a", "b"))),
    ("path-of-another", CORRUPT, "something else", _planned(w=("v",))),
    ("path-through-a-leaf", CORRUPT, "no dict or list", _planned(v=("w", "x"))),
    *(
        (
            f"metadata-{name}",
            CORRUPT,
            "regular files only",
            _also(lambda f, put=put: put(f / ".metadata")),
        )
        for name, put in SPECIAL.items()
        if name != "link-to-itself"
    ),
    (
        "metadata-link-to-itself",
        "NotFoundError",
        "holds no checkpoint",
        _also(lambda f: SPECIAL["link-to-itself"](f / ".metadata")),
    ),
    *(
        (f"data-{name}", CORRUPT, "regular files only", _also(lambda f, put=put: put(f / FILE)))
        for name, put in SPECIAL.items()
    ),
]

NOT_RUN = "nothing was run|cannot be read|not as torch.save|no ZIP|no pickle"
_ITEMS: list[Row] = [
    *(
        (
            f"tensor-{name}",
            f"{UNSUPPORTED}|{CORRUPT}",
            f"{_NO_PLACE}|{NOT_RUN}",
            _of(tensor=archive(data)),
        )
        for name, data in RUNNING.items()
    ),
    *(
        (f"value-{name}", f"{UNSUPPORTED}|{CORRUPT}", NOT_RUN, _of(value=archive(data)))
        for name, data in RUNNING.items()
    ),
    ("tensor-bare-pickle", UNSUPPORTED, "no ZIP archive", _of(tensor=SYSTEM.ljust(2000))),
    ("value-bare-pickle", f"{UNSUPPORTED}|{CORRUPT}", NOT_RUN, _of(value=SYSTEM)),
    ("tensor-of-nothing", CORRUPT, "describes no tensor", _of(tensor=archive(pickled(b"N")))),
    (
        "tensor-larger-than-memory",
        CORRUPT,
        "which takes 4194304",
        _of(
            tensor=archive(strided(size=(2**20,), stride=(1,))),
            size=(2**20,),
            chunks=[((0,), (2**20,))],
        ),
    ),
    (
        "tensor-of-one-item",
        CORRUPT,
        "which takes 274877906944",
        _of(
            tensor=archive(strided(size=(2**36,), stride=(0,))),
            size=(2**36,),
            chunks=[((0,), (2**36,))],
        ),
    ),
    (
        "tensor-before-its-memory",
        CORRUPT,
        "strides|is none|no pickle",
        _of(tensor=archive(strided(size=(2,), stride=(1,), offset=-1))),
    ),
    (
        "tensor-compressed",
        CORRUPT,
        "is compressed",
        _of(tensor=archive(strided(size=(2,), stride=(1,)), compressed=True)),
    ),
    (
        "value-zip-bomb",
        f"{UNSUPPORTED}|{CORRUPT}",
        "is compressed",
        _of(value=archive(pickled(b"N"), compressed=True, memory=bytes(2**27))),
    ),
    ("value-bytearray-bomb", UNSUPPORTED, "bytearray", _of(value=archive(BYTEARRAY_BOMB))),
    ("value-laughs", CORRUPT, "over and over", _of(value=archive(LAUGHS))),
    ("value-cycle", CORRUPT, "over and over", _of(value=archive(CYCLE))),
    (
        "value-of-one-item",
        CORRUPT,
        "over and over",
        _of(value=archive(strided(size=(2**36,), stride=(0,)))),
    ),
    (
        "value-larger-than-memory",
        CORRUPT,
        "cannot be read",
        _of(value=archive(strided(size=(2**30,), stride=(1,)))),
    ),
    ("value-of-numpy", f"{UNSUPPORTED}|{CORRUPT}", NOT_RUN, _of(value=archive(_NUMPY))),
    *(
        (f"value-{name}", f"{UNSUPPORTED}|{CORRUPT}", "", _of(value=archive(data)))
        for name, data in COSTLY.items()
        if name != "far-memo"
    ),
    ("value-far-memo", HARMLESS, "", _of(value=archive(COSTLY["far-memo"]))),
]

DCP: list[Attack] = attacks_of("dcp", [*_METADATA, *_ITEMS])
