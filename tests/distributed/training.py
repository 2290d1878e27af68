"""How is a small model trained under each parallelism, with all that a run consists of?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

import shardkeep as sk
from shardkeep.state.modules import plain_name
from tests.distributed.parallelisms import Ranks, group_of, mesh_of

# Rows that 4 and 3 ranks share unevenly, and hidden units that 4 and 2 share evenly.
WIDTH, HIDDEN, SAMPLES, GLOBAL_BATCH = 6, 8, 132, 12
Snapshot = dict[str, Any]


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(self.up(self.norm(x)).tanh()))


class Net(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.head = nn.Linear(WIDTH, 2)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _plain(net: Net, ranks: Ranks) -> nn.Module:
    return net


def _ddp(net: Net, ranks: Ranks) -> nn.Module:
    return DistributedDataParallel(net, process_group=group_of(ranks))


def _shard(net: Net, mesh: Any) -> Net:
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def _divide(net: Net, mesh: Any) -> Net:
    for block in net.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return net


WAYS: dict[str, Callable[[Net, Ranks], nn.Module]] = {
    "plain": _plain,
    "ddp": _ddp,
    "fsdp": lambda net, ranks: _shard(net, mesh_of(ranks, 1, "tp")),
    "hsdp": lambda net, ranks: _shard(net, mesh_of(ranks, 2, "dp", "tp")),
    "tp": lambda net, ranks: _divide(net, mesh_of(ranks, 1, "tp")),
    "fsdp_tp": lambda net, ranks: _shard(
        _divide(net, mesh_of(ranks, 2, "dp", "tp")["tp"]), mesh_of(ranks, 2, "dp", "tp")["dp"]
    ),
}


def data_rank(way: str, ranks: Ranks) -> tuple[int, int]:
    """The data-parallel rank, of how many."""
    size = {"plain": 1, "tp": 1, "fsdp_tp": 2}.get(way, len(ranks))
    me = ranks.index(dist.get_rank()) if way != "plain" else 0
    return me * size // len(ranks), size


class Run:
    """All that a training run has, as a state tree, too."""

    def __init__(
        self, way: str, ranks: Ranks, *, seed: int, dropout: float = 0.3, device: str = "cpu"
    ) -> None:
        torch.manual_seed(seed)
        with torch.device(device):
            net = Net(dropout)
        self.model = WAYS[way](net, ranks)
        self.net: Any = net
        self.optimizer = self._optimizer(lr=0.01 * seed)
        self.scheduler = OneCycleLR(self.optimizer, max_lr=0.02 * seed, total_steps=40)
        rank, world = data_rank(way, ranks)
        self.batch = GLOBAL_BATCH // world
        self.cursor = sk.DataCursor(SAMPLES, rank=rank, world=world, seed=seed)
        self.state: dict[str, Any] = {
            "model": self.model,
            "optim": self.optimizer,
            "sched": self.scheduler,
            "rng": sk.rng_state(),
            "cursor": self.cursor,
            "step": 0,
        }
        # Ranks of one tensor-parallel group drop the same units.
        torch.manual_seed(1000 * seed + rank)

    def _optimizer(self, lr: float) -> AdamW:
        """Two groups; one by one, for some parameters may be DTensors and some plain."""
        weights = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return AdamW(groups, lr=lr, foreach=False)

    def train(self, steps: int) -> list[float]:
        """The loss of each step on this rank."""
        losses: list[float] = []
        for _ in range(steps):
            if not self.cursor.remaining:
                self.cursor.next_epoch()
            x, y = samples(self.cursor.take(self.batch))
            loss = (self.model(x) - y).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.net.steps += 1
            self.state["step"] += 1
            losses.append(loss.item())
        return losses

    def snapshot(self, cells: Callable[[torch.Tensor], torch.Tensor]) -> Snapshot:
        """Copies of all there is, by plain names; `cells` gives what of each tensor to copy."""
        found: Snapshot = {
            "step": self.state["step"],
            "rates": self.scheduler.get_last_lr(),
            "groups": [group["lr"] for group in self.optimizer.param_groups],
            "epoch": self.cursor.epoch,
        }
        for name, value in self.model.state_dict().items():
            found[plain_name(self.model, name)] = cells(value)
        names = {p: plain_name(self.model, name) for name, p in self.model.named_parameters()}
        for parameter, known in self.optimizer.state.items():
            assert isinstance(parameter, nn.Parameter)
            for key, value in known.items():
                found[f"{names[parameter]}/{key}"] = cells(value)
        return found

    def local(self) -> Snapshot:
        """This rank's parts, its random state and its position in the data."""
        mine = {"rng": torch.get_rng_state(), "remaining": self.cursor.remaining}
        return self.snapshot(_local) | mine

    def full(self) -> Snapshot:
        """Everything gathered; SPMD."""
        return self.snapshot(_full)


def samples(numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, which follow from a sample's number."""
    at = torch.tensor(numbers, dtype=torch.float32)[:, None]
    return torch.sin(at * torch.arange(1, WIDTH + 1)), torch.cos(at * torch.arange(1, 3))


def _local(value: torch.Tensor) -> torch.Tensor:
    local = value.to_local() if isinstance(value, DTensor) else value
    return local.detach().clone()


def _full(value: torch.Tensor) -> torch.Tensor:
    full = value.full_tensor() if isinstance(value, DTensor) else value
    return full.detach().clone()


def assert_same_snapshot(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Equal to the last bit."""
    assert set(found) == set(expected), sorted(set(found) ^ set(expected))
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype, name
            assert torch.equal(found[name], value), f"{name}: {found[name]} instead of {value}"
        else:
            assert found[name] == value, f"{name}: {found[name]} instead of {value}"
