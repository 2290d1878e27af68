"""What happens to a tensor that four processes share when they divide it anew?

Run it with `make demo`. Every rank checks every value that it holds; rank 0 prints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import shardkeep as sk
from shardkeep.plan import plan_moves

RANKS = 4
SHAPE = (96, 192)
STYLES = ["#101418 on #7fc8f8", "#101418 on #ffd166", "#101418 on #a8d672", "#101418 on #f4978e"]

# Five boxes in a whirl: no grid has them, and rank 2 holds two of them.
WHIRL = [
    (0, sk.Box((0, 0), (36, 128))),
    (1, sk.Box((0, 128), (60, 192))),
    (2, sk.Box((60, 56), (96, 192))),
    (3, sk.Box((36, 0), (96, 56))),
    (2, sk.Box((36, 56), (60, 128))),
]


def main(console: Console) -> int:
    """The exit code: 0 if every value matched."""
    dist.init_process_group("gloo")
    if dist.get_world_size() != RANKS:
        raise SystemExit(f"the demo needs {RANKS} processes: use `make demo`")
    check = Check()
    page = Page(console if dist.get_rank() == 0 else None)
    reshard(page, check)
    broadcast(page, check)
    seen, wrong = check.on_all_ranks()
    if wrong:
        page.line(f"{wrong:,} of {seen:,} values are WRONG.", "bold red")
    else:
        page.line(f"All {seen:,} values that the {RANKS} ranks hold matched.", "bold green")
    dist.destroy_process_group()
    return 1 if wrong else 0


def reshard(page: Page, check: Check) -> None:
    """Rows, then columns, then the whirl; then the whole on rank 0."""
    full = torch.arange(math.prod(SHAPE), dtype=torch.float32).reshape(SHAPE)
    rows = sk.ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in range(RANKS)])
    columns = sk.ChunkShardingSpec(dim=1, placements=[f"rank:{r}/cpu" for r in range(RANKS)])

    by_rows = sk.shard_tensor(full, rows)
    by_columns = by_rows.reshard(columns)
    in_whirl = by_columns.reshard(sk.Layout.listed(SHAPE, WHIRL))
    whole = in_whirl.gather(dst=0)

    tensors = [by_rows, by_columns, in_whirl]
    for tensor in tensors:
        for shard in tensor.local_shards():
            check.same(shard.tensor, full[shard.metadata.box.slices()])
    if whole is not None:
        check.same(whole, full)

    layouts = [sk.Layout.of(tensor) for tensor in tensors]
    page.title("1. One tensor, divided three ways")
    page.line(f"float32, {SHAPE[0]} x {SHAPE[1]}. Each digit is the rank that holds the cell.")
    page.pictures(["rows", "columns", "hand-made boxes"], layouts)
    steps = ["rows -> columns", "columns -> hand-made boxes", "hand-made boxes -> rank 0"]
    goals = [*layouts[1:], sk.Layout.replicated(SHAPE, [0])]
    all_gather = (RANKS - 1) * full.nbytes
    page.traffic(
        "a full all-gather",
        [
            (step, sent_nbytes(source, goal, full.dtype), all_gather)
            for step, source, goal in zip(steps, layouts, goals, strict=True)
        ],
    )


def broadcast(page: Page, check: Check) -> None:
    """A full state dict on rank 0 into the FSDP2 shards of a model that has no memory yet."""
    full = tiny_model("cpu").state_dict() if dist.get_rank() == 0 else {}
    model = tiny_model("meta")
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))

    state: dict[str, Any] = model.state_dict()
    sk.broadcast_state_dict(full, state)
    model.load_state_dict(state, assign=True)

    expected = tiny_model("cpu")
    for name, tensor in expected.state_dict().items():
        for part in sk.Layout.of(state[name]).parts_of(dist.get_rank()):
            check.same(state[name].to_local()[part.place.slices()], tensor[part.box.slices()])
    batch = torch.linspace(-1, 1, 3 * 8).reshape(3, 8)
    check.same(model(batch), expected(batch))

    page.title("2. A full state dict on rank 0, into FSDP2 shards on all")
    page.shards({name: sk.Layout.of(tensor) for name, tensor in state.items()})
    sent = sum(
        sent_nbytes(sk.Layout.replicated(t.shape, [0]), sk.Layout.of(t), t.dtype)
        for t in state.values()
    )
    everything = (RANKS - 1) * sum(t.numel() * t.element_size() for t in state.values())
    page.traffic("everything to all", [("rank 0 -> shards", sent, everything)])


def tiny_model(device: str) -> nn.Module:
    """The same weights on every rank, unless they are on the meta device."""
    torch.manual_seed(7)
    with torch.device(device):
        return nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 6))


def sent_nbytes(source: sk.Layout, target: sk.Layout, dtype: torch.dtype) -> int:
    """The bytes of tensor data that cross from one process to another."""
    moves = [plan_moves((source,), target, rank) for rank in range(RANKS)]
    return sum(move.numel for plan in moves for move in plan.sends) * dtype.itemsize


class Check:
    """Counts values that were compared, and those that were wrong."""

    def __init__(self) -> None:
        self.seen = self.wrong = 0

    def same(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        if actual.shape != expected.shape:
            raise SystemExit(f"got shape {tuple(actual.shape)} instead of {tuple(expected.shape)}")
        self.seen += actual.numel()
        self.wrong += int((actual != expected).sum())

    def on_all_ranks(self) -> tuple[int, int]:
        total = torch.tensor([self.seen, self.wrong])
        dist.all_reduce(total)
        return int(total[0]), int(total[1])


class Page:
    """What rank 0 prints; nothing on the other ranks, which have no console."""

    def __init__(self, console: Console | None) -> None:
        self.console = console
        self.is_blank = True

    def line(self, text: str, style: str = "") -> None:
        self._print(Text(text, style))

    def title(self, text: str) -> None:
        self._print(Text(f"{text}\n{'-' * len(text)}", "bold"))

    def pictures(self, names: Sequence[str], layouts: Sequence[sk.Layout]) -> None:
        """Maps side by side, each with its name below."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_row(*(colored(sk.draw_layout(it, max_rows=8, max_columns=24)) for it in layouts))
        grid.add_row(*(Text(name, "italic") for name in names))
        self._print(grid)

    def shards(self, layouts: dict[str, sk.Layout]) -> None:
        """Which rows of each parameter lie on which rank."""
        table = self._table("parameter", "shape")
        for rank in range(RANKS):
            table.add_column(Text(f" rank {rank} ", STYLES[rank]), justify="center")
        for name, layout in layouts.items():
            shape = " x ".join(map(str, layout.shape))
            table.add_row(name, shape, *(rows_of(layout, rank) for rank in range(RANKS)))
        self._print(table)

    def traffic(self, other: str, steps: Iterable[tuple[str, int, int]]) -> None:
        """Bytes sent, beside what another way would send."""
        table = self._table("bytes between processes")
        table.add_column("sent", justify="right")
        table.add_column(other, justify="right")
        table.add_column("", justify="right")
        for step, nbytes, other_nbytes in steps:
            table.add_row(step, f"{nbytes:,}", f"{other_nbytes:,}", f"{nbytes / other_nbytes:.0%}")
        self._print(table)

    def _table(self, *columns: str) -> Table:
        return Table(*columns, box=None, padding=(0, 3, 0, 0), header_style="italic")

    def _print(self, what: Text | Table) -> None:
        if self.console is None:
            return
        if not self.is_blank:
            self.console.print()
        self.console.print(what)
        self.is_blank = False


def colored(picture: str) -> Text:
    """The map with a background for each rank."""
    text = Text(picture)
    for run in re.finditer(r"(\d)\1*", picture):
        text.stylize(STYLES[int(run[1])], *run.span())
    return text


def rows_of(layout: sk.Layout, rank: int) -> str:
    """The rows that a rank holds of a tensor that is cut along dim 0."""
    spans = [f"{box.start[0]}:{box.stop[0]}" for box in layout.boxes_of(rank)]
    return ", ".join(spans) or "-"


if __name__ == "__main__":
    raise SystemExit(main(Console(width=min(80, Console().width), highlight=False)))
