"""What memory does this rank hold of a leaf, whatever kind of tensor it is?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import torch

from shardkeep.errors import InvalidError
from shardkeep.layouts import Layout
from shardkeep.sharded.checks import replaced_shards
from shardkeep.sharded.sharded_tensor import ShardedTensor, ShardedTensorBase

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

LeafKind = Literal["tensor", "dtensor", "sharded"]
_T = TypeVar("_T")

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""The types of nearly all leaves, which are one piece of memory each."""


def leaf_kind(leaf: object) -> LeafKind | None:
    """Which kind of tensor this is; None for anything else."""
    if type(leaf) in PLAIN:
        return "tensor"
    return _kind_of(type(leaf))


# Asked several times for each leaf of a state dict, and the type alone decides.
@lru_cache(maxsize=1024)
def _kind_of(leaf_type: type) -> LeafKind | None:
    if not issubclass(leaf_type, torch.Tensor):
        return None
    if issubclass(leaf_type, ShardedTensorBase) or _is_foreign_sharded(leaf_type):
        return "sharded"
    return "dtensor" if hasattr(leaf_type, "device_mesh") else "tensor"


def _is_foreign_sharded(leaf_type: type) -> bool:
    """Whether this is PyTorch's own ShardedTensor."""
    in_torch = leaf_type.__module__.startswith("torch.distributed._shard")
    return in_torch and hasattr(leaf_type, "local_shards")


def local_tensors(leaf: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The memory that this rank holds of `leaf`, detached but shared."""
    kind = leaf_kind(leaf)
    if kind == "sharded":
        shards = cast("ShardedTensorBase", leaf).local_shards()
        return tuple(shard.tensor.detach() for shard in shards)
    if kind == "dtensor":
        return (_wait(cast("Any", leaf)._local_tensor),)
    return (leaf.detach(),)


def _wait(local: torch.Tensor) -> torch.Tensor:
    """A local tensor, detached, whose collective is done."""
    if type(local) is torch.Tensor and not local.requires_grad:
        return local
    local = local.detach()
    return local.wait() if hasattr(local, "wait") else local  # type: ignore[operator]


def is_on_meta(leaf: torch.Tensor) -> bool:
    """Whether the leaf has no memory yet; PyTorch's ShardedTensor cannot be asked itself."""
    return any(part.is_meta for part in local_tensors(leaf))


def with_local_tensors(
    leaf: torch.Tensor, tensors: Sequence[torch.Tensor], *, device: torch.device | None = None
) -> torch.Tensor:
    """The same kind of leaf with the same layout, in this memory; it requires no grad.

    `device` speaks for ranks that hold no memory of the leaf.
    """
    kind = leaf_kind(leaf)
    if isinstance(leaf, ShardedTensor):
        return leaf.with_local_tensors(tensors, device=device)
    if kind == "sharded":
        return _foreign_with(leaf, tensors)
    (local,) = tensors
    return _dtensor_with(cast("DTensor", leaf), local) if kind == "dtensor" else local


def _dtensor_with(leaf: DTensor, local: torch.Tensor) -> DTensor:
    from torch.distributed.tensor import DTensor

    with torch.no_grad():
        return DTensor.from_local(
            local,
            leaf.device_mesh,
            leaf.placements,
            run_check=False,
            shape=leaf.shape,
            stride=leaf.stride(),
        )


def _foreign_with(leaf: Any, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """PyTorch's ShardedTensor with other memory; its base class checks least."""
    from torch.distributed._shard import sharded_tensor as torch_sharded

    shards = leaf.local_shards()
    if len(shards) != len(tensors):
        raise InvalidError(f"this rank has {len(shards)} shards, got {len(tensors)} tensors")
    if isinstance(leaf, ShardedTensorBase):
        dtype = tensors[0].dtype if tensors else leaf.dtype
        device = tensors[0].device if tensors else leaf.device
        metadata, twins = replaced_shards(leaf, tensors, dtype, device)
        return type(leaf).assemble(metadata, twins, None, device)
    return _torch_sharded_with(torch_sharded, leaf, shards, tensors)


def _torch_sharded_with(
    library: Any, leaf: Any, shards: Sequence[Any], tensors: Sequence[torch.Tensor]
) -> torch.Tensor:
    import copy

    from torch.distributed import remote_device

    metadata = copy.deepcopy(leaf.metadata())
    metadata.tensor_properties.requires_grad = False
    if tensors:
        metadata.tensor_properties.dtype = tensors[0].dtype
    mine: list[Any] = []
    for shard, tensor in zip(shards, tensors, strict=True):
        record = next(
            m
            for m in metadata.shards_metadata
            if m.shard_offsets == shard.metadata.shard_offsets
            and m.placement == shard.metadata.placement
        )
        record.placement = cast("Any", remote_device)._remote_device(
            f"rank:{record.placement.rank()}/{tensor.device}"
        )
        mine.append(library.Shard(tensor, record))
    # PyTorch puts empty trailing chunks past the end, and then refuses them.
    for record in metadata.shards_metadata:
        if 0 in record.shard_sizes:
            record.shard_offsets = [
                min(offset, side)
                for offset, side in zip(record.shard_offsets, metadata.size, strict=True)
            ]
    return library.ShardedTensor._init_from_local_shards_and_global_metadata(
        mine, metadata, process_group=leaf._process_group
    )


class LaidOutAlike(Generic[_T]):
    """What `find` tells of a DTensor: once for all that share mesh, placements, shape and dtype.

    For the leaves of one tree, which keeps the meshes: they go by their identity.
    """

    def __init__(self, find: Callable[[torch.Tensor], _T]) -> None:
        self._find = find
        self._known: dict[object, list[tuple[object, object, _T]]] = {}

    def of(self, leaf: Any) -> _T:
        """The answer for a leaf that is a DTensor."""
        # Not by the tensor's own attributes, each of which takes as long as all of this.
        spec = leaf._spec
        placements, meta = spec.placements, spec.tensor_meta
        alike = id(spec.mesh), meta.shape, meta.dtype
        # Compared, not hashed: that takes longer.
        for others, kinds, found in self._known.get(alike, ()):
            # With types: some versions of torch have a strided shard equal a plain one.
            if others == placements and kinds == tuple(map(type, placements)):
                return found
        found = self._find(leaf)
        known = self._known.setdefault(alike, [])
        known.append((placements, tuple(map(type, placements)), found))
        return found


def global_layout(leaf: torch.Tensor, ranks: Sequence[int] = (0,)) -> Layout:
    """Who holds which box of `leaf`; a plain tensor is whole on each of `ranks`."""
    return Layout.of(leaf, ranks=ranks)
