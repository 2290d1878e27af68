"""Which lies can a safetensors file tell, and a folder of them with an index?"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torture.attacks.attack import HARMLESS, Attack, Row, attacks_of
from torture.attacks.pickles import RUNNING, SYSTEM
from torture.attacks.special_files import SPECIAL, hole

CORRUPT = "CorruptError"
FILE = "model.safetensors"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"

Make = Callable[[Path], None]


def encoded(text: str | bytes, data: bytes, length: int | None = None) -> bytes:
    """A file of this header and these data."""
    raw = text if isinstance(text, bytes) else text.encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    """What a header says of a tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def file_of(entries: Any, nbytes: int = 8, length: int | None = None) -> bytes:
    """A file of these entries and so many zeros."""
    return encoded(json.dumps(entries), bytes(nbytes), length)


SOUND = file_of({"w": entry()})


def _write(data: bytes, name: str = FILE) -> Make:
    def make(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return make


def _entries(nbytes: int = 8, **entries: Any) -> Make:
    return _write(file_of(entries, nbytes))


def _one(**fields: Any) -> Make:
    return _entries(w={**entry(), **fields})


def _text(text: str | bytes, nbytes: int = 8) -> Make:
    return _write(encoded(text, bytes(nbytes)))


def _noted(metadata: Any) -> Make:
    return _write(file_of({"__metadata__": metadata, "w": entry()}))


def _put(put: Callable[[Path], None]) -> Make:
    def make(folder: Path) -> None:
        (folder / FILE).write_bytes(SOUND)
        put(folder / FILE)

    return make


_DENSE = json.dumps({f"{n:x}": {} for n in range(10**5)})
_W = json.dumps(entry())
_FILES: list[Row] = [
    ("sound", HARMLESS, "", _write(SOUND)),
    ("empty", CORRUPT, "do not hold the header", _write(b"")),
    ("seven-bytes", CORRUPT, "do not hold the header", _write(bytes(7))),
    ("length-2**63", CORRUPT, "do not hold the header", _write(encoded("{}", b"", 2**63))),
    ("length-2**64-1", CORRUPT, "do not hold the header", _write(encoded("{}", b"", 2**64 - 1))),
    ("length-beyond-file", CORRUPT, "do not hold the header", _write(encoded("{}", b"", 10**6))),
    ("length-0", CORRUPT, "no JSON", _write(encoded("", b""))),
    (
        "length-of-a-hole",
        CORRUPT,
        "do not hold the header",
        _put(lambda f: (f.write_bytes(encoded("{}", b"", 2**38)), hole(2**40)(f))[1]),
    ),
    ("cut-off", CORRUPT, "the file at", _write(SOUND[:-1])),
    ("extended", CORRUPT, "the file at", _write(SOUND + b"\0")),
    ("pickle", CORRUPT, "do not hold the header", _write(SYSTEM)),
    ("git-lfs", CORRUPT, "git lfs pull", _write(b"version https://git-lfs.github.com/spec/v1\n")),
    ("no-json", CORRUPT, "no JSON", _text("w: 1")),
    ("a-list", CORRUPT, "no JSON", _text("[]")),
    ("not-utf8", CORRUPT, "no JSON", _text(b'{"\xff":' + _W.encode() + b"}")),
    ("bottomless", CORRUPT, "nested too deeply|no JSON", _text('{"a":' + "[" * 10**5)),
    (
        "bottomless-note",
        CORRUPT,
        "nested too deeply|no JSON",
        _text('{"__metadata__":' + "[" * 10**5),
    ),
    ("dense", CORRUPT, "more entries", _text(_DENSE)),
    ("hole", CORRUPT, "without holes", _one(data_offsets=[4, 12])),
    ("overlap", CORRUPT, "without holes", _entries(12, w=entry(), x=entry(offsets=[4, 12]))),
    ("same-place", CORRUPT, "without holes", _entries(w=entry(), x=entry())),
    ("reversed", CORRUPT, "does not fit", _one(data_offsets=[8, 0])),
    ("negative", CORRUPT, "does not fit", _one(data_offsets=[-8, 0])),
    ("beyond-file", CORRUPT, "the tensors end", _one(shape=[2**20], data_offsets=[0, 2**22])),
    ("beyond-2**63", CORRUPT, "does not fit", _one(data_offsets=[2**63, 2**63 + 8])),
    ("three-offsets", CORRUPT, "no JSON", _one(data_offsets=[0, 4, 8])),
    ("shape-2**63", CORRUPT, r"2\*\*63", _one(shape=[2**63])),
    ("shape-product", CORRUPT, r"2\*\*63", _one(shape=[2**32, 2**32])),
    ("shape-behind-zero", CORRUPT, r"2\*\*63", _one(shape=[0, 2**62, 2**62])),
    ("shape-negative", CORRUPT, "not from 0 to", _one(shape=[-2])),
    ("shape-of-65-dims", CORRUPT, "65 dims", _one(shape=[1] * 65)),
    ("shape-of-floats", CORRUPT, "no JSON", _one(shape=[1e300])),
    ("shape-of-endless", CORRUPT, "no JSON", _text('{"w":{"dtype":"F32","shape":[1e999]}}')),
    ("dtype-objects", CORRUPT, "unknown dtype", _one(dtype="O")),
    ("dtype-number", CORRUPT, "no JSON", _one(dtype=7)),
    ("dtype-half-bytes", "UnsupportedError", "smaller than a byte", _one(dtype="F4")),
    (
        "key-twice",
        CORRUPT,
        "without holes|twice",
        _text(f'{{"w":{_W},"w":{_W[:-8]}[8, 16]}}}}', 16),
    ),
    ("bare-entry", CORRUPT, "no JSON", _text('{"w":{}}')),
    ("notes-of-numbers", CORRUPT, "no JSON", _noted({"a": 1})),
    ("notes-nested", CORRUPT, "no JSON", _noted({"a": {"b": "c"}})),
    ("notes-are-text", CORRUPT, "no JSON", _noted("x")),
    *(
        (
            f"notes-pickle-{name}",
            HARMLESS,
            "",
            _noted({"state": base64.b64encode(data).decode(), "format": "pickle"}),
        )
        for name, data in list(RUNNING.items())[:4]
    ),
    ("notes-of-code", HARMLESS, "", _noted({"__reduce__": "os.system('touch hacked')"})),
    ("link-outside", CORRUPT, "is a link", _put(SPECIAL["link-outside"])),
    ("link-to-passwords", CORRUPT, "is a link", _put(SPECIAL["link-to-passwords"])),
    ("link-inside", CORRUPT, "is a link", _put(SPECIAL["link-inside"])),
    ("link-to-itself", "StorageError", "Too many levels", _put(SPECIAL["link-to-itself"])),
    ("pipe", "InvalidError", "is not a folder", _put(SPECIAL["pipe"])),
    ("device", "InvalidError", "is not a folder", _put(SPECIAL["device"])),
    ("socket", "InvalidError", "is not a folder", _put(SPECIAL["socket"])),
]


def _folder(index: Any, *, also: Callable[[Path], object] = lambda _: None) -> Make:
    """A model of two files, with an index of this content."""

    def make(folder: Path) -> None:
        (folder / SHARDS[0]).write_bytes(file_of({"a": entry()}))
        (folder / SHARDS[1]).write_bytes(file_of({"b": entry()}))
        raw = index if isinstance(index, bytes) else json.dumps(index).encode()
        (folder / INDEX).write_bytes(raw)
        also(folder)

    return make


_MAP = {"a": SHARDS[0], "b": SHARDS[1]}


def _mapped(**changed: Any) -> Make:
    return _folder({"weight_map": {**_MAP, **changed}})


def _shard(change: Callable[[Path], object]) -> Make:
    return _folder({"weight_map": _MAP}, also=lambda folder: change(folder / SHARDS[1]))


def _hub(link: str, *, blob_is: str = "file") -> Make:
    """A folder of the Hugging Face cache whose link is not as the cache makes it."""

    def make(folder: Path) -> None:
        secret = folder / "secret"
        secret.write_bytes(SOUND)
        (folder / "blobs").mkdir()
        if blob_is == "link":
            (folder / "blobs" / ("a" * 40)).symlink_to(secret)
        snapshot = folder / "snapshots" / "rev"
        snapshot.mkdir(parents=True)
        (snapshot / FILE).symlink_to(link)

    return make


_NOT_BESIDE = "lie beside it"
_FOLDERS: list[Row] = [
    ("sound", HARMLESS, "", _mapped()),
    ("index-escapes", CORRUPT, _NOT_BESIDE, _mapped(b="../secret.safetensors")),
    ("index-escapes-deep", CORRUPT, _NOT_BESIDE, _mapped(b="x/../../secret.safetensors")),
    ("index-absolute", CORRUPT, _NOT_BESIDE, _mapped(b="/etc/passwd.safetensors")),
    ("index-nul", CORRUPT, _NOT_BESIDE, _mapped(b="model\0.safetensors")),
    ("index-back-slash", CORRUPT, _NOT_BESIDE, _mapped(b="..\\secret.safetensors")),
    ("index-names-a-pickle", CORRUPT, _NOT_BESIDE, _mapped(b="pytorch_model.bin")),
    ("index-names-code", CORRUPT, _NOT_BESIDE, _mapped(b="modeling.py")),
    ("index-names-nothing", CORRUPT, _NOT_BESIDE, _mapped(b="")),
    ("index-names-a-number", CORRUPT, "is no index", _mapped(b=7)),
    ("index-empty", CORRUPT, "is no index", _folder(b"")),
    ("index-without-map", CORRUPT, "is no index", _folder({"metadata": {}})),
    ("index-without-tensors", CORRUPT, "lists no tensor", _folder({"weight_map": {}})),
    ("index-a-list", CORRUPT, "is no index", _folder({"weight_map": list(_MAP)})),
    ("index-pickle", CORRUPT, "is no index", _folder(SYSTEM)),
    ("index-bottomless", CORRUPT, "is no index", _folder(b'{"x":' + b"[" * 10**5)),
    ("index-not-utf8", CORRUPT, "is no index", _folder(b'{"weight_map":{"\xff":"a"}}')),
    (
        "index-of-a-terabyte",
        CORRUPT,
        "expected at most",
        _folder({"weight_map": _MAP}, also=lambda f: hole(2**40)(f / INDEX)),
    ),
    ("index-other-model", CORRUPT, "not of the same model", _mapped(c=SHARDS[0])),
    ("index-missing-file", "NotFoundError", "lacks the file", _mapped(c="other.safetensors")),
    ("shard-missing", "NotFoundError", "lacks the file", _shard(Path.unlink)),
    ("shard-pickle", CORRUPT, "do not hold the header", _shard(lambda f: f.write_bytes(SYSTEM))),
    (
        "key-in-both",
        CORRUPT,
        "is in both",
        _folder(
            {"weight_map": _MAP},
            also=lambda f: [
                (f / name).write_bytes(file_of({key: entry(), "c": entry(offsets=[8, 16])}, 16))
                for key, name in _MAP.items()
            ],
        ),
    ),
    (
        "half-a-model",
        "NotFoundError",
        "1 of the 2 files",
        lambda f: _write(SOUND, SHARDS[0])(f),
    ),
    (
        "half-of-99999",
        "NotFoundError",
        "1 of the 99999 files",
        lambda f: _write(SOUND, "model-00001-of-99999.safetensors")(f),
    ),
    (
        "two-models",
        "InvalidError",
        "which of them is the model",
        _folder({"weight_map": _MAP}, also=lambda f: (f / FILE).write_bytes(SOUND)),
    ),
    (
        "model-and-dcp",
        "InvalidError",
        "could be a checkpoint of",
        _folder({"weight_map": _MAP}, also=lambda f: (f / ".metadata").write_bytes(SYSTEM)),
    ),
    (
        "pickles-beside",
        HARMLESS,
        "",
        _folder(
            {"weight_map": _MAP},
            also=lambda f: [
                (f / name).write_bytes(SYSTEM)
                for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "rng.pth")
            ],
        ),
    ),
    *(
        (
            f"index-{name}",
            CORRUPT,
            "regular files only|is a link",
            _folder({"weight_map": _MAP}, also=lambda f, put=put: put(f / INDEX)),
        )
        for name, put in SPECIAL.items()
    ),
    *(
        (f"shard-{name}", CORRUPT, "regular files only|is a link", _shard(put))
        for name, put in SPECIAL.items()
    ),
]
_CACHE: list[Row] = [
    ("cache-link-to-passwords", CORRUPT, "none that the Hugging Face", _hub("/etc/passwd")),
    ("cache-link-escapes", CORRUPT, "none that the Hugging Face", _hub("../../secret")),
    ("cache-link-past-blobs", CORRUPT, "none that", _hub(f"../../blobs/../secret/{'a' * 40}")),
    ("cache-link-far-up", CORRUPT, "none that", _hub(f"{'../' * 8}blobs/{'a' * 40}")),
    (
        "cache-blob-is-a-link",
        CORRUPT,
        "none that",
        _hub(f"../../blobs/{'a' * 40}", blob_is="link"),
    ),
    ("cache-blob-missing", "NotFoundError", "", _hub(f"../../blobs/{'b' * 40}")),
]

SAFETENSORS: list[Attack] = [
    *attacks_of("safetensors", _FILES, file=FILE),
    *attacks_of("hf", _FOLDERS),
    *attacks_of("hf", _CACHE, file="snapshots/rev"),
]
