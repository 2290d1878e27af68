"""How does a Hugging Face Trainer keep its checkpoints with shardkeep?

By a callback that takes over when the Trainer is about to save. What the Trainer would have done
stays as it was: when (`save_strategy`, `save_steps`), and what a resumed run goes on with. The
state is kept between two steps, when logs and evaluations of the last one are in.
"""

# transformers leaves much of what its Trainer holds untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, cast

try:
    from transformers import (
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from transformers.trainer import TRAINER_STATE_NAME
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_utils import TrainOutput
except ImportError as error:
    raise ImportError(
        "shardkeep.integrations.transformers needs the Trainer of transformers: "
        "pip install 'shardkeep[transformers]'"
    ) from error

from shardkeep.checkpointer import Checkpointer
from shardkeep.errors import InvalidError, UnsupportedError
from shardkeep.integrations.accelerate import require_supported
from shardkeep.integrations.shares import SharedModule, named
from shardkeep.state.rng import RngState

_STATE_KEY = "trainer_state"
# What each rank finds out for itself.
_OWN_FIELDS = ("is_local_process_zero", "is_world_process_zero")


class ShardkeepCallback(TrainerCallback):
    """Saves and resumes a Trainer in the folder `root`, as a `Checkpointer` does.

    `options` are those of `Checkpointer`: what to keep (`keep_last`, `keep_best`, ...), when to
    save besides the Trainer's own moments (`every_seconds`, `on_signal`, ...), and how. Metrics
    are what the Trainer has logged for the step, so `keep_best=("eval_loss", "min", 1)` works.
    """

    def __init__(self, root: str | os.PathLike[str], **options: Any) -> None:
        self._root = root
        self._background: bool = options.pop("background", True)
        self._options = options
        self._job: _Job | None = None

    def train(
        self, trainer: Trainer, step: int | Literal["latest", "best"] | None = None
    ) -> TrainOutput:
        """`trainer.train()`, going on from the newest checkpoint if there is one; SPMD.

        `step` names another one, as in `Checkpointer.restore`.
        """
        _require_supported(trainer)
        trainer.pop_callback(self)
        # Last of all: it has the final word on whether the Trainer itself saves.
        trainer.add_callback(self)
        with Checkpointer(self._root, **self._options) as run:
            start = run.restore({}, step, strict=False)
            self._job = _Job(trainer, run, start, in_background=self._background)
            try:
                return self._job.train()
            finally:
                self._job = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._job is None:
            raise InvalidError(
                "ShardkeepCallback does not know its Trainer: call callback.train(trainer) "
                "instead of trainer.train()"
            )
        self._job.begin()

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        # Where a run that was saved at the end of an epoch goes on.
        if self._job is not None:
            self._job.between(may_draw=float(state.epoch or 0).is_integer())

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._job is not None:
            self._job.between(may_draw=True)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._job is not None:
            self._job.after_step(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._job is not None:
            self._job.take_over(control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._job is not None:
            self._job.flush()


class _Job:
    """One call of `train`: a Trainer, its run, and what is still to be done."""

    def __init__(self, trainer: Trainer, run: Checkpointer, start: int, in_background: bool):
        self._trainer = trainer
        self._run = run
        self._start = start
        self._in_background = in_background
        self._is_due = False
        self._saved = start
        self._rng: Any = None
        """Random states to go on with, until they are due."""

    def train(self) -> TrainOutput:
        if self._run.restored is None:
            return self._trainer.train()
        with _trainer_folder(self._run.restored.metadata) as folder, _own_weights(self._trainer):
            return self._trainer.train(resume_from_checkpoint=folder)

    def begin(self) -> None:
        """Model, optimizer and all that belongs to them, as they were saved."""
        if self._run.restored is None:
            return
        self._run.restore(self._live(), self._start)
        # The Trainer draws numbers while it looks for its place in the data.
        self._rng = RngState().kept().value

    def between(self, *, may_draw: bool) -> None:
        """Between two steps: nothing of the last is missing, nothing of the next has begun."""
        if self._rng is not None and may_draw:
            RngState().give(self._rng, set())
            self._rng = None
        self.flush()

    def after_step(self, control: TrainerControl) -> None:
        """Called once after each step, on every rank."""
        step = self._trainer.state.global_step
        self._is_due = self._run.should_save(step) or self._is_due
        self.take_over(control)
        if self._run.stopping:
            # Whoever stops the job may not wait for an evaluation.
            self.flush()
            control.should_training_stop = True

    def take_over(self, control: TrainerControl) -> None:
        self._is_due = self._is_due or control.should_save
        control.should_save = False

    def flush(self) -> None:
        """Save if that is due."""
        step = self._trainer.state.global_step
        if self._is_due and step != self._saved:
            save = self._run.save_async if self._in_background else self._run.save
            save(step, self._live(), metrics=self._metrics(), metadata=self._metadata())
            self._saved = step
        self._is_due = False

    def _live(self) -> dict[str, Any]:
        # Untyped: what these hold depends on the backend.
        trainer: Any = self._trainer
        model, optimizer = trainer.model, trainer.optimizer
        live: dict[str, Any] = {
            "model": SharedModule(model),
            "optimizer": named(getattr(optimizer, "optimizer", optimizer), [model]),
            "scheduler": trainer.lr_scheduler,
            "rng": RngState(),
        }
        scaler = trainer.accelerator.scaler
        return live if scaler is None else live | {"scaler": scaler}

    def _metrics(self) -> dict[str, float]:
        """What was logged for this very step."""
        state = self._trainer.state
        logs = takewhile(
            lambda entry: entry.get("step") == state.global_step, reversed(state.log_history)
        )
        return {
            name: value
            for entry in logs
            for name, value in entry.items()
            if name != "step" and type(value) in (int, float)
        }

    def _metadata(self) -> dict[str, Any]:
        """The Trainer's own state: a JSON text, since its logs may hold NaN."""
        state = self._trainer.state
        state.stateful_callbacks = cast("Any", self._callbacks())
        fields = dataclasses.asdict(state)
        try:
            text = json.dumps({name: fields[name] for name in fields if name not in _OWN_FIELDS})
        except TypeError as error:
            raise InvalidError(
                f"the Trainer's state cannot be kept as JSON: {error}; look for such a value among "
                "what was logged and in the states of callbacks"
            ) from error
        return {_STATE_KEY: text}

    def _callbacks(self) -> dict[str, Any]:
        """States of callbacks by class, as the Trainer reads them; a list where there are more."""
        found: dict[str, list[Any]] = {}
        for one in [*self._trainer.callback_handler.callbacks, self._trainer.control]:
            if isinstance(one, ExportableState):
                found.setdefault(type(one).__name__, []).append(one.state())
        return {name: states if len(states) > 1 else states[0] for name, states in found.items()}


def _require_supported(trainer: Trainer) -> None:
    require_supported(trainer.accelerator)
    args = trainer.args
    if args.load_best_model_at_end or str(args.save_strategy) == "best":
        raise UnsupportedError(
            "load_best_model_at_end and save_strategy='best' need checkpoints of the Trainer's "
            "own: pass keep_best=('eval_loss', 'min', 1) to ShardkeepCallback, and load the best "
            "with Checkpointer(root, keep_best=...).restore({'model': model}, 'best', strict=False)"
        )


@contextmanager
def _trainer_folder(metadata: Mapping[str, Any]) -> Generator[str]:
    """A folder with what the Trainer itself reads to resume: where it was."""
    if _STATE_KEY not in metadata:
        raise InvalidError(
            "the checkpoint was not saved by ShardkeepCallback: it has no state of a Trainer; "
            "use shardkeep.load(path, into=...) to take weights from it"
        )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, TRAINER_STATE_NAME).write_text(metadata[_STATE_KEY])
        yield folder


@contextmanager
def _own_weights(trainer: Trainer) -> Generator[None]:
    """The Trainer does not look for weights in its folder: they are loaded when all is set up."""
    here = vars(cast("Any", trainer))
    here["_load_from_checkpoint"] = _load_nothing
    try:
        yield
    finally:
        del here["_load_from_checkpoint"]


def _load_nothing(folder: str, model: Any = None) -> None:
    pass
