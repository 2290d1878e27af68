"""What do two ranks of a Lightning Trainer do? Run by torchrun; each writes what it saw."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import shardkeep as sk
from shardkeep.integrations.lightning import ShardkeepDDPStrategy, ShardkeepModelParallelStrategy
from tests.integrations.jobs import raised, say


class Model(pl.LightningModule):
    """Dropout, so that random states matter; a BatchNorm, whose buffers differ between ranks."""

    def __init__(self, width: int = 10, note: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(3)
        self.net = nn.Sequential(
            nn.Linear(6, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 1)
        )
        self.losses: list[float] = []

    def configure_model(self) -> None:
        if self.device_mesh is not None and not hasattr(self.net[0].weight, "placements"):
            fully_shard(self.net[0], mesh=self.device_mesh["data_parallel"])
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        loss = (self.net(x) - y).square().mean()
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", (self.net(batch[0]) - batch[1]).square().mean(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 6, generator=generator)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)


def trainer(folder: Path, way: str, epochs: int, last: Any = True) -> pl.Trainer:
    strategies = {
        "ddp": ShardkeepDDPStrategy,
        "fsdp": lambda: ShardkeepModelParallelStrategy(
            data_parallel_size=2, tensor_parallel_size=1
        ),
    }
    callbacks = [
        ModelCheckpoint(folder, save_top_k=2, monitor="val", save_last=last),
        Timer(),
    ]
    return pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategies[way](),
        max_epochs=epochs,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=True,
    )


def full(model: nn.Module) -> dict[str, list[float]]:
    """Parameters and buffers, whole."""
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).flatten().tolist()
        for name, value in model.state_dict().items()
    }


def fit(
    folder: Path, way: str, epochs: int, resume: Path | str | None = None, last: Any = True
) -> dict[str, Any]:
    pl.seed_everything(5 + dist_rank(), verbose=False)
    model = Model()
    run = trainer(folder, way, epochs, last)
    run.fit(model, loader(), loader(), ckpt_path=resume)
    optimizer = run.optimizers[0]
    checkpoints = run.checkpoint_callback
    assert isinstance(checkpoints, ModelCheckpoint)
    return {
        "losses": model.losses,
        "weights": full(model),
        "lr": optimizer.param_groups[0]["lr"],
        "step": run.global_step,
        "epoch": run.current_epoch,
        "best": len(checkpoints.best_k_models),
        "files": sorted(one.name for one in folder.iterdir()),
    }


def dist_rank() -> int:
    return int(os.environ["RANK"])


def validated(path: Path, way: str) -> Any:
    run = trainer(path.parent, way, 1)
    (found,) = run.validate(Model(), loader(), ckpt_path=path, verbose=False)
    return found["val"]


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    said: dict[str, Any] = {}
    for way in ("ddp", "fsdp"):
        said[way] = fit(folder / way, way, 4)
        said[f"{way}-half"] = fit(folder / f"{way}-half", way, 2)
        said[f"{way}-rest"] = fit(folder / f"{way}-half", way, 4, "last")
    # A checkpoint of one strategy goes on under the other.
    fit(folder / "cross", "fsdp", 2, last="link")
    said["cross"] = fit(folder / "cross-ddp", "ddp", 4, folder / "cross/last.ckpt")
    said["validated"] = [validated(folder / "ddp/last.ckpt", way) for way in ("ddp", "fsdp")]
    said["mistakes"] = mistakes(folder)
    say(folder, said)
    dist.barrier()


def mistakes(folder: Path) -> dict[str, str]:
    def bad_value() -> None:
        run = trainer(folder / "bad", "ddp", 1)
        run.fit(Model(note=object()), loader())

    def other_width() -> None:
        trainer(folder / "other", "ddp", 5).fit(
            Model(width=12), loader(), ckpt_path=folder / "ddp/last.ckpt"
        )

    def not_lightning() -> None:
        sk.save({"model": {"w": torch.ones(2)}}, folder / "plain")
        trainer(folder / "other", "ddp", 5).fit(Model(), loader(), ckpt_path=folder / "plain")

    def missing() -> None:
        trainer(folder / "other", "ddp", 5).fit(Model(), loader(), ckpt_path=folder / "no")

    acts = (bad_value, other_width, not_lightning, missing)
    return {act.__name__: raised(act) for act in acts}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
