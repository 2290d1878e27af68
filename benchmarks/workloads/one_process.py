"""W1: how fast does one process save and load 2 GiB?

On tmpfs, where the cost of a library's own work shows, also into files that are there already; and
on the disk: into the page cache, with fsync, and read back warm and cold.
"""

from benchmarks.asked import Asked
from benchmarks.contenders.contender import Contender
from benchmarks.contenders.own import RecycledFiles, Shardkeep
from benchmarks.contenders.peers import Megatron, peers
from benchmarks.contenders.raw import Raw, RawAndHashed
from benchmarks.contenders.torch_ways import Dcp, Safetensors, TorchSave
from benchmarks.figures import Figure
from benchmarks.places import BUILD, TMPFS
from benchmarks.races import Race
from benchmarks.stored_states import large

NAME = "W1"
TITLE = "One process, 2 GiB in 435 tensors"


def _fresh() -> list[Contender]:
    return [Shardkeep(), RawAndHashed(), Dcp(), Dcp(2), Dcp(4), Safetensors(), TorchSave()]


def _durable() -> list[Contender]:
    ours = [Shardkeep(durable=True), Raw(durable=True)]
    return [*ours, Dcp(durable=True), Dcp(2, durable=True), Safetensors(durable=True)]


def run(asked: Asked) -> list[Figure]:
    """Of all settings that are asked for."""
    shapes = large(asked.quick)
    figures: list[Figure] = []
    if asked.has("tmpfs"):
        again = [RecycledFiles(), Raw(recycled=True)]
        together = [*_fresh(), *asked.unless_quick(peers()), *again]
        # Afterwards: with all others in one process, it would need more memory than there is.
        for contenders in (together, asked.unless_quick([Megatron()])):
            chosen, turns = asked.chosen(contenders), asked.turns(5, 2)
            if chosen:
                figures += Race(NAME, "tmpfs", shapes, chosen, turns, place=TMPFS).run()
    if asked.has("disk"):
        others = asked.unless_quick([*peers(), Megatron(durable=True)])
        contenders = asked.chosen([*_fresh(), *others, *_durable()])
        turns = asked.turns(3, 1)
        figures += Race(NAME, "disk", shapes, contenders, turns, place=BUILD).run()
    return figures
