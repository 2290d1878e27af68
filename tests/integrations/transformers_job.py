"""What do two ranks of a Hugging Face Trainer do? Run by torchrun; each says what it saw."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState

import shardkeep as sk
from shardkeep.integrations.transformers import ShardkeepCallback
from tests.integrations.jobs import raised, say

SAMPLES, PER_EPOCH, STEPS = 24, 6, 12


class Texts(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        words = torch.arange(index, index + 8) % 32
        return {"input_ids": words, "labels": words}


class Counter(TrainerCallback, ExportableState):
    """A callback with a state, which the Trainer gives back if it is asked to."""

    def __init__(self) -> None:
        self.count = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.count += 1

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"count": self.count}}


class StopAfter(TrainerCallback):
    """As a crash would: what was not saved by then is lost."""

    def __init__(self, step: int, sends: int | None = None) -> None:
        self.step, self.sends = step, sends

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step and self.sends is None:
            control.should_training_stop = True
        if state.global_step == self.step and self.sends is not None and rank() == 1:
            os.kill(os.getpid(), self.sends)
        if state.global_step >= self.step and self.sends is not None:
            # As long as a step of training takes: the ranks agree meanwhile, on any machine.
            time.sleep(0.3)


def rank() -> int:
    return int(os.environ["RANK"])


def tiny() -> GPT2LMHeadModel:
    torch.manual_seed(3)
    return GPT2LMHeadModel(
        GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16)
    )


def make(folder: Path, seen: list[list[int]], stop: TrainerCallback | None, **options: Any):
    def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        seen.append([int(one["input_ids"][0]) for one in samples])
        return {
            name: torch.stack([one[name] for one in samples]) for name in ("input_ids", "labels")
        }

    arguments = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "learning_rate": 0.01,
        "warmup_steps": 3,
        "logging_steps": 1,
        "save_steps": 4,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "restore_callback_states_from_checkpoint": True,
        "seed": 7,
        **options,
    }
    return Trainer(
        tiny(),
        TrainingArguments(output_dir=str(folder / "trainer"), **arguments),
        data_collator=collate,
        train_dataset=Texts(),
        eval_dataset=torch.utils.data.Subset(Texts(), range(4)),
        callbacks=[Counter(), *([stop] if stop else [])],
    )


def train(
    folder: Path, stop: TrainerCallback | None = None, keep: Any = None, **options: Any
) -> dict[str, Any]:
    seen: list[list[int]] = []
    trainer = make(folder, seen, stop, **options)
    # Numbers of each rank's own: only what was saved can bring them back.
    torch.rand(1 + rank())
    ShardkeepCallback(folder / "run", **(keep or {"keep_last": 2})).train(trainer)
    model: Any = trainer.model
    losses = {one["step"]: one["loss"] for one in trainer.state.log_history if "loss" in one}
    (counter,) = [one for one in trainer.callback_handler.callbacks if isinstance(one, Counter)]
    dist.barrier()
    return {
        "seen": seen,
        "losses": losses,
        "weights": {name: value.flatten().tolist() for name, value in model.state_dict().items()},
        "tied": model.lm_head.weight is model.transformer.wte.weight,
        "lr": cast("Any", trainer.lr_scheduler).get_last_lr(),
        "step": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "count": counter.count,
        "steps": sk.Checkpointer(folder / "run", group=None).steps(),
        "own": sorted(one.name for one in (folder / "trainer").glob("checkpoint-*")),
    }


def mistakes(folder: Path) -> dict[str, str]:
    def trained_directly() -> None:
        trainer = make(folder, [], None)
        trainer.add_callback(ShardkeepCallback(folder / "direct"))
        trainer.train()

    def another_model() -> None:
        trainer = make(folder, [], None)
        trainer.model = trainer.model_wrapped = torch.nn.Linear(2, 2)
        ShardkeepCallback(folder / "whole/run").train(trainer)

    def not_of_a_trainer() -> None:
        with sk.Checkpointer(folder / "plain") as run:
            run.save(3, {"model": {"w": torch.ones(2)}})
        ShardkeepCallback(folder / "plain").train(make(folder, [], None))

    def best_at_end() -> None:
        trainer = make(folder, [], None)
        trainer.args.load_best_model_at_end = True
        ShardkeepCallback(folder / "best").train(trainer)

    def no_such_step() -> None:
        ShardkeepCallback(folder / "whole/run").train(make(folder, [], None), step=5)

    acts = (trained_directly, another_model, not_of_a_trainer, best_at_end, no_such_step)
    return {act.__name__: raised(act) for act in acts}


def main(folder: Path) -> None:
    said: dict[str, Any] = {"whole": train(folder / "whole")}
    # Saved after 8 steps, within an epoch; stopped after 9.
    train(folder / "within", StopAfter(9))
    said["within"] = train(folder / "within")
    # Saved at the end of an epoch; stopped after one more step.
    train(folder / "between", StopAfter(7), save_steps=6)
    said["between"] = train(folder / "between", save_steps=6)
    # Saved by the epoch, with evaluations, and the better of two kept.
    said["epochs"] = train(
        folder / "epochs",
        keep={"keep_best": ("eval_loss", "min", 1), "background": False},
        save_strategy="epoch",
        eval_strategy="epoch",
    )
    # Told to stop, on one rank.
    keep = {"on_signal": True}
    said["told"] = train(folder / "told", StopAfter(5, signal.SIGTERM), keep, save_strategy="no")
    said["told-rest"] = train(folder / "told", keep=keep, save_strategy="no")
    said["mistakes"] = mistakes(folder)
    say(folder, said)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
