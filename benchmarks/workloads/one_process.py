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
from benchmarks.places import BUILD
from benchmarks.races import races_apart
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
    figures: list[Figure] = []
    if asked.has("tmpfs"):
        again = [RecycledFiles(), Raw(recycled=True)]
        others = asked.unless_quick([*peers(), Megatron()])
        figures += races_apart(
            asked, NAME, "tmpfs", large, [*_fresh(), *again], others, asked.turns(7, 2)
        )
    if asked.has("disk"):
        others = asked.unless_quick([*peers(), Megatron(durable=True)])
        together = [*_fresh(), *_durable()]
        figures += races_apart(
            asked, NAME, "disk", large, together, others, asked.turns(3, 1), place=BUILD
        )
    return figures
