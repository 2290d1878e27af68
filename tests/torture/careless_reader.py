"""A reader that makes every mistake that `hostile` must find; run by test_hostile.py."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import shardkeep as sk
from shardkeep.transfer import read
from torture import hostile_reader

load: Callable[..., Any] = sk.load


def careless_load(path: Path) -> Any:
    """Unpickles, looks elsewhere, believes sizes, raises what it likes."""
    if "metadata-system" in path.name:
        with (path / ".metadata").open("rb") as file:
            return pickle.load(file)
    if "link-to-passwords" in path.name:
        return (path / "manifest.json").resolve().read_bytes()
    if "shape-larger-than-data" in path.name:
        raise sk.CorruptError(f"{len(b'x' * 2**26)} bytes were taken, then it was refused")
    if "manifest-empty" in path.name:
        raise ValueError("not of ours")
    if "other-format" in path.name:
        raise sk.CorruptError("some other reason")
    return load(path)


if __name__ == "__main__":
    with (
        patch.object(sk, "load", careless_load),
        patch.object(read, "require_blocks", lambda *_: None),
    ):
        hostile_reader.main(Path(sys.argv[1]), sys.argv[2])
