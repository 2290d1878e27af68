"""W2: how fast do four processes save and load the same 2 GiB, sharded or held twice?

With Shard(0) each rank has a quarter. With HSDP two hold each half: every byte is to be written
once, and by all ranks alike.
"""

from benchmarks.asked import Asked
from benchmarks.contenders.own import Shardkeep
from benchmarks.contenders.peers import Megatron
from benchmarks.contenders.raw import Raw
from benchmarks.contenders.torch_ways import Dcp
from benchmarks.figures import Figure
from benchmarks.races import Race
from benchmarks.stored_states import Placing, large

NAME = "W2"
TITLE = "Four processes, 2 GiB of DTensors, tmpfs"
RANKS = 4


def run(asked: Asked) -> list[Figure]:
    """Of both placings."""
    figures: list[Figure] = []
    for placing in (Placing.ROWS, Placing.HSDP):
        if asked.has(placing.value):
            others = asked.unless_quick([Megatron()]) if placing is Placing.ROWS else []
            race = Race(
                NAME,
                placing.value,
                large(asked.quick),
                asked.chosen([Shardkeep(), Raw(), Dcp(), Dcp(2), *others]),
                asked.turns(5, 1),
                ranks=RANKS,
                placing=placing,
                times_loads=placing is Placing.ROWS,
            )
            figures += race.run()
    return figures
