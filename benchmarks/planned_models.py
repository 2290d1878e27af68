"""Which model, laid out over how many ranks, is planned in the comparison?"""

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import shardkeep.layouts.mesh_layout as mesh_layouts
import shardkeep.plan.divide as divisions
import shardkeep.transfer.planning as planning
from shardkeep.layouts import Layout, Mesh, Replicate, Split
from shardkeep.manifest import DictNode, TensorNode
from shardkeep.plan import Entry
from shardkeep.plan.settle import SaveView

TENSORS = 1000
_BLOCK = {
    "wq": (32768, 4096),
    "wk": (16384, 4096),
    "wv": (16384, 4096),
    "wo": (32768, 4096),
    "w1": (65536, 4096),
    "w2": (65536, 4096),
    "norm": (4096,),
    "bias": (32768,),
}


@lru_cache(1)
def shapes(count: int = TENSORS) -> Mapping[str, tuple[int, ...]]:
    """The parameters of a transformer, `count` of them."""
    names = [(f"model.layers.{n // len(_BLOCK)}", n) for n in range(count)]
    return {f"{layer}.{list(_BLOCK)[n % len(_BLOCK)]}": _shape(n) for layer, n in names}


def _shape(number: int) -> tuple[int, ...]:
    return list(_BLOCK.values())[number % len(_BLOCK)]


@dataclass(frozen=True)
class Parallelism:
    """How all tensors lie on a number of ranks."""

    name: str

    def mesh(self, ranks: int) -> Mesh:
        sides = {"FSDP": (ranks,), "HSDP": (4, ranks // 4), "FSDP x TP": (ranks // 4, 4)}
        return Mesh(sides[self.name], tuple(range(ranks)))

    def placements(self, key: str) -> tuple[Replicate | Split, ...]:
        if self.name == "FSDP":
            return (Split(0),)
        if self.name == "HSDP":
            return (Replicate(), Split(0))
        if key.endswith((".wo", ".w2")):
            return (Split(0), Split(1))
        if key.endswith(".norm"):
            return (Split(0), Replicate())
        return (Split(0, interleave=4), Split(0))

    def entries(self, mesh: Mesh) -> dict[str, Entry]:
        """What a rank's view has of each tensor, as if read from its DTensors."""
        return {
            key: Entry("BF16", shape, Layout.on_mesh(shape, mesh, self.placements(key)))
            for key, shape in shapes().items()
        }


PARALLELISMS = [Parallelism(name) for name in ("FSDP", "HSDP", "FSDP x TP")]


def view_of(entries: Mapping[str, Entry]) -> SaveView:
    """The tensors in one flat dict."""
    items = tuple((key, TensorNode(number)) for number, key in enumerate(entries))
    return SaveView(DictNode(items, ordered=False), entries)


def forget() -> None:
    """Empty the caches of earlier plans: every plan is a first one."""
    runs, parts = mesh_layouts._runs, mesh_layouts._parts
    layouts = mesh_layouts.mesh_layout
    for cached in (layouts, runs, parts, divisions._mesh_cuts, divisions._chunks):
        cached.cache_clear()
    for kept in (planning._settlements, planning._divided):
        kept.clear()
    gc.collect()
