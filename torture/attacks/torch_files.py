"""Which lies can a file of torch.save tell?"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torture.attacks.attack import HARMLESS, Attack, Row, attacks_of
from torture.attacks.dcp_folders import BYTEARRAY_BOMB, NOT_RUN, archive, saved, strided
from torture.attacks.pickles import COSTLY, CYCLE, LAUGHS, RUNNING, SYSTEM, call, pickled, text
from torture.attacks.special_files import SPECIAL, hole

FILE = "model.pt"
REFUSED = "UnsupportedError|CorruptError"
Make = Callable[[Path], None]


def _write(data: bytes) -> Make:
    def make(folder: Path) -> None:
        (folder / FILE).write_bytes(data)

    return make


def _tar() -> bytes:
    """As torch wrote files at its very beginning, with names that lead out of the folder."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        for name in ("../../hacked", "storages", "tensors", "pickle"):
            entry = tarfile.TarInfo(name)
            entry.size = len(SYSTEM)
            file.addfile(entry, io.BytesIO(SYSTEM))
    return made.getvalue()


def _legacy(value: Any) -> bytes:
    made = io.BytesIO()
    torch.save(value, made, _use_new_zipfile_serialization=False)
    return made.getvalue()


def _old(data: bytes) -> bytes:
    """As torch wrote files before 1.6, with this pickle in place of the value's."""
    sound = _legacy(None)
    # Three pickles come first: a magic number, the version, the machine.
    at = 0
    for _ in range(3):
        at = sound.index(b".", at) + 1
    return sound[:at] + data + pickled(b"]")


def _script() -> bytes:
    """An archive that says of itself that it holds compiled code."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("archive/data.pkl", SYSTEM)
        file.writestr("archive/constants.pkl", SYSTEM)
        file.writestr("archive/code/__torch__.py", "import os")
        file.writestr("archive/version", b"3\n")
    return made.getvalue()


def _overlapping() -> bytes:
    """Entries of one archive that lie in the same bytes."""
    raw = bytearray(saved({"a": torch.zeros(4000), "b": torch.ones(4000)}))
    first, second = raw.index(b"PK\x03\x04", 1), raw.rindex(b"data/1")
    listed = raw.rindex(b"PK\x01\x02", 0, second)
    header = raw.rindex(b"PK\x03\x04", 0, raw.index(b"data/0"))
    raw[listed + 42 : listed + 46] = header.to_bytes(4, "little")
    assert first
    return bytes(raw)


_ROWS: list[Row] = [
    ("sound", HARMLESS, "", _write(saved({"w": torch.arange(4.0), "step": 7}))),
    ("sound-old", HARMLESS, "", _write(_legacy({"w": torch.arange(4.0), "step": 7}))),
    *((f"bare-{name}", REFUSED, NOT_RUN, _write(data)) for name, data in RUNNING.items()),
    *((f"zip-{name}", REFUSED, NOT_RUN, _write(archive(data))) for name, data in RUNNING.items()),
    *((f"old-{name}", REFUSED, NOT_RUN, _write(_old(data))) for name, data in RUNNING.items()),
    ("zip-bytearray-bomb", REFUSED, "bytearray", _write(archive(BYTEARRAY_BOMB))),
    ("old-bytearray-bomb", REFUSED, "bytearray", _write(_old(BYTEARRAY_BOMB))),
    ("zip-laughs", REFUSED, "over and over", _write(archive(LAUGHS))),
    ("old-laughs", REFUSED, "over and over", _write(_old(LAUGHS))),
    ("zip-cycle", REFUSED, "over and over|itself", _write(archive(CYCLE))),
    (
        "zip-of-one-item",
        REFUSED,
        "over and over",
        _write(archive(strided(size=(2**34,), stride=(0,)))),
    ),
    (
        "zip-longer-than-memory",
        REFUSED,
        "cannot be read",
        _write(archive(strided(size=(2**20,), stride=(1,)))),
    ),
    (
        "zip-longer-than-entry",
        REFUSED,
        "cannot be read",
        _write(archive(strided(size=(2**16,), stride=(1,), numel=2**16))),
    ),
    (
        "zip-bomb",
        REFUSED,
        "is compressed",
        _write(archive(pickled(b"N"), compressed=True, memory=bytes(2**26))),
    ),
    (
        "zip-bomb-of-pickle",
        REFUSED,
        "is compressed",
        _write(archive(pickled(b"N" * 2**24), compressed=True)),
    ),
    ("zip-entries-overlap", REFUSED, "overlap", _write(_overlapping())),
    ("zip-without-end", REFUSED, "", _write(archive(pickled(b"N"))[:-22])),
    ("zip-of-a-script", REFUSED, "", _write(_script())),
    (
        "zip-with-attribute",
        REFUSED,
        NOT_RUN,
        _write(archive(pickled(call("torch", "load", text("x"))))),
    ),
    ("empty", REFUSED, "", _write(b"")),
    ("zeros", "UnsupportedError", "no file that torch.save", _write(bytes(4096))),
    ("tar", "UnsupportedError", "no file that torch.save", _write(_tar())),
    ("terabyte", REFUSED, "", lambda f: (_write(b"PK\x03\x04")(f), hole(2**40)(f / FILE))[1]),
    *(
        (f"zip-{name}", REFUSED, "", _write(archive(data)))
        for name, data in COSTLY.items()
        if name != "far-memo"
    ),
    (
        "pipe",
        "InvalidError|NotFoundError",
        "",
        lambda f: (_write(b"")(f), SPECIAL["pipe"](f / FILE))[1],
    ),
    (
        "device",
        "InvalidError|NotFoundError",
        "",
        lambda f: (_write(b"")(f), SPECIAL["device"](f / FILE))[1],
    ),
]

TORCH: list[Attack] = attacks_of("torch", _ROWS, file=FILE)
