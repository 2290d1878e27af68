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
from shardkeep.manifest import Manifest, Node, TensorRecord, decode_tree, encode_tree
from shardkeep.state.building import build_state, tensor_numbers
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.state.keeping import PerRank, keep_state
from shardkeep.state.live import Merged, OfRank
from shardkeep.state.paths import Path, all_dotted, dotted
from shardkeep.state.restoring import Fit, Slot, fit_state, require_fit, stored_leaves
from shardkeep.state.shadow import Shadow
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.council import Council
from shardkeep.transfer.filling import fill_slots
from shardkeep.transfer.load import Alike, alike_of, files_of, require_stored, stake_of
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.own_values import all_own_values, no_tensor, own_value
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.share import Sharing
from shardkeep.transfer.shared_fill import fetch_headers

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
    """From the storage, by this rank."""
    seconds: float
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    nbytes_received: int = 0
    """From other ranks, which had read them."""


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


MakeSharing = Callable[[Opened], Sharing | None]
"""Gives how the ranks share what they read of a checkpoint; None if each reads for itself."""
OpenSource = Callable[[], AbstractContextManager[Opened]]
"""Gives the checkpoint as it is now."""


def restore(
    open_source: OpenSource,
    into: Any,
    council: Council,
    options: LoadOptions,
    make_sharing: MakeSharing = lambda _: None,
) -> LoadReport:
    """Fill `into` in place; the same outcome on all ranks."""
    load = _Load(into, council, options, make_sharing)
    try:
        # Ranks that share what they read can only begin again together.
        report = _try_again(open_source, load.run, lambda: load.sharing is None)
        _compare(council, report.save_id)
    except BaseException as error:
        council.fail("load", error, undone=True)
        council.leave(done=False)
        raise
    council.leave(done=True)
    return report


def _try_again(
    open_source: OpenSource, act: Callable[[Opened], _T], may_repeat: Callable[[], bool]
) -> _T:
    """Repeat while the checkpoint is replaced under the reader's hands."""
    for attempt in count(1):
        with open_source() as opened:
            try:
                return act(opened)
            except NotFoundError:
                # A file is gone: with its checkpoint, or by itself?
                if attempt == _ATTEMPTS or not may_repeat() or not opened.is_replaced:
                    raise
    raise AssertionError("the attempts have an end")


class _Load:
    """One rank's part in one load."""

    def __init__(
        self, into: Any, council: Council, options: LoadOptions, make_sharing: MakeSharing
    ) -> None:
        self.into = into
        self.council = council
        self.options = options
        self.make_sharing = make_sharing
        self.sharing: Sharing | None = None
        self.reads_alone = False
        """Whether the ranks have found that there is little to share; they ask each other once."""
        self.start = time.perf_counter()
        self.unexpected: list[str] | None = None
        """What no rank expects is agreed on once, also if the load is repeated."""

    def run(self, opened: Opened) -> LoadReport:
        """Fill this rank's part."""
        shadow, fit = self._fit(opened.manifest)
        numbers = [number for node in fit.sparse.values() for number in tensor_numbers(node)]
        nbytes = self._begin_sharing(opened, fit, numbers)
        values = _own_values(opened, fit, self.council, self.options.strict)
        parts, slots = _made_tensors(opened, numbers, self.options)
        nbytes += _fill(opened, [*fit.slots, *slots], self.options, self.sharing)
        sparse = {
            path: build_state(node, parts.__getitem__, str) for path, node in fit.sparse.items()
        }
        shadow.put_back(self.into, {**fit.replaced, **values, **sparse}, fit.paths)
        return LoadReport(
            opened.manifest.save_id,
            all_dotted(fit.paths),
            fit.missing,
            fit.unexpected,
            fit.cast,
            nbytes,
            time.perf_counter() - self.start,
            opened.manifest.metadata,
            self.sharing.nbytes_received if self.sharing is not None else 0,
        )

    def _fit(self, manifest: Manifest) -> tuple[Shadow, Fit]:
        """What goes where; raises unless the state and the checkpoint fit each other."""
        options, council = self.options, self.council
        with gc_paused():
            shadow = Shadow(self.into, manifest, me=council.me, keys=options.keys)
            fit = fit_state(
                manifest,
                shadow.leaves,
                me=council.me,
                keys=options.keys,
                cast=options.cast,
                device=options.device,
            )
        if options.strict and len(council.ranks) > 1:
            if self.unexpected is None:
                self.unexpected = _unexpected_on_all(council, manifest, fit.unexpected)
            fit.unexpected = self.unexpected
        require_fit(fit, strict=options.strict)
        if options.keys is not None:
            shadow.require_whole(fit.paths)
        return shadow, fit

    def _begin_sharing(self, opened: Opened, fit: Fit, numbers: Sequence[int]) -> int:
        """If ranks share what they read: all are there, and know their files; the bytes read."""
        sharing = None if self.reads_alone else self.make_sharing(opened)
        if sharing is None:
            return 0
        alike = alike_of(_wanted(opened.manifest, fit, numbers))
        files = _files_needed(opened.manifest, alike, fit, self.council)
        if sharing.is_of_files:
            # If the checkpoint was replaced, that shows here, where this rank can begin again.
            opened.places.fetch(files, threads=self.options.threads)
        if not sharing.begin(opened.manifest.save_id, stake_of(opened.manifest, alike)):
            self.reads_alone = True
            return 0
        self.sharing = sharing
        if sharing.is_of_files:
            return 0
        return fetch_headers(opened, files, sharing, threads=self.options.threads)


def _wanted(manifest: Manifest, fit: Fit, numbers: Sequence[int]) -> list[tuple[TensorRecord, Box]]:
    """What this rank wants of stored tensors."""
    asked = [(slot.record, slot.box) for slot in fit.slots]
    records = [manifest.tensors[number] for number in dict.fromkeys(numbers)]
    return [*asked, *((record, Box.whole(record.shape)) for record in records)]


def _files_needed(
    manifest: Manifest,
    alike: Alike,
    fit: Fit,
    council: Council,
) -> list[int]:
    """The files whose headers this rank has to know, by index."""
    found = files_of(manifest, alike)
    for _, leaf in fit.per_rank.values():
        if not isinstance(leaf, Merged):
            rank = leaf.rank if isinstance(leaf, OfRank) else council.me
            own = manifest.files.find(rank=rank, number=0)
            found += [own] if own is not None else []
        elif council.me == council.chair:
            found += [at for at, file in enumerate(manifest.files) if file.number == 0]
    return list(dict.fromkeys(found))


def _fill(
    opened: Opened, slots: Sequence[Slot], options: LoadOptions, sharing: Sharing | None = None
) -> int:
    return fill_slots(
        opened,
        slots,
        threads=options.threads,
        verify=options.verify,
        meter=options.meter,
        sharing=sharing,
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
    made, slots = _made_tensors(opened, numbers, options)
    return made, _fill(opened, slots, options)


def _made_tensors(
    opened: Opened, numbers: Sequence[int], options: LoadOptions
) -> tuple[dict[int, torch.Tensor], list[Slot]]:
    """Fresh memory for whole tensors, by number, and what has to be read into it."""
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
        slots.append(Slot.of(record, Box.whole(record.shape), made[number]))
    return made, slots


def build(open_source: OpenSource, me: int, options: LoadOptions) -> Any:
    """The checkpoint as a plain state of its own."""

    def attempt(opened: Opened) -> Any:
        tree = _asked(opened.manifest.tree, options.keys)
        made, _ = read_tensors(opened, tensor_numbers(tree), options)
        return build_state(tree, made.__getitem__, lambda key: own_value(opened, key, me))

    return _try_again(open_source, attempt, lambda: True)


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
    stored, mine = stored_leaves(manifest.tree), set(unexpected)
    names = [dotted(path) for path, _ in stored] if mine else []
    bits = np.packbits([name in mine for name in names] or [False] * len(stored))
    council.report("keys", manifest.save_id.encode() + bits.tobytes())
    if council.me == council.chair:
        notes = council.collect("keys")
        width = len(manifest.save_id)
        _require_one_save({rank: note[:width] for rank, note in notes.items()})
        masks = [np.frombuffer(note[width:], np.uint8) for note in notes.values()]
        council.announce("keys", np.bitwise_and.reduce(masks).tobytes())
    common = np.unpackbits(np.frombuffer(council.hear("keys"), np.uint8))
    # What all ranks have no place for is unexpected here, too: without any, there are no names.
    return [name for name, is_unexpected in zip(names, common, strict=False) if is_unexpected]


def _compare(council: Council, save_id: str) -> None:
    """All ranks have read the same checkpoint."""
    word = save_id.encode()
    council.report("load", word)
    if council.me == council.chair:
        _require_one_save(council.collect("load"))
        council.announce("load", b"", word=word)
    council.hear("load", word=word)


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
