"""What is in a checkpoint: every tensor, the files, who wrote how much and how fast?

Tensors come as columns, names of dtypes and shapes once: 100,000 of them are a few MB.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from shardkeep.manifest import DictNode, ListNode, Manifest, Node, PerRankNode, TupleNode, ValueNode
from shardkeep.manifest.model import NO_GRID
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.report import read_report
from shardkeep.transfer.steps import RUN_KEY, decode_metrics
from shardkeep.translate.foreign import ForeignManifest
from shardkeep.view.opening import format_text
from shardkeep.view.web.run_page import finite

_MOST_VALUES = 2000
_MOST_LETTERS = 400


def checkpoint_page(at: str, opened: Opened) -> dict[str, Any]:
    """The checkpoint as its page shows it; reads no data."""
    manifest = opened.manifest
    ours = not isinstance(manifest, ForeignManifest)
    report = read_report(opened.storage, manifest.save_id) if ours else None
    return {
        "at": at,
        "path": opened.storage.location,
        "format": format_text(manifest),
        "save_id": manifest.save_id if ours else "",
        "ranks": manifest.world if ours else None,
        "nbytes": sum(record.nbytes for record in manifest.tensors),
        "file_nbytes": sum(manifest.files.nbytes),
        **_said(manifest),
        "tensors": _tensors(manifest),
        "files": _files(manifest, ours),
        "report": msgspec.to_builtins(report) if report is not None else None,
        "values": _values(manifest),
    }


def _said(manifest: Manifest) -> dict[str, Any]:
    """What the run and the user say of it."""
    run = manifest.metadata.get(RUN_KEY)
    said = run if isinstance(run, dict) and "step" in run else {}
    metrics = decode_metrics(said.get("metrics"))
    others = {k: v for k, v in manifest.metadata.items() if k != RUN_KEY or not said}
    return {
        "step": said.get("step"),
        "saved_at": said.get("saved_at"),
        "metrics": {name: finite(value) for name, value in metrics.items()},
        "metadata": {name: _text(value) for name, value in others.items()},
    }


def _text(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"


def _tensors(manifest: Manifest) -> dict[str, Any]:
    dtypes: dict[str, int] = {}
    shapes: dict[tuple[int, ...], int] = {}
    chunks = _ChunkCounts(manifest)
    columns: dict[str, list[Any]] = {n: [] for n in ("keys", "dtype", "shape", "nbytes", "chunks")}
    for record in manifest.tensors:
        columns["keys"].append(record.key)
        columns["dtype"].append(dtypes.setdefault(record.dtype, len(dtypes)))
        columns["shape"].append(shapes.setdefault(record.shape, len(shapes)))
        columns["nbytes"].append(record.nbytes)
        columns["chunks"].append(chunks.of(record.grid, record.shape))
    return {**columns, "dtypes": list(dtypes), "shapes": list(shapes)}


class _ChunkCounts:
    """In how many boxes tensors are stored; counted once for all of one kind."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}

    def of(self, grid: int, shape: tuple[int, ...]) -> int:
        if grid == NO_GRID:
            return 0
        if (grid, shape) not in self._known:
            count = sum(1 for _ in self._manifest.grids[grid].chunks(shape))
            self._known[grid, shape] = count
        return self._known[grid, shape]


def _files(manifest: Manifest, ours: bool) -> dict[str, Any]:
    count = len(manifest.files)
    return {
        "names": [manifest.file_name(index) for index in range(count)],
        "nbytes": list(manifest.files.nbytes),
        # Of another format's files nobody knows the writer.
        "ranks": list(manifest.files.ranks) if ours else None,
    }


def _values(manifest: Manifest) -> list[tuple[str, str]]:
    """What is no tensor: paths with values, as far as they are few."""
    found: list[tuple[str, str]] = []
    for path, text in _walk(manifest.tree, ""):
        found.append((path, text))
        if len(found) == _MOST_VALUES:
            break
    return found


def _walk(node: Node, path: str) -> Iterable[tuple[str, str]]:
    if isinstance(node, ValueNode):
        yield path, _text(node.data)
    elif isinstance(node, PerRankNode):
        yield path, "each rank has its own"
    elif isinstance(node, DictNode):
        for key, one in node.items:
            yield from _walk(one, f"{path}.{key}" if path else str(key))
    elif isinstance(node, ListNode | TupleNode):
        for at, one in enumerate(node.items):
            yield from _walk(one, f"{path}.{at}" if path else str(at))
