"""Who holds which box of a tensor, and at which bytes of which file? Reads headers, no data."""

from __future__ import annotations

from typing import Any

from shardkeep.manifest import parse_file_name
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.threads import core_count

_MOST_BOXES = 10_000
_MOST_PLACED = 2_000


def tensor_page(opened: Opened, key: str) -> dict[str, Any]:
    """The tensor's tiling; of very many boxes the first, and of many no places in files."""
    manifest = opened.manifest
    record = manifest.tensor(key)
    chunks = list(manifest.chunks(record))
    shown = chunks[:_MOST_BOXES]
    indices = list(dict.fromkeys(index for _, index in shown))
    names = [manifest.file_name(index) for index in indices]
    number_of = {index: at for at, index in enumerate(indices)}
    places: list[tuple[int, int]] = []
    if len(shown) <= _MOST_PLACED:
        opened.places.fetch(indices, threads=core_count())
        entries = [opened.places.chunk(index, record, box) for box, index in shown]
        places = [(entry.start, entry.stop) for entry in entries]
    return {
        "key": key,
        "dtype": record.dtype,
        "shape": record.shape,
        "nbytes": record.nbytes,
        "files": names,
        "ranks": _ranks(names),
        "box_count": len(chunks),
        "starts": [box.start for box, _ in shown],
        "stops": [box.stop for box, _ in shown],
        "file_of": [number_of[index] for _, index in shown],
        "bytes": places,
    }


def _ranks(names: list[str]) -> list[int] | None:
    """Who wrote each file; None of another format's, which do not say."""
    parsed = [parse_file_name(name) for name in names]
    return [one.rank for one in parsed if one] if all(parsed) else None
