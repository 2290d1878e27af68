"""How one global shape is divided among ranks."""

from shardkeep.layouts.layout import Layout, ListedLayout, Part
from shardkeep.layouts.mesh import Mesh
from shardkeep.layouts.mesh_layout import MeshLayout
from shardkeep.layouts.placements import Placement, Replicate, Split

__all__ = [
    "Layout",
    "ListedLayout",
    "Mesh",
    "MeshLayout",
    "Part",
    "Placement",
    "Replicate",
    "Split",
]
