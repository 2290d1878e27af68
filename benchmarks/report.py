"""How are the figures shown, and where are they kept?"""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.contest import Contest, Figures


def show(contests: Sequence[Contest], console: Console) -> None:
    table = Table(title="PyTorch and shardkeep: median time, and peak memory beyond the inputs")
    table.add_column("task")
    table.add_column("size")
    for name in ("torch", "shardkeep", "faster", "torch memory", "shardkeep memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for contest in contests:
        table.add_row(
            contest.task,
            contest.size,
            time_text(contest.torch),
            time_text(contest.shardkeep),
            f"{contest.speedup:.1f}x",
            memory_text(contest.torch),
            memory_text(contest.shardkeep),
        )
    console.print(table)
    console.print("Memory: all ranks together (the rank that took most).")


def time_text(figures: Figures) -> str:
    digits = 0 if figures.seconds >= 0.1 else 1
    return f"{1e3 * figures.seconds:,.{digits}f} ms"


def memory_text(figures: Figures) -> str:
    return f"{_mib(figures.peak_nbytes)} ({_mib(figures.peak_nbytes_of_one)}) MiB"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f}"


def keep(contests: Sequence[Contest], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([contest.as_json() for contest in contests], indent=2) + "\n")
