"""W3: what does each tensor cost? 20,000 of 4 KiB, on one process and over four."""

from benchmarks.asked import Asked
from benchmarks.contenders.contender import Contender
from benchmarks.contenders.own import Shardkeep
from benchmarks.contenders.peers import Megatron, peers
from benchmarks.contenders.raw import Raw
from benchmarks.contenders.torch_ways import Dcp, Safetensors, TorchSave
from benchmarks.figures import DCP, Figure
from benchmarks.races import Race, races_apart
from benchmarks.stored_states import small

NAME = "W3"
TITLE = "20,000 tensors of 4 KiB, tmpfs"
ALONE, TOGETHER = "1 process", "4 processes"


def run(asked: Asked) -> list[Figure]:
    """Of one process, then of four."""
    shapes = small(asked.quick)
    ours: list[Contender] = [Shardkeep(), Raw(), Dcp()]
    figures: list[Figure] = []
    if asked.has(ALONE):
        others = asked.unless_quick([*peers(), Megatron()])
        together = [*ours, Safetensors(), TorchSave()]
        figures += races_apart(asked, NAME, ALONE, small, together, others, asked.turns(3, 1))
    if asked.has(TOGETHER):
        contenders, turns = asked.chosen(ours), asked.turns(3, 1)
        figures += Race(NAME, TOGETHER, shapes, contenders, turns, ranks=4, once=(DCP,)).run()
    return figures
