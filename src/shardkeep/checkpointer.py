"""How is a training run kept: saved at the right moments, resumed, tidied up?"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch

from shardkeep.checkpoint import (
    TIMEOUT,
    SaveResult,
    SnapshotKind,
    begin_save,
    load,
    load_from,
    prepare_async,
    save_now,
)
from shardkeep.errors import DeadlineError, InvalidError, ShardkeepError
from shardkeep.manifest import Json
from shardkeep.plan.retention import Best, Retention
from shardkeep.ranks import RankGroup
from shardkeep.storage import Storage, open_storage
from shardkeep.storage.shelves import open_shelf
from shardkeep.transfer.background import Handle
from shardkeep.transfer.choose import Choice, OnDamage, Wish, agree_on_step, best_step
from shardkeep.transfer.common_step import CommonStep, SoloStep
from shardkeep.transfer.groups import chair_of, common_step, council_of, from_chair, told
from shardkeep.transfer.replicas import CheckReplicas
from shardkeep.transfer.restore import LoadReport
from shardkeep.transfer.retain import RunPrune, prune_run
from shardkeep.transfer.share import Share
from shardkeep.transfer.signals import SAVE_AND_STOP, SignalWatch
from shardkeep.transfer.steps import RUN_KEY, encode_metrics, newest, read_steps, step_name
from shardkeep.transfer.threads import thread_count
from shardkeep.transfer.tiered_choice import Found
from shardkeep.transfer.tiers import Tiers

_log = logging.getLogger("shardkeep")

_TIMER = "timer"
# A folder without a manifest that nobody has touched for so long is no save under way.
_ABANDONED_SECONDS = 24 * 3600.0
# How long saves may still take when the block was left by an error and SIGTERM came.
_LAST_SECONDS = 5.0
_POLL_SECONDS = 0.02


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
        if every_steps is not None and every_steps < 1:
            raise InvalidError(f"every_steps must be at least 1, got {every_steps}")
        if every_seconds is not None and every_seconds <= 0:
            raise InvalidError(f"every_seconds must be positive, got {every_seconds}")
        self._shelf = open_shelf(root, recycle=recycle)
        self._every_steps = every_steps
        self._every_seconds = every_seconds
        self._background = background
        self._snapshot: SnapshotKind = snapshot
        is_regular = every_steps is not None or every_seconds is not None
        self._may_prepare = background and is_regular
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
        self._handles: list[tuple[int, Handle[SaveResult]]] = []
        """Saves that are under way or have failed."""
        self._last_step: int | None = None
        self._last_time = time.monotonic()
        self._stopping = False
        self._restored: LoadReport | None = None
        self._is_chair = chair_of(group) == RankGroup.of(group).me
        if local is None and peer_copies:
            raise InvalidError("peer_copies needs a local tier: pass local=, a folder on each host")
        self._tiers: Tiers | None = None
        if local is not None:
            self._tiers = Tiers(
                local,
                self._opened,
                keep=keep_local,
                peer_copies=peer_copies,
                group=group,
                durable=durable,
                timeout=timeout,
                threads=self._options["threads"],
                recycle=recycle,
            )
        self._signals = SignalWatch() if on_signal else None
        self._common: CommonStep = SoloStep()
        if on_signal or every_seconds is not None:
            self._common = common_step(group, look=self._look, timeout=min(timeout, 300.0))

    @property
    def path(self) -> Path | str:
        """The run's folder, or its URL in an object store."""
        location = self._shelf.location
        return location if "://" in location else Path(location)

    def path_of(self, step: int) -> Path | str:
        """The folder or URL of a step's checkpoint, whether it is there or not."""
        return self._shelf.path(step_name(step))

    def _place_of(self, step: int) -> Path | Storage:
        """The same with the connections and options of the run."""
        return self._shelf.place(step_name(step))

    @property
    def stopping(self) -> bool:
        """Whether SIGTERM came and was answered with a checkpoint: time to leave the loop."""
        return self._stopping

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
        self._wait_for_saves()
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
        self._handles = [*self._open_handles(), (step, handle)]
        self._saved(step)
        return handle

    def _open_handles(self) -> list[tuple[int, Handle[SaveResult]]]:
        return [(n, h) for n, h in self._handles if not h.done() or h.has_failed()]

    def should_save(self, step: int) -> bool:
        """Whether a checkpoint is due after `step`: the same answer on all ranks.

        Call it once after each step, on every rank.
        """
        reasons = self._common_reasons()
        if reasons and reasons != [_TIMER] and self._is_chair:
            _log.warning("%s: saving a checkpoint at step %d", ", ".join(reasons), step)
        self._stopping = self._stopping or SAVE_AND_STOP.name in reasons
        is_due = self._every_steps is not None and step % self._every_steps == 0
        return is_due or bool(reasons)

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
            return next((handle for number, handle in self._handles if number == step), None)
        if self._background and not self._stopping:
            return self.save_async(step, state, metrics=metrics, metadata=metadata)
        return self.save(step, state, metrics=metrics, metadata=metadata)

    def _prepare(self, state: Any) -> None:
        """After the first step, when optimizers have their state: memory for the first copy."""
        is_wanted, self._may_prepare = self._may_prepare, False
        if is_wanted:
            # Whatever is wrong with the state, the save says it, on all ranks.
            with suppress(ShardkeepError):
                prepare_async(state, snapshot=self._snapshot)

    def _common_reasons(self) -> list[str]:
        while isinstance(self._common, SoloStep) and (reason := self._look()) is not None:
            self._common.ask(reason)
        return list(self._common.decide())

    def _look(self) -> str | None:
        """What asks for a checkpoint now, on this rank."""
        found = self._signals.take() if self._signals is not None else None
        if found is not None or self._every_seconds is None:
            return found
        if self._is_chair and time.monotonic() - self._last_time > self._every_seconds:
            self._last_time = time.monotonic()
            return _TIMER
        return None

    def _arguments(
        self, step: int, metrics: Mapping[str, Any] | None, metadata: Mapping[str, Json] | None
    ) -> dict[str, Any]:
        with told(self._group, act="save", timeout=self._timeout):
            if RUN_KEY in (metadata or {}):
                raise InvalidError(f"the key {RUN_KEY!r} of the metadata is the run's own")
            overwrite = self._overwrite or step in self._left_behind
            if self._tiers is not None and not overwrite:
                self._tiers.require_new(step)
            left = {str(n): save_id for n, save_id in self._left_behind.items() if n > step}
            run = {
                "step": step,
                "saved_at": time.time(),
                "metrics": encode_metrics(metrics or {}),
                "left_behind": left,
                "keep": self._retention.as_json(),
            }
        return {
            **self._options,
            "path": self._tiers.path_of(step) if self._tiers else self._place_of(step),
            "hosts": self._tiers.hosts if self._tiers else None,
            "recycled_from": (self._tiers or self._shelf).recycled_from,
            "overwrite": overwrite,
            "metadata": {**(metadata or {}), RUN_KEY: run},
        }

    def _go_on(self, step: int, result: SaveResult, *, overwrite: bool) -> None:
        """After a commit."""
        if self._tiers is None:
            self._tidy(step)
        else:
            self._tiers.saved(
                step, result.save_id, overwrite=overwrite, after=lambda: self._tidy(step)
            )

    @contextmanager
    def _opened(self, step: int, create: bool) -> Generator[Storage]:
        """The storage of a step in the run's folder."""
        durable = bool(self._options["durable"])
        place, spares = self._place_of(step), self._shelf.recycled_from
        with open_storage(place, create=create, durable=durable, recycled_from=spares) as storage:
            yield storage

    def _saved(self, step: int) -> None:
        self._last_step = step
        self._last_time = time.monotonic()
        self._left_behind = {n: s for n, s in self._left_behind.items() if n != step}

    def wait(self) -> None:
        """Return when every save that was begun is over; raises the error that nobody has seen yet.

        What the retention drops is gone by then, and with a local tier, the newest step is in the
        slow one, too.
        """
        self._wait_for_saves()
        if self._tiers is not None:
            self._tiers.wait()

    def _wait_for_saves(self) -> None:
        handles, self._handles = self._handles, []
        for _, handle in handles:
            handle.wait()
        errors = [error for _, handle in handles if (error := handle.unseen_error()) is not None]
        if errors:
            for later in errors[1:]:
                errors[0].add_note(f"A later save failed, too: {later}")
            raise errors[0]

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
        self._wait_for_saves()
        wish, said = Wish(step, on_damage), set[str]()
        while True:
            choice, found = self._choose(wish)
            self._warn(choice, said)
            if choice.step is None:
                return 0
            if choice.gives_up and wish.last_error is not None:
                raise wish.last_error
            try:
                self._restored = self._load(
                    choice.step,
                    found,
                    share,
                    into=state,
                    strict=strict,
                    cast=cast,
                    verify=verify,
                    device=device,
                    threads=self._options["threads"],
                    timeout=self._timeout,
                    group=self._group,
                )
            except DeadlineError:
                raise
            except Exception as error:
                # Another rank may have failed otherwise: what follows, they find out together.
                wish = wish.after(choice.step, error)
                continue
            self._left_behind = choice.newer
            self._last_step = choice.step
            return choice.step

    def _choose(self, wish: Wish) -> tuple[Choice, Found | None]:
        best = self._retention.best
        if self._tiers is not None:
            found = self._tiers.choose(lambda: read_steps(self._shelf), wish, best)
            return found.choice, found
        council = council_of(self._group, act="choose", timeout=self._timeout)
        return agree_on_step(council, self._shelf, wish, best), None

    def _load(self, step: int, found: Found | None, share: Share, **options: Any) -> LoadReport:
        tiers = self._tiers
        if tiers is None or found is None or found.located is None or found.manifest is None:
            return load(self._place_of(step), share=share, **options)
        located, manifest = found.located, found.manifest
        report = load_from(
            lambda: tiers.open_found(located, manifest),
            make_sharing=lambda council, _: tiers.sharing(located, council),
            **options,
        )
        if not located.in_slow:
            tiers.resume(located, manifest, lambda: self._tidy(step))
        return report

    def _warn(self, choice: Choice, said: set[str]) -> None:
        for text in choice.warnings:
            if self._is_chair and text not in said:
                _log.warning("%s", text)
            said.add(text)

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
        busy = {step for step, handle in self._handles if not handle.done()} - {just_saved}
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
            self._discard_spares()
            self._common.close()
            if self._signals is not None:
                self._signals.close()
                self._signals = None

    def _discard_spares(self) -> None:
        if self._is_chair and self._shelf.recycled_from is not None:
            self._shelf.discard_spares()
        if self._tiers is not None:
            self._tiers.discard_spares()

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
        self._common.close()
        self._wait_or_die(error)
        try:
            self.close()
        except Exception as later:
            # What ended the block counts; it must not be hidden by what followed from it.
            _log.warning("a save failed, too: %s", later)

    def _wait_or_die(self, error: BaseException) -> None:
        """Wait for saves under way; once SIGTERM came, not for long, and then let it do its work.

        A rank that was killed often is the reason for all this, and no save ends without it.
        """
        deadline: float | None = None
        while self._signals is not None and not self._is_idle():
            if self._signals.has_to_stop:
                deadline = deadline or time.monotonic() + _LAST_SECONDS
                if time.monotonic() > deadline:
                    self._die(error)
            time.sleep(_POLL_SECONDS)

    def _is_idle(self) -> bool:
        saved = all(handle.done() for _, handle in self._handles)
        return saved and (self._tiers is None or self._tiers.is_idle)

    def _die(self, error: BaseException) -> None:
        steps = [step for step, handle in self._handles if not handle.done()]
        said = f"SIGTERM: the saves of steps {steps} are given up; what happened before:"
        _log.error("%s", said, exc_info=error)
        if self._signals is not None:
            self._signals.close()
            self._signals = None
        os.kill(os.getpid(), SAVE_AND_STOP)
