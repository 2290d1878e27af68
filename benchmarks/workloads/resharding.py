"""W4: how fast is what four processes saved loaded into other processes and other shards?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from benchmarks.asked import Asked
from benchmarks.contenders.contender import Contender
from benchmarks.contenders.own import Shardkeep
from benchmarks.contenders.raw import RawOfOthers
from benchmarks.contenders.torch_ways import Dcp
from benchmarks.figures import RAW, Figure
from benchmarks.places import TMPFS, folder_on
from benchmarks.ranks import on_ranks
from benchmarks.state_dicts import Shapes
from benchmarks.stored_states import Placing, State, large, make, require_equal, zero
from benchmarks.turns import Turns, figures_of, in_turn

NAME = "W4"
TITLE = "What four processes saved with Shard(0), 2 GiB, loaded into others, tmpfs"


@dataclass(frozen=True)
class Into:
    """Who loads; one process alone holds whole tensors."""

    setting: str
    ranks: int
    placing: Placing = Placing.ROWS


SAME_DIM = (Into("4 to 2, same dim", 2), Into("4 to 1", 1))
OTHER_DIM = (
    Into("4 to 2, Shard(1)", 2, Placing.COLUMNS),
    Into("4 to 4, Shard(1)", 4, Placing.COLUMNS),
)


def run(asked: Asked) -> list[Figure]:
    """Of all who load; the checkpoints are saved once."""
    shapes, turns = large(asked.quick), asked.turns(5, 1)
    contenders = asked.chosen([Shardkeep(), RawOfOthers(), Dcp()])
    figures: list[Figure] = []
    with folder_on(TMPFS) as folder:
        on_ranks(4, lambda: _save_all(contenders, shapes, folder))
        for into in (*SAME_DIM, *OTHER_DIM):
            if asked.has(into.setting):
                by_rank = on_ranks(
                    into.ranks,
                    lambda into=into: _load_all(contenders, shapes, folder, into, turns),
                )
                figures += figures_of(NAME, into.setting, by_rank)
    return figures


def _save_all(contenders: Sequence[Contender], shapes: Shapes, folder: Path) -> None:
    state = make(shapes, Placing.ROWS, filled=True)
    for contender in contenders:
        contender.save(state, folder / contender.name)
        dist.barrier()


def _load_all(
    contenders: Sequence[Contender], shapes: Shapes, folder: Path, into: Into, repetitions: int
) -> Turns:
    turns = Turns()
    target = make(shapes, into.placing, filled=False)
    expected = make(shapes, into.placing, filled=True)
    for contender in contenders:
        _check(contender, target, expected, folder / contender.name)
    del expected
    for turn in range(repetitions):
        for contender in in_turn(contenders, turn):
            path = folder / contender.name
            turns.timed("load", contender.name, lambda: contender.load(target, path))  # noqa: B023
    return turns


def _check(contender: Contender, target: State, expected: State, path: Path) -> None:
    """What comes back is what was saved; this also loads the code that will run.

    Raw reads as many bytes, which is all that it is to do.
    """
    zero(target)
    contender.load(target, path)
    if contender.name != RAW:
        require_equal(target, expected, contender.name)
    dist.barrier()
