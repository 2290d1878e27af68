"""How is a checkpoint forged, with every digest right but for the one lie in it?

A forger who knows the format computes its digests anew: they find damage, not malice. So an attack
changes parts of a forgery, and `write` makes files of them in which everything else fits.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import xxhash

import shardkeep as sk

Text = Callable[[str], str]
SAVE_ID = "0123456789abcdef"
_PAGE = 4096


def canonical(data: object) -> str:
    """JSON as the format wants it."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=True)


@dataclass
class Forgery:
    """A checkpoint of one data file in parts."""

    manifest: dict[str, Any]
    entries: dict[str, Any]
    notes: dict[str, Any]
    """What stands in `__metadata__` of the data file, without digests."""
    data: bytes
    manifest_text: Text = field(default=lambda text: text)
    """Changes the manifest's JSON before its digest is taken."""
    header_text: Text = field(default=lambda text: text)
    header_bytes: Callable[[bytes], bytes] = field(default=lambda data: data)
    """Changes all bytes before the data, before their digest is taken."""
    encoding: str = "utf-8"
    data_name: str = f"{SAVE_ID}-00000-0.safetensors"

    def tensor(self, key: str) -> list[Any]:
        """A row of the manifest's tensors."""
        return next(row for row in self.manifest["tensors"] if row[0] == key)

    def value(self, data: Any) -> None:
        """Put a value into the tree."""
        self.node({"value": data})

    def node(self, node: Any) -> None:
        """Put a node into the tree."""
        self.manifest["tree"]["dict"].append(["planted", node])

    def write(self, folder: Path) -> None:
        """The files of the checkpoint."""
        header = self._header()
        listed = self.manifest["files"]
        listed.setdefault("nbytes", [[len(header) + len(self.data), 0, 1]])
        listed.setdefault("header_nbytes", [[len(header), 0, 1]])
        listed.setdefault("header_digests", xxhash.xxh3_64_hexdigest(header))
        order = ("rank", "number", "nbytes", "header_nbytes", "header_digests")
        self.manifest["files"] = {key: listed[key] for key in (*order, *listed) if key in listed}
        (folder / self.data_name).write_bytes(header + self.data)
        text = self.manifest_text(canonical(self.manifest))
        write_manifest(folder, text[:-1].encode(self.encoding, "surrogatepass"))

    def _header(self) -> bytes:
        self.notes.setdefault("digests", _digests(self.data, self.notes["block"]))
        order = ("version", "save_id", "rank", "number", "block", "digests", "per_rank")
        notes = {key: self.notes[key] for key in (*order, *self.notes) if key in self.notes}
        text = canonical({"__metadata__": {"shardkeep": canonical(notes)}, **self.entries})
        raw = self.header_text(text).encode("utf-8", "surrogatepass")
        total = -(-(8 + len(raw)) // _PAGE) * _PAGE
        return self.header_bytes((total - 8).to_bytes(8, "little") + raw.ljust(total - 8))


def write_manifest(folder: Path, body: bytes) -> None:
    """A manifest of these bytes, with the digest that fits."""
    digest = xxhash.xxh3_128_hexdigest(body)
    (folder / "manifest.json").write_bytes(b'%b,"digest":"%b"}' % (body, digest.encode()))


def _digests(data: bytes, block: Any) -> str:
    if type(block) is not int or block < 1:
        return ""
    starts = range(0, len(data), block)
    return "".join(xxhash.xxh3_64_hexdigest(data[at : at + block]) for at in starts)


@cache
def _sound() -> Forgery:
    with tempfile.TemporaryDirectory() as home:
        state = {
            "w": torch.arange(100.0),
            "m": torch.arange(24, dtype=torch.int16).reshape(6, 4),
            "e": torch.empty(0, 3),
            "step": 7,
            "own": sk.per_rank([1, 2]),
            "s": torch.eye(3).to_sparse(),
        }
        sk.save(state, home, durable=False, threads=1, metadata={"note": "sound"})
        manifest = json.loads(Path(home, "manifest.json").read_bytes())
        file = next(Path(home).glob("*.safetensors")).read_bytes()
    del manifest["digest"]
    for column in ("nbytes", "header_nbytes", "header_digests"):
        del manifest["files"][column]
    length = 8 + int.from_bytes(file[:8], "little")
    entries = json.loads(file[8:length])
    notes = json.loads(entries.pop("__metadata__")["shardkeep"])
    del notes["digests"]
    # The same files in every run.
    manifest["save_id"] = notes["save_id"] = SAVE_ID
    return Forgery(manifest, entries, notes, file[length:])


def forgery() -> Forgery:
    """A sound checkpoint, to be changed."""
    return deepcopy(_sound())


def forged(change: Callable[[Forgery], object]) -> Callable[[Path], None]:
    """Makes a checkpoint that `change` was done to."""

    def make(folder: Path) -> None:
        made = forgery()
        change(made)
        made.write(folder)

    return make


def altered(change: Callable[[Path, str], object]) -> Callable[[Path], None]:
    """Makes a sound checkpoint, whose folder and data file's name are then given to `change`."""

    def make(folder: Path) -> None:
        made = forgery()
        made.write(folder)
        change(folder, made.data_name)

    return make
