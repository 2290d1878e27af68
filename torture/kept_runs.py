"""What can happen to a checkpoint and to a run, and what must be there afterwards?"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import DataObject

import shardkeep as sk
from shardkeep.errors import ConflictError, CorruptError, NotFoundError, ShardkeepError
from shardkeep.manifest import MANIFEST_NAME, decode_manifest
from shardkeep.storage import LocalStorage
from shardkeep.storage.file_calls import FileCalls
from shardkeep.testing.layout_strategies import held_by, layouts, raw, shapes
from tests.transfer.worlds import Laid, all_well, kept_by, load_held, save_kept
from torture.crash_replay import MEMORY

_KEEP_LAST = 2
_KEEP_EVERY = 5
_DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8])
_PLACES = st.integers(0, 100) | st.integers(0, 2**32)
Tensors = Mapping[str, torch.Tensor]


class Broken(FileCalls):
    """Real calls, so many of them; then none works any more, as if the process had died."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EIO, "planted")
        return getattr(FileCalls, name)(self, *args, **kwargs)


def _breaking(name: str) -> Any:
    return lambda self, *args, **kwargs: self._call(name, *args, **kwargs)


for _name in vars(FileCalls):
    # What is open can always be closed.
    if not _name.startswith("_") and _name != "close":
        setattr(Broken, _name, _breaking(_name))


@contextmanager
def broken_off(calls: int) -> Generator[None]:
    """Storages that are opened meanwhile work for so many calls together."""
    broken = Broken(calls)
    with ExitStack() as stack:
        for module in ("local", "shelf"):
            stack.enter_context(patch(f"shardkeep.storage.{module}.FileCalls", lambda: broken))
        yield


def values(shape: tuple[int, ...], dtype: torch.dtype, version: int) -> torch.Tensor:
    """Cells that tell their place and the version, as far as the dtype goes."""
    numel = int(np.prod(shape, dtype=np.int64))
    return ((torch.arange(numel) * 7 + version * 31) % 251).to(dtype).reshape(shape)


class KeptRuns(RuleBasedStateMachine):
    """A path and a run, and what a dict says of them."""

    steps_made: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("shardkeep").setLevel(logging.CRITICAL)
        self.base = Path(tempfile.mkdtemp(dir=MEMORY, prefix="shardkeep-kept-"))
        self.path = self.base / "c"
        self.version = 0
        self.there: Tensors | None = None
        """What the path holds."""
        self.is_damaged = False
        self.steps: dict[int, str] = {}
        """By step: `whole`, `flipped` (to be found only by reading) or `broken`."""
        self.passed_over: set[int] = set()
        """Steps that the run went back behind."""
        self.half_written: set[int] = set()
        self.last_step = 0
        self.mapped: dict[int, Any] = {}
        """What somebody reads of steps, whether they are still there or not."""
        self.run = self._open_run(recycle=True)

    def teardown(self) -> None:
        self.run.close()
        shutil.rmtree(self.base)

    # One path

    @rule(data=st.data(), overwrite=st.booleans(), world=st.integers(1, 3))
    def save_from_ranks(self, data: DataObject, overwrite: bool, world: int) -> None:
        tensors = self._drawn(data)
        laid = _laid(data, tensors, world)
        with LocalStorage(self.path, create=True) as storage:
            found = save_kept(lambda r: kept_by(r, laid), storage, world, overwrite=overwrite)
        if self.there is None or overwrite:
            all_well(found)
            self.there, self.is_damaged = tensors, False
        else:
            assert all(isinstance(error, ConflictError) for error in found.values()), found

    @rule(data=st.data(), overwrite=st.booleans())
    def save_in_background(self, data: DataObject, overwrite: bool) -> None:
        tensors = self._drawn(data)
        state = {key: whole.clone() for key, whole in tensors.items()}
        handle = sk.save_async(state, self.path, overwrite=overwrite)
        for live in state.values():
            live.zero_()
        try:
            handle.result()
        except ConflictError:
            assert self.there is not None
            assert not overwrite
        else:
            assert self.there is None or overwrite
            self.there, self.is_damaged = tensors, False

    @rule(data=st.data(), calls=st.integers(0, 60))
    def save_that_breaks_off(self, data: DataObject, calls: int) -> None:
        """By one rank: where several break off depends on who comes first, and would not recur."""
        tensors = self._drawn(data)
        with broken_off(calls):
            try:
                sk.save(dict(tensors), self.path, overwrite=True)
                returned = True
            except (ShardkeepError, OSError):
                returned = False
        if returned or _holds(self.path, tensors):
            self.there, self.is_damaged = tensors, False

    @rule(data=st.data(), world=st.integers(1, 3))
    @precondition(lambda self: self.there is not None)
    def load_into_any_layout(self, data: DataObject, world: int) -> None:
        assert self.there is not None
        laid = _laid(data, self.there, world)
        rank = data.draw(st.integers(0, world - 1))
        try:
            with LocalStorage(self.path) as storage:
                found = load_held(storage, laid, rank)
        except (CorruptError, NotFoundError):
            assert self.is_damaged
            return
        if self.is_damaged:
            # This rank may need nothing of what is damaged; whoever needs it, is told.
            assert not _is_whole(self.path)
        for key, one in laid.items():
            wanted = held_by(one.layout, rank, raw(one.whole))
            assert all(map(np.array_equal, found[key], wanted)), key

    @rule(data=st.data())
    @precondition(lambda self: self.there is not None and not self.is_damaged)
    def damage(self, data: DataObject) -> None:
        self.is_damaged = _damage(data, self.path) != "nothing"

    @rule()
    @precondition(lambda self: self.path.exists() and not self.is_damaged)
    def prune(self) -> None:
        planned = sk.prune(self.path, dry_run=True)
        assert sk.prune(self.path) == planned
        named = _used(self.path) if self.there is not None else set[str]()
        left = {name for name in os.listdir(self.path) if not name.endswith("-report.json")}
        assert left == named, left ^ named

    @invariant()
    def the_path_holds_what_it_must(self) -> None:
        KeptRuns.steps_made += 1
        if self.there is None:
            assert not (self.path / MANIFEST_NAME).exists()
        elif not self.is_damaged:
            assert _holds(self.path, self.there)

    def _drawn(self, data: DataObject) -> Tensors:
        self.version += 1
        made: dict[str, torch.Tensor] = {}
        for key in ("a", "b")[: data.draw(st.integers(1, 2))]:
            shape = data.draw(shapes(max_dims=2, max_numel=40))
            made[key] = values(shape, data.draw(_DTYPES), self.version)
        # By this one alone every version differs from every other.
        made["version"] = torch.tensor([self.version])
        return made

    # A run

    @rule(in_background=st.booleans())
    def save_step(self, in_background: bool) -> None:
        step = self._next_step()
        state = state_of(step)
        if in_background:
            handle = self.run.save_async(step, state)
            state["w"].zero_()
            handle.result()
        else:
            self.run.save(step, state)
        self.steps[step] = "whole"
        self._drop(self._droppable())

    @rule(calls=st.integers(0, 80))
    def save_step_that_breaks_off(self, calls: int) -> None:
        step = self._next_step()
        with broken_off(calls):
            try:
                self.run.save(step, state_of(step))
                returned = True
            except (ShardkeepError, OSError):
                returned = False
        committed = (Path(self.run.path_of(step)) / MANIFEST_NAME).exists()
        assert committed or not returned
        if committed:
            self.steps[step] = "whole"
        elif Path(self.run.path_of(step)).exists():
            self.half_written.add(step)
        # It may have come as far as to remove some of what goes; nothing else may be gone.
        gone = {one for one in self.steps if not Path(self.run.path_of(one)).exists()}
        assert gone <= self._droppable() if committed else not gone, gone
        self._drop(gone)
        self.restart("fallback", recycle=bool(calls % 2))

    @rule(data=st.data())
    @precondition(lambda self: "whole" in self.steps.values())
    def damage_step(self, data: DataObject) -> None:
        whole = [step for step, condition in self.steps.items() if condition == "whole"]
        # The newest more often: what is restored turns on it.
        step = data.draw(st.sampled_from([max(whole), max(whole), *whole]))
        # Whoever has a file mapped that is cut off could not even look at it.
        self.mapped.pop(step, None)
        done = _damage(data, Path(self.run.path_of(step)))
        self.steps[step] = {"nothing": "whole", "flip": "flipped"}.get(done, "broken")

    @rule()
    @precondition(lambda self: "whole" in self.steps.values())
    def map_a_step(self) -> None:
        """Somebody reads the oldest one from now on, for ever."""
        step = min(step for step, condition in self.steps.items() if condition == "whole")
        with sk.open(Path(self.run.path_of(step))) as checkpoint:
            self.mapped[step] = checkpoint["w"].mapped()

    @invariant()
    def what_is_mapped_stays_what_it_was(self) -> None:
        for step, found in self.mapped.items():
            assert np.array_equal(found, state_of(step)["w"].numpy()), step

    @rule(on_damage=st.sampled_from(["fallback", "raise"]), recycle=st.booleans())
    def restart(self, on_damage: Any, recycle: bool) -> None:
        """The job starts anew, and goes on from where it can."""
        self.run.close()
        self.run, self.passed_over = self._open_run(recycle=recycle), set()
        state = {"w": torch.full((300,), -1), "step": -1}
        whole = [step for step, condition in self.steps.items() if condition == "whole"]
        newest = max(self.steps, default=0)
        wanted = max(whole, default=0)
        if self.steps and (not whole or (on_damage == "raise" and wanted != newest)):
            assert _is_refused(lambda: self.run.restore(state, on_damage=on_damage))
            return
        assert self.run.restore(state, on_damage=on_damage) == wanted
        if wanted:
            assert state["step"] == wanted
            assert torch.equal(state["w"], state_of(wanted)["w"])
        self.passed_over = {step for step in self.steps if step > wanted}

    @rule(leftovers=st.booleans(), damaged=st.booleans())
    def prune_run(self, leftovers: bool, damaged: bool) -> None:
        gone = self.run.prune(leftovers=leftovers, damaged=damaged)
        assert set(gone.steps) == self._droppable()
        assert set(gone.leftovers) == (self.half_written if leftovers else set())
        broken = {step for step, condition in self.steps.items() if condition == "broken"}
        broken = broken - self.passed_over if damaged else set[int]()
        assert set(gone.damaged) == broken
        self._drop({*gone.steps, *broken})
        if leftovers:
            self.half_written.clear()

    @invariant()
    def the_run_has_the_steps_that_it_must(self) -> None:
        listed = [step for step in sorted(self.steps) if self.steps[step] != "broken"]
        assert self.run.steps() == listed

    def _open_run(self, *, recycle: bool) -> sk.Checkpointer:
        return sk.Checkpointer(
            self.base / "run", keep_last=_KEEP_LAST, keep_every=_KEEP_EVERY, recycle=recycle
        )

    def _next_step(self) -> int:
        self.last_step += 1
        return self.last_step

    def _droppable(self) -> set[int]:
        """What the retention lets go."""
        counted = [
            step
            for step in sorted(self.steps)
            if self.steps[step] != "broken" and step not in self.passed_over
        ]
        return {step for step in counted[:-_KEEP_LAST] if step % _KEEP_EVERY}

    def _drop(self, steps: set[int]) -> None:
        self.steps = {step: one for step, one in self.steps.items() if step not in steps}


def state_of(step: int) -> dict[str, Any]:
    """What a run saves at a step."""
    return {"w": torch.arange(300) + 1000 * step, "step": step}


def _laid(data: DataObject, tensors: Tensors, world: int) -> dict[str, Laid]:
    ranks = range(world)
    return {
        key: Laid(whole, data.draw(layouts(tuple(whole.shape), ranks)))
        for key, whole in tensors.items()
    }


def _is_refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except CorruptError as error:
        return "damaged" in str(error)
    return False


def _is_whole(path: Path) -> bool:
    try:
        with sk.open(path) as checkpoint:
            return bool(checkpoint.verify())
    except (CorruptError, NotFoundError):
        return False


def _holds(path: Path, tensors: Tensors) -> bool:
    """Whether exactly these tensors are at a path, bit by bit."""
    try:
        found = sk.load(path)
    except (NotFoundError, CorruptError):
        return False
    return found.keys() == tensors.keys() and all(
        found[key].dtype == whole.dtype and np.array_equal(raw(found[key]), raw(whole))
        for key, whole in tensors.items()
    )


def _used(folder: Path) -> set[str]:
    """The files that make up a checkpoint."""
    manifest = decode_manifest((folder / MANIFEST_NAME).read_bytes(), where=str(folder))
    return {MANIFEST_NAME, *(manifest.file_name(index) for index in range(len(manifest.files)))}


def _damage(data: DataObject, folder: Path) -> str:
    """What was done to a file of a checkpoint: flip, cut, remove or nothing."""
    file = folder / data.draw(st.sampled_from(sorted(_used(folder))))
    kind = data.draw(st.sampled_from(["flip", "cut", "remove"]))
    if file.name == MANIFEST_NAME and kind != "flip":
        kind = "cut"
    content = bytearray(file.read_bytes())
    if kind == "remove":
        file.unlink()
    elif kind == "cut":
        file.write_bytes(content[: data.draw(_PLACES) % len(content)])
    else:
        # Not drawn from its size: that changes a little with the digits of digests.
        at = data.draw(_PLACES) % (8 * len(content))
        content[-1 - at // 8] ^= 1 << at % 8
        file.write_bytes(content)
    return "cut" if file.name == MANIFEST_NAME else kind
