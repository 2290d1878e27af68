"""What do two ranks of an Accelerator do? Run by torchrun; each says what it saw."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shardkeep as sk
from shardkeep.integrations.accelerate import load_state, save_state, state_of
from tests.integrations.jobs import raised, say

EPOCHS, BATCHES = 3, 4


class Progress:
    """What a training script registers with the Accelerator."""

    def __init__(self) -> None:
        self.epoch = self.batch = 0
        self.note: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batch": self.batch, "note": self.note}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.batch, self.note = state["epoch"], state["batch"], state["note"]


class Run:
    """A training with all that an Accelerator keeps; a BatchNorm, since its buffers differ."""

    def __init__(self, dropout: float, width: int = 10) -> None:
        config = DataLoaderConfiguration(use_seedable_sampler=True)
        self.accelerator = Accelerator(cpu=True, dataloader_config=config)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.accelerator.scaler = self.scaler
        self.rank = self.accelerator.process_index
        torch.manual_seed(11)
        net = nn.Sequential(
            nn.Linear(6, width), nn.BatchNorm1d(width), nn.Dropout(dropout), nn.Linear(width, 1)
        )
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        x = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
        loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
        prepared = self.accelerator.prepare(net, optimizer, scheduler, loader)
        self.net, self.optimizer, self.scheduler, self.loader = prepared
        self.progress = Progress()
        self.accelerator.register_for_checkpointing(self.progress)
        self.losses: list[float] = []
        # Numbers of each rank's own: only what was saved can bring them back.
        torch.rand(1 + self.rank)

    def train(self, stop: tuple[int, int] | None = None) -> Run:
        """To the end, or until `stop`, an epoch and a batch."""
        for epoch in range(self.progress.epoch, EPOCHS):
            self.loader.set_epoch(epoch)
            loader: Any = self.loader
            if self.progress.batch:
                loader = self.accelerator.skip_first_batches(loader, self.progress.batch)
            for x, y in loader:
                self._step(x, y)
                self.progress.batch += 1
                if (epoch, self.progress.batch) == stop:
                    return self
            self.progress.epoch, self.progress.batch = epoch + 1, 0
        return self

    def _step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        with self.accelerator.accumulate(self.net):
            loss = (self.net(x) - y).square().mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        self.losses.append(loss.item())

    def said(self) -> dict[str, Any]:
        net = self.accelerator.unwrap_model(self.net)
        return {
            "losses": self.losses,
            "weights": {name: value.flatten().tolist() for name, value in net.state_dict().items()},
            "lr": self.scheduler.get_last_lr(),
        }


def drawn() -> list[float]:
    return [torch.rand(1).item(), random.random(), float(np.random.rand())]


def resumed(path: Path, dropout: float, stop: tuple[int, int]) -> dict[str, Any]:
    """A run that is stopped and another that goes on from there."""
    first = Run(dropout).train(stop)
    first.scaler.update(32.0)
    save_state(first.accelerator, path)
    numbers = drawn()
    second = Run(dropout)
    second.accelerator.step = 99
    load_state(second.accelerator, path)
    found = {
        "scale": second.scaler.get_scale(),
        "step": second.accelerator.step - first.accelerator.step,
        "epoch": second.loader.iteration,
        "numbers": [numbers, drawn()],
    }
    return second.train().said() | found


def epoch_end(run: Run, path: Path) -> None:
    """Saved after the last batch of the first epoch, when nothing of the next was drawn."""
    run.train((0, BATCHES))
    run.progress.epoch, run.progress.batch = 1, 0
    save_state(run.accelerator, path)


def mistakes(folder: Path) -> dict[str, str]:
    def another_width() -> None:
        load_state(Run(0.0, width=12).accelerator, folder / "within")

    def ranks_differ() -> None:
        run = Run(0.0)
        run.progress.note = run.rank
        save_state(run.accelerator, folder / "differ")

    def there_already() -> None:
        save_state(Run(0.0).accelerator, folder / "within")

    def one_more_object() -> None:
        run = Run(0.0)
        run.accelerator.register_for_checkpointing(Progress())
        load_state(run.accelerator, folder / "within")

    def hooked() -> None:
        run = Run(0.0)
        handle = run.accelerator.register_save_state_pre_hook(lambda *_: None)
        try:
            save_state(run.accelerator, folder / "hooked")
        finally:
            handle.remove()

    acts = (another_width, ranks_differ, there_already, one_more_object, hooked)
    return {act.__name__: raised(act) for act in acts}


def own_values(folder: Path) -> Any:
    """What differs between ranks on purpose comes back to its rank."""
    run = Run(0.0)
    run.progress.note = sk.per_rank(run.rank * 10)
    save_state(run.accelerator, folder / "own")
    other = Run(0.0)
    load_state(other.accelerator, folder / "own")
    return other.progress.note


def with_checkpointer(folder: Path) -> Any:
    run = Run(0.0).train((0, 2))
    with sk.Checkpointer(folder / "run", keep_last=1) as steps:
        for step in (1, 2):
            steps.save_async(step, state_of(run.accelerator))
    other = Run(0.0)
    with sk.Checkpointer(folder / "run") as steps:
        return [steps.restore(state_of(other.accelerator)), steps.steps(), other.progress.batch]


def main(folder: Path) -> None:
    said: dict[str, Any] = {"whole": Run(0.0).train().said()}
    said["within"] = resumed(folder / "within", 0.0, (1, 2))
    said["whole-dropout"] = Run(0.3).train().said()
    epoch_end(Run(0.3), folder / "between")
    second = Run(0.3)
    load_state(second.accelerator, folder / "between")
    said["between"] = second.train().said()
    said["own"] = own_values(folder)
    said["run"] = with_checkpointer(folder)
    said["mistakes"] = mistakes(folder)
    say(folder, said)
    Accelerator().end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
