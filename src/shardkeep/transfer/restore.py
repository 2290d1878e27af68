"""How does a load go, from a committed checkpoint to a state that is filled?

Each rank reads what it wants by itself. At the end the ranks compare: they must have read the same
checkpoint, and if one failed, all raise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch

from shardkeep.boxes import Box
from shardkeep.errors import NotFoundError, RanksDisagreeError, name_ranks
from shardkeep.manifest import Manifest, Node, decode_tree, encode_tree
from shardkeep.state.building import build_state, tensor_numbers
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.state.keeping import PerRank, keep_state
from shardkeep.state.live import Merged, OfRank
from shardkeep.state.paths import Path, dotted
from shardkeep.state.restoring import Fit, Shadow, Slot, fit_state, require_fit, stored_leaves
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.council import Council
from shardkeep.transfer.filling import fill_slots
from shardkeep.transfer.load import require_stored
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.own_values import all_own_values, no_tensor, own_value
from shardkeep.transfer.progress import Meter

# A checkpoint that is replaced while it is read is read again, the new one.
_ATTEMPTS = 5
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did on this rank."""

    save_id: str
    loaded: Sequence[str]
    missing: Sequence[str]
    """In the state, not in the checkpoint."""
    unexpected: Sequence[str]
    """In the checkpoint, not in the state."""
    cast: Sequence[str]
    """Converted to the state's dtype."""
    nbytes_read: int
    seconds: float
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load."""

    keys: Sequence[str] | None
    strict: bool
    cast: bool
    verify: bool
    threads: int
    device: torch.device | None
    meter: Meter


OpenSource = Callable[[], AbstractContextManager[Opened]]
"""Gives the checkpoint as it is now."""


def restore(
    open_source: OpenSource, into: Any, council: Council, options: LoadOptions
) -> LoadReport:
    """Fill `into` in place; the same outcome on all ranks."""
    start = time.perf_counter()
    try:
        agreed: list[list[str]] = []
        report = _try_again(
            open_source, lambda opened: _restore(opened, into, council, agreed, options, start)
        )
        _compare(council, report.save_id)
    except BaseException as error:
        council.fail("load", error, undone=True)
        council.leave(done=False)
        raise
    council.leave(done=True)
    return report


def _try_again(open_source: OpenSource, act: Callable[[Opened], _T]) -> _T:
    """Repeat while the checkpoint is replaced under the reader's hands."""
    for attempt in count(1):
        with open_source() as opened:
            try:
                return act(opened)
            except NotFoundError:
                # A file is gone: with its checkpoint, or by itself?
                if attempt == _ATTEMPTS or not opened.is_replaced:
                    raise
    raise AssertionError("the attempts have an end")


def _restore(
    opened: Opened,
    into: Any,
    council: Council,
    agreed: list[list[str]],
    options: LoadOptions,
    start: float,
) -> LoadReport:
    """Fill this rank's part. What no rank expects is agreed on once, also if this is repeated."""
    me = council.me
    with gc_paused():
        shadow = Shadow(into, opened.manifest, me=me, keys=options.keys)
        fit = fit_state(
            opened.manifest,
            shadow.tree,
            me=me,
            keys=options.keys,
            cast=options.cast,
            device=options.device,
        )
    if options.strict and len(council.ranks) > 1:
        if not agreed:
            agreed.append(_unexpected_on_all(council, opened.manifest, fit.unexpected))
        fit.unexpected = agreed[0]
    require_fit(fit, strict=options.strict)
    if options.keys is not None:
        shadow.require_whole(fit.paths)
    values = _own_values(opened, fit, council, options.strict)
    nbytes = _fill(opened, fit.slots, options)
    numbers = [number for node in fit.sparse.values() for number in tensor_numbers(node)]
    parts, sparse_nbytes = read_tensors(opened, numbers, options)
    sparse = {path: build_state(node, parts.__getitem__, str) for path, node in fit.sparse.items()}
    shadow.put_back(into, {**fit.replaced, **values, **sparse}, fit.paths)
    return LoadReport(
        opened.manifest.save_id,
        [dotted(path) for path in fit.paths],
        fit.missing,
        fit.unexpected,
        fit.cast,
        nbytes + sparse_nbytes,
        time.perf_counter() - start,
        opened.manifest.metadata,
    )


def _fill(opened: Opened, slots: Sequence[Slot], options: LoadOptions) -> int:
    return fill_slots(
        opened,
        slots,
        threads=options.threads,
        verify=options.verify,
        meter=options.meter,
    )


def _own_values(opened: Opened, fit: Fit, council: Council, strict: bool) -> dict[Path, Any]:
    """The values of a rank's own by place; those that are not there are missing."""
    merged = _merged_values(opened, fit, council)
    found: dict[Path, Any] = {}
    for path, (key, leaf) in list(fit.per_rank.items()):
        if isinstance(leaf, Merged):
            found[path] = merged[path]
            continue
        try:
            value = own_value(opened, key, leaf.rank if isinstance(leaf, OfRank) else council.me)
        except NotFoundError:
            if strict:
                raise
            fit.missing.append(dotted(path))
            fit.paths.remove(path)
            continue
        found[path] = PerRank(value) if isinstance(leaf, PerRank) else value
    return found


def _merged_values(opened: Opened, fit: Fit, council: Council) -> dict[Path, Any]:
    """What comes of all ranks' values. The chair reads them all, and tells those who want it."""
    wanted = {
        path: (key, leaf) for path, (key, leaf) in fit.per_rank.items() if isinstance(leaf, Merged)
    }
    save_id = opened.manifest.save_id
    if council.me == council.chair and opened.manifest.per_rank:
        own = {key: leaf.merge(all_own_values(opened, key)) for key, leaf in wanted.values()}
        kept = encode_tree(keep_state(own).tree, tensor_count=0)
        council.announce("own", msgspec.json.encode([save_id, kept]))
    if not wanted:
        return {}
    heard_id, kept = msgspec.json.decode(council.hear("own"))
    tree = decode_tree(kept, tensor_count=0)
    heard: dict[str, Any] = build_state(tree, no_tensor, str) if heard_id == save_id else {}
    # A chair that has no such object, or that read another save, is no help.
    return {
        path: heard[key] if key in heard else leaf.merge(all_own_values(opened, key))
        for path, (key, leaf) in wanted.items()
    }


def read_tensors(
    opened: Opened, numbers: Sequence[int], options: LoadOptions
) -> tuple[dict[int, torch.Tensor], int]:
    """Whole tensors in fresh memory, by number, and how many bytes were read."""
    made: dict[int, torch.Tensor] = {}
    slots: list[Slot] = []
    records = [opened.manifest.tensors[number] for number in dict.fromkeys(numbers)]
    asked = [(record, Box.whole(record.shape)) for record in records]
    require_stored(opened, asked, threads=options.threads)
    for number in dict.fromkeys(numbers):
        record = opened.manifest.tensors[number]
        made[number] = torch.empty(
            record.shape, dtype=TORCH_DTYPES[record.dtype], device=options.device
        )
        slots.append(Slot(record, Box.whole(record.shape), made[number]))
    return made, _fill(opened, slots, options)


def build(open_source: OpenSource, me: int, options: LoadOptions) -> Any:
    """The checkpoint as a plain state of its own."""

    def attempt(opened: Opened) -> Any:
        tree = _asked(opened.manifest.tree, options.keys)
        made, _ = read_tensors(opened, tensor_numbers(tree), options)
        return build_state(tree, made.__getitem__, lambda key: own_value(opened, key, me))

    return _try_again(open_source, attempt)


def _asked(tree: Node, keys: Sequence[str] | None) -> Node:
    """The tree with only those leaves that were asked for."""
    if keys is None:
        return tree
    from shardkeep.state.selecting import select

    return select(tree, keys)


def _unexpected_on_all(
    council: Council, manifest: Manifest, unexpected: Sequence[str]
) -> list[str]:
    """What no rank has a place for: pipeline stages expect only their own part each."""
    names = [dotted(path) for path, _ in stored_leaves(manifest.tree)]
    mine = set(unexpected)
    bits = np.packbits([name in mine for name in names])
    council.report("keys", manifest.save_id.encode() + bits.tobytes())
    if council.me == council.chair:
        notes = council.collect("keys")
        width = len(manifest.save_id)
        _require_one_save({rank: note[:width] for rank, note in notes.items()})
        masks = [np.frombuffer(note[width:], np.uint8) for note in notes.values()]
        council.announce("keys", np.bitwise_and.reduce(masks).tobytes())
    common = np.unpackbits(np.frombuffer(council.hear("keys"), np.uint8))
    return [name for name, is_unexpected in zip(names, common, strict=False) if is_unexpected]


def _compare(council: Council, save_id: str) -> None:
    """All ranks have read the same checkpoint."""
    council.report("load", save_id.encode())
    if council.me == council.chair:
        _require_one_save(council.collect("load"))
        council.announce("load", b"ok")
    council.hear("load")


def _require_one_save(save_ids: Mapping[int, bytes]) -> None:
    by_id: dict[bytes, list[int]] = {}
    for rank, save_id in save_ids.items():
        by_id.setdefault(save_id, []).append(rank)
    if len(by_id) > 1:
        said = "; ".join(f"{name_ranks(ranks)}: {one.decode()}" for one, ranks in by_id.items())
        raise RanksDisagreeError(
            f"ranks have read different saves ({said}): the checkpoint was replaced while it "
            "was loaded, or the ranks do not share the storage; load again"
        )
