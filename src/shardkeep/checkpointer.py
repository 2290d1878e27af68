"""How is a training run kept: saved at the right moments, resumed, tidied up?"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch

from shardkeep.checkpoint import TIMEOUT, load, load_from, prepare_async
from shardkeep.errors import InvalidError, ShardkeepError
from shardkeep.manifest import Json
from shardkeep.plan.retention import Best, Retention
from shardkeep.ranks import RankGroup
from shardkeep.storage import Storage
from shardkeep.storage.shelves import open_shelf
from shardkeep.transfer.background import Handle
from shardkeep.transfer.choose import OnDamage, Wish, best_step
from shardkeep.transfer.due import Due, Every
from shardkeep.transfer.fallback import load_chosen
from shardkeep.transfer.groups import chair_of, council_of, from_chair, told
from shardkeep.transfer.last_wait import wait_or_die
from shardkeep.transfer.places import Places
from shardkeep.transfer.replicas import CheckReplicas
from shardkeep.transfer.restore import LoadReport
from shardkeep.transfer.retain import RunPrune, prune_run
from shardkeep.transfer.saving import SaveResult, begin_save, save_now
from shardkeep.transfer.share import Share
from shardkeep.transfer.snapshots import SnapshotKind
from shardkeep.transfer.steps import RUN_KEY, encode_run, newest, read_steps
from shardkeep.transfer.threads import thread_count
from shardkeep.transfer.tiered_choice import Found
from shardkeep.transfer.under_way import UnderWay

_log = logging.getLogger("shardkeep")

# A folder without a manifest that nobody has touched for so long is no save under way.
_ABANDONED_SECONDS = 24 * 3600.0


class Checkpointer:
    """The checkpoints of one run, each in a folder of its own below `root`, a path or a URL.

    Every method that saves or restores is SPMD over `group`. Kept are the `keep_last` newest, the
    steps that `keep_every` divides, and the best `n` by a metric (`keep_best=("loss", "min", n)`);
    without any of these, all. `maybe_save` saves every `every_steps` steps, every `every_seconds`
    seconds and, with `on_signal=True`, when SIGUSR1 comes or, then to stop, SIGTERM; it waits for
    the files with `background=False` only. The other options are those of `save`.

    With `local`, a folder on each host's own disk, a save is committed when it is there; then it
    goes on to `root` in the background. The `keep_local` newest stay there. With `peer_copies`,
    each host also keeps the files of another one.

    With `recycle`, the files of the last checkpoint that was dropped stay as spare ones, which the
    next save writes again: that is faster, and takes the space of one more checkpoint until the
    run is closed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Storage,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_best: Best | None = None,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        on_signal: bool = False,
        background: bool = True,
        overwrite: bool = False,
        durable: bool = True,
        timeout: float = TIMEOUT,
        check_replicas: CheckReplicas = "sample",
        threads: int | None = None,
        snapshot: SnapshotKind = "copy",
        local: str | os.PathLike[str] | None = None,
        keep_local: int = 2,
        peer_copies: bool = False,
        recycle: bool = False,
        group: Any = None,
    ) -> None:
        self._retention = Retention(keep_last, keep_every, keep_best)
        every = Every(every_steps, every_seconds)
        self._shelf = open_shelf(root, recycle=recycle)
        self._places = Places(self._shelf, durable=durable, group=group, timeout=timeout)
        self._background = background
        self._snapshot: SnapshotKind = snapshot
        self._may_prepare = background and every.is_regular
        self._overwrite = overwrite
        self._group = group
        self._timeout = timeout
        self._options: dict[str, Any] = {
            "durable": durable,
            "timeout": timeout,
            "check_replicas": check_replicas,
            "threads": thread_count(threads),
            "group": group,
        }
        self._left_behind: dict[int, str] = {}
        """Steps of an earlier attempt, beyond the one that this run went on from; save ids."""
        self._under_way = UnderWay()
        self._last_step: int | None = None
        self._restored: LoadReport | None = None
        self._is_chair = chair_of(group) == RankGroup.of(group).me
        if local is None and peer_copies:
            raise InvalidError("peer_copies needs a local tier: pass local=, a folder on each host")
        if local is not None:
            self._places.keep_on_hosts(
                local,
                keep=keep_local,
                peer_copies=peer_copies,
                threads=self._options["threads"],
                recycle=recycle,
            )
        self._due = Due(
            every, on_signal=on_signal, is_chair=self._is_chair, group=group, timeout=timeout
        )

    @property
    def path(self) -> Path | str:
        """The run's folder, or its URL in an object store."""
        return self._places.path

    def path_of(self, step: int) -> Path | str:
        """The folder or URL of a step's checkpoint, whether it is there or not."""
        return self._places.path_of(step)

    @property
    def stopping(self) -> bool:
        """Whether SIGTERM came and was answered with a checkpoint: time to leave the loop."""
        return self._due.is_stopping

    # Saving

    def save(
        self,
        step: int,
        state: Any,
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> SaveResult:
        """Save `state` as the checkpoint of `step`; on return it is complete. SPMD."""
        self._under_way.wait()
        arguments = self._arguments(step, metrics, metadata)
        result = save_now(state, **arguments)
        self._saved(step)
        self._go_on(step, result, overwrite=arguments["overwrite"])
        return result

    def save_async(
        self,
        step: int,
        state: Any,
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> Handle[SaveResult]:
        """Copy `state` and return; it is saved in the background as by `save`. SPMD."""
        arguments = self._arguments(step, metrics, metadata)
        overwrite = arguments["overwrite"]
        handle = begin_save(
            state,
            snapshot=self._snapshot,
            after=lambda result: self._go_on(step, result, overwrite=overwrite),
            **arguments,
        )
        self._under_way.add(step, handle)
        self._saved(step)
        return handle

    def should_save(self, step: int) -> bool:
        """Whether a checkpoint is due after `step`: the same answer on all ranks.

        Call it once after each step, on every rank.
        """
        return self._due.after(step)

    def maybe_save(
        self,
        step: int,
        state: Any,
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> SaveResult | Handle[SaveResult] | None:
        """Save if a checkpoint is due after `step`, in the background if the run does so. SPMD.

        Call it once after each step, on every rank, and leave the loop when `stopping` is true.
        """
        if not self.should_save(step):
            self._prepare(state)
            return None
        if self._last_step == step:
            return self._under_way.find(step)
        if self._background and not self._due.is_stopping:
            return self.save_async(step, state, metrics=metrics, metadata=metadata)
        return self.save(step, state, metrics=metrics, metadata=metadata)

    def _prepare(self, state: Any) -> None:
        """After the first step, when optimizers have their state: memory for the first copy."""
        is_wanted, self._may_prepare = self._may_prepare, False
        if is_wanted:
            # Whatever is wrong with the state, the save says it, on all ranks.
            with suppress(ShardkeepError):
                prepare_async(state, snapshot=self._snapshot)

    def _arguments(
        self, step: int, metrics: Mapping[str, Any] | None, metadata: Mapping[str, Json] | None
    ) -> dict[str, Any]:
        with told(self._group, act="save", timeout=self._timeout):
            if RUN_KEY in (metadata or {}):
                raise InvalidError(f"the key {RUN_KEY!r} of the metadata is the run's own")
            overwrite = self._overwrite or step in self._left_behind
            if not overwrite:
                self._places.require_new(step)
            run = encode_run(step, metrics or {}, self._left_behind, self._retention)
        return {
            **self._options,
            **self._places.arguments(step),
            "overwrite": overwrite,
            "metadata": {**(metadata or {}), RUN_KEY: run},
        }

    def _go_on(self, step: int, result: SaveResult, *, overwrite: bool) -> None:
        """After a commit."""
        self._places.saved(
            step, result.save_id, overwrite=overwrite, after=lambda: self._tidy(step)
        )

    def _saved(self, step: int) -> None:
        self._last_step = step
        self._due.saved()
        self._left_behind = {n: s for n, s in self._left_behind.items() if n != step}

    def wait(self) -> None:
        """Return when every save that was begun is over; raises the error that nobody has seen yet.

        What the retention drops is gone by then, and with a local tier, the newest step is in the
        slow one, too.
        """
        self._under_way.wait()
        self._places.wait()

    # Restoring

    def restore(
        self,
        state: Any,
        step: int | Literal["latest", "best"] | None = None,
        *,
        on_damage: OnDamage = "raise",
        strict: bool = True,
        cast: bool = False,
        verify: bool = True,
        device: torch.device | str | None = None,
        share: Share = "auto",
    ) -> int:
        """Fill `state` in place from a checkpoint and return its step. SPMD.

        None takes the newest, and returns 0 if there is none. A damaged one is an error, unless
        `on_damage="fallback"`: then the one before is taken, with a warning. `share` is as in
        `load`; with a local tier, hosts hand each other what only one of them has in any case.
        """
        if state is None:
            raise InvalidError(
                "restore fills a state in place: pass one; load(run.path_of(step)) makes a new one"
            )
        self._under_way.wait()
        shared = {name: self._options[name] for name in ("threads", "timeout", "group")}
        wishes = {"strict": strict, "cast": cast, "verify": verify, "device": device}
        restored = load_chosen(
            Wish(step, on_damage),
            lambda wish: self._places.choose(wish, self._retention.best),
            lambda chosen, found: self._load(chosen, found, share, into=state, **wishes, **shared),
            is_chair=self._is_chair,
        )
        if restored is None:
            return 0
        self._restored = restored.report
        self._left_behind, self._last_step = restored.newer, restored.step
        return restored.step

    def _load(self, step: int, found: Found, share: Share, **options: Any) -> LoadReport:
        tiers = self._places.tiers
        if tiers is None or found.located is None or found.manifest is None:
            return load(self._places.place_of(step), share=share, **options)
        located, manifest = found.located, found.manifest
        report = load_from(
            lambda: tiers.open_found(located, manifest),
            make_sharing=lambda council, _: tiers.sharing(located, council),
            **options,
        )
        if not located.in_slow:
            tiers.resume(located, manifest, lambda: self._tidy(step))
        return report

    @property
    def restored(self) -> LoadReport | None:
        """What the last `restore` did on this rank; its `metadata` is what the save was given."""
        return self._restored

    # Looking and tidying up

    def steps(self) -> list[int]:
        """The steps that can be restored: committed, and none of their files missing."""
        return [one.step for one in read_steps(self._shelf) if one.condition == "committed"]

    def latest(self) -> int | None:
        """The newest step that can be restored, and that the run has not left behind."""
        found = newest(read_steps(self._shelf))
        return found.step if found else None

    def best(self) -> int | None:
        """The step with the best metric, as `keep_best` ranks them."""
        return best_step(read_steps(self._shelf), self._retention.best)

    def prune(
        self, *, leftovers: bool = False, damaged: bool = False, dry_run: bool = False
    ) -> RunPrune:
        """Remove what the retention drops; the same report on all ranks. SPMD.

        `leftovers=True` takes half-written checkpoints, too, and `damaged=True` those that cannot
        be read; what is being saved, by this job or another, is spared. Spare files go with the
        leftovers.
        """
        return from_chair(
            council_of(self._group, act="prune", timeout=self._timeout),
            "prune",
            lambda: self._prune(
                0.0 if leftovers else _ABANDONED_SECONDS, damaged, dry_run, None, spares=leftovers
            ),
            RunPrune,
        )

    def _prune(
        self,
        min_age: float,
        damaged: bool,
        dry_run: bool,
        just_saved: int | None,
        *,
        spares: bool = False,
    ) -> RunPrune:
        busy = set(self._under_way.steps) - {just_saved}
        return prune_run(
            self._shelf,
            self._retention,
            spared=frozenset(busy | self._left_behind.keys()),
            just_saved=just_saved,
            leftover_seconds=min_age,
            damaged=damaged,
            dry_run=dry_run,
            spares=spares or self._shelf.recycled_from is None,
        )

    def _tidy(self, just_saved: int) -> None:
        """After a commit, on one rank. What cannot be removed must not make the save fail."""
        if not self._is_chair:
            return
        try:
            self._prune(_ABANDONED_SECONDS, False, False, just_saved)
        except Exception as error:
            _log.warning("old checkpoints in %s were not removed: %s", self._shelf.location, error)

    # The end

    def close(self) -> None:
        """Wait for saves under way, and let go of signals. Raises the error of a failed save."""
        try:
            self.wait()
        finally:
            self._places.discard_spares(is_chair=self._is_chair)
            self._due.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        self._due.leave()
        wait_or_die(self._due, self._under_way, lambda: self._places.is_idle, error)
        try:
            self.close()
        except Exception as later:
            # What ended the block counts; it must not be hidden by what followed from it.
            _log.warning("a save failed, too: %s", later)
