"""Write the seeds of the fuzzing: `python -m torture.fuzz_seeds` to conformance/fuzz."""

from __future__ import annotations

import io
import json
import pickle
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from torture.attacks.forging import canonical, forgery
from torture.attacks.safetensors_files import entry
from torture.fuzz_targets import CORPUS

V1 = Path(__file__).parents[1] / "conformance" / "formats" / "v1"


def all_seeds() -> Mapping[str, Mapping[str, bytes]]:
    """By target and name; what a real save has written, or is written as others do."""
    small = forgery()
    with tempfile.TemporaryDirectory() as home:
        small.write(Path(home))
        manifest = (Path(home) / "manifest.json").read_bytes()
        file = (Path(home) / small.data_name).read_bytes()
    headers = {one.stem[-7:]: _header(one.read_bytes()) for one in sorted(V1.glob("*-0*-0.safe*"))}
    return {
        "manifest": {
            "small": _unsigned(manifest),
            "v1": _unsigned((V1 / "manifest.json").read_bytes()),
        },
        "header": {"small": _header(file), **headers},
        "dcp_metadata": {"dcp": _dcp(), "old": pickle.dumps({"a": (1, [2.0, None])}, 2)},
        "torch_archive": {
            "tensor": _without_sums(_saved(torch.arange(4.0).reshape(2, 2).t())),
            "value": _saved({"a": [1]}),
        },
        "hf_index": {
            "index": json.dumps(
                {
                    "metadata": {"total_size": 16},
                    "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"},
                }
            ).encode()
        },
        "safetensors": {
            "file": json.dumps(
                {
                    "__metadata__": {"format": "pt", "b": "a"},
                    "a": entry(),
                    "c": entry("C64", (1,), (8, 16)),
                    "e": entry("U8", (0, 3), (16, 16)),
                }
            ).encode()
        },
        "report": {"report": canonical(_REPORT).encode()},
    }


_REPORT = {
    "save_id": "0123456789abcdef",
    "ranks": [0, 1],
    "hosts": ["a"],
    "host_of": [0, 0],
    "nbytes": [8, 9],
    "seconds": {"plan": [0.1, 0.2]},
    "commit_seconds": 0.1,
    "version": 1,
}


def _unsigned(manifest: bytes) -> bytes:
    return manifest[:-45]


def _header(file: bytes) -> bytes:
    return file[8 : 8 + int.from_bytes(file[:8], "little")].rstrip(b" ")


def _saved(value: object) -> bytes:
    made = io.BytesIO()
    torch.save(value, made)
    return made.getvalue()


def _without_sums(archive: bytes) -> bytes:
    """The archive with no CRC-32 in its directory, so that changes of its entries get further."""
    raw, at = bytearray(archive), archive.find(b"PK\x01\x02")
    while at >= 0:
        raw[at + 16 : at + 20] = bytes(4)
        at = archive.find(b"PK\x01\x02", at + 1)
    return bytes(raw)


def _dcp() -> bytes:
    state = {"m": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(0)}, "step": 3, "l": [1]}
    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=home)  # pyright: ignore[reportPrivateImportUsage]
        return (Path(home) / ".metadata").read_bytes()


def main() -> None:
    """Write all of them."""
    for target, seeds in all_seeds().items():
        folder = CORPUS / target / "seeds"
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in seeds.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
