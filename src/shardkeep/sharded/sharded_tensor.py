"""What is a sharded tensor? A tensor whose cells lie in boxes on several ranks."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import torch

from shardkeep.errors import InvalidError, UnsupportedError
from shardkeep.layouts.reading import shards_layout
from shardkeep.ranks import RankGroup
from shardkeep.sharded.metadata import ShardedTensorMetadata, ShardMetadata, TensorProperties
from shardkeep.sharded.shard import Shard
from shardkeep.sharded.specs import ShardingSpec, infer_sharding_spec

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.rpc import RRef
    from torch.distributed.tensor import DTensor, Placement

    from shardkeep.boxes import Box
    from shardkeep.layouts import Layout


class Outline(NamedTuple):
    """A tensor without its cells."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


class ShardedTensorBase(torch.Tensor):
    """Shards with the metadata of all shards; needs no process group.

    It may hold the shards of every rank in one process.
    """

    _local_shards: list[Shard]
    _shards_metadata: tuple[ShardMetadata, ...]
    given_spec: ShardingSpec | None
    _properties: TensorProperties
    _layout: Layout | None

    @classmethod
    def assemble(
        cls,
        metadata: ShardedTensorMetadata,
        local_shards: Sequence[Shard],
        spec: ShardingSpec | None,
        device: torch.device,
    ) -> Self:
        properties = metadata.tensor_properties
        self = cast(
            "Self",
            torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls,
                torch.Size(metadata.size),
                dtype=properties.dtype,
                layout=properties.layout,
                device=device,
                requires_grad=properties.requires_grad,
            ),
        )
        self._local_shards = list(local_shards)
        self._shards_metadata = tuple(metadata.shards_metadata)
        self.given_spec = spec
        # A copy: properties are mutable, and the caller may go on to use its own.
        self._properties = dataclasses.replace(properties)
        self._layout = None
        return self

    @classmethod
    def _init_from_local_shards_and_global_metadata(
        cls,
        local_shards: Sequence[Shard],
        sharded_tensor_metadata: ShardedTensorMetadata,
        sharding_spec: ShardingSpec | None = None,
    ) -> Self:
        """Shards of any ranks with the metadata of all; only overlaps and gaps are checked."""
        from shardkeep.sharded.checks import require_whole

        require_whole(sharded_tensor_metadata)
        device = local_shards[0].tensor.device if local_shards else torch.device("cpu")
        return cls.assemble(sharded_tensor_metadata, local_shards, sharding_spec, device)

    from_local_shards_and_global_metadata = _init_from_local_shards_and_global_metadata

    def metadata(self) -> ShardedTensorMetadata:
        """All shards of all ranks, the size and the properties of the shards."""
        properties = dataclasses.replace(self._properties, requires_grad=self.requires_grad)
        return ShardedTensorMetadata(list(self._shards_metadata), self.size(), properties)

    def outline(self) -> Outline:
        """What `shape`, `dtype`, `device` and `requires_grad` tell.

        Those ask first whose function serves them, for which torch makes strings anew each time,
        and the interpreter keeps thousands of them.
        """
        with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore[reportPrivateUsage]
            return Outline(self.shape, self.dtype, self.device, self.requires_grad)

    def hold_shards_of(self, other: ShardedTensorBase) -> None:
        """Share the shards of `other` from now on, as in `self.data = other`."""
        self._local_shards = [
            Shard(shard.tensor.detach().requires_grad_(self.requires_grad), shard.metadata)
            for shard in other._local_shards
        ]
        self._shards_metadata = other._shards_metadata
        self.given_spec = other.given_spec
        self._properties = dataclasses.replace(other._properties)
        self._layout = None

    def local_shards(self) -> list[Shard]:
        """This rank's shards, possibly none."""
        return self._local_shards

    def sharding_spec(self) -> ShardingSpec:
        """The rule that made the shards, inferred from them if none was given."""
        if self.given_spec is None:
            self.given_spec = infer_sharding_spec(self._shards_metadata)
        return self.given_spec

    @property
    def sharded_layout(self) -> Layout:
        """Which rank holds which boxes."""
        if self._layout is None:
            self._layout = shards_layout(self.outline().shape, self._shards_metadata)
        return self._layout

    def local_tensor(self) -> torch.Tensor:
        """The tensor of the only local shard."""
        if len(self._local_shards) != 1:
            raise UnsupportedError(
                f"local_tensor() needs exactly one local shard, this rank has "
                f"{len(self._local_shards)}; use local_shards()"
            )
        return self._local_shards[0].tensor

    def is_pinned(self, device: object = None) -> bool:
        """Whether the shards lie in page-locked memory."""
        return self._properties.pin_memory

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        from shardkeep.sharded.picture import one_line

        return one_line(self)

    @classmethod
    def __torch_function__(  # type: ignore[override]
        cls,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        from shardkeep.sharded.functions import call

        return call(func, types, tuple(args), dict(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        from shardkeep.sharded.operators import run

        return run(func, tuple(args), dict(kwargs or {}))


class ShardedTensor(ShardedTensorBase):
    """A tensor whose cells are tiled over the ranks of a process group.

    `ShardedTensor(spec, *size, ...)` allocates the shards that are mine, uninitialised.
    Ranks in placements and layouts are global; `dst` and `src_rank` count within the group.
    """

    process_group: object
    rrefs: dict[int, list[RRef[Shard]]] | None

    def __new__(
        cls,
        sharding_spec: ShardingSpec,
        *size: int | Sequence[int],
        dtype: torch.dtype | None = None,
        layout: torch.layout = torch.strided,
        requires_grad: bool = False,
        pin_memory: bool = False,
        memory_format: torch.memory_format = torch.contiguous_format,
        process_group: object = None,
        init_rrefs: bool = False,
    ) -> Self:
        from shardkeep.sharded.create import allocate

        properties = TensorProperties(
            dtype or torch.get_default_dtype(), layout, requires_grad, memory_format, pin_memory
        )
        return allocate(cls, sharding_spec, size, properties, process_group, init_rrefs=init_rrefs)

    # The arguments are consumed by __new__; torch.Tensor's own __init__ takes none of them.
    def __init__(self, *args: Any, **kwargs: Any) -> None:  # pyright: ignore[reportInconsistentConstructor]
        super().__init__()

    @classmethod
    def in_group(
        cls,
        metadata: ShardedTensorMetadata,
        local_shards: Sequence[Shard],
        spec: ShardingSpec | None,
        process_group: object,
        device: torch.device | None = None,
    ) -> Self:
        """Put the parts together without any check."""
        if local_shards:
            device = local_shards[0].tensor.device
        self = cls.assemble(
            metadata, local_shards, spec, device or RankGroup.of(process_group).wire_device
        )
        self.process_group = process_group
        self.rrefs = None
        return self

    @classmethod
    def _init_from_local_shards(
        cls,
        local_shards: Sequence[Shard],
        *global_size: int | Sequence[int] | None,
        process_group: object = None,
        init_rrefs: bool = False,
    ) -> Self:
        """Each rank brings its shards; sizes, dtypes and the tiling are checked on all. SPMD."""
        from shardkeep.sharded.create import from_local_shards

        return from_local_shards(cls, local_shards, global_size, process_group, init_rrefs)

    @classmethod
    def _init_from_local_shards_and_global_metadata(  # type: ignore[override]
        cls,
        local_shards: Sequence[Shard],
        sharded_tensor_metadata: ShardedTensorMetadata,
        process_group: object = None,
        init_rrefs: bool = False,
        sharding_spec: ShardingSpec | None = None,
    ) -> Self:
        """My shards with the metadata of all ranks' shards. Nothing is communicated."""
        from shardkeep.sharded.create import from_global_metadata

        return from_global_metadata(
            cls, local_shards, sharded_tensor_metadata, process_group, init_rrefs, sharding_spec
        )

    @classmethod
    def _init_from_local_tensor(
        cls,
        local_tensor: torch.Tensor,
        sharding_spec: ShardingSpec,
        *global_size: int | Sequence[int],
        process_group: object = None,
        init_rrefs: bool = False,
    ) -> Self:
        """My only shard's tensor with the spec that places it. Nothing is communicated."""
        from shardkeep.sharded.create import from_local_tensor

        return from_local_tensor(
            cls, local_tensor, sharding_spec, global_size, process_group, init_rrefs
        )

    from_local_shards = _init_from_local_shards
    from_local_shards_and_global_metadata = _init_from_local_shards_and_global_metadata
    from_local_tensor = _init_from_local_tensor

    @classmethod
    def from_dtensor(cls, tensor: DTensor, process_group: object = None) -> Self:
        """The same cells, in shared memory where boxes are contiguous; replicas are refused."""
        from shardkeep.sharded.dtensors import from_dtensor

        return from_dtensor(cls, tensor, process_group)

    def to_dtensor(self, device_mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
        """The same values as a DTensor; memory is shared where the boxes are the same. SPMD."""
        from shardkeep.sharded.dtensors import to_dtensor

        return to_dtensor(self, device_mesh, placements)

    @property
    def rank_group(self) -> RankGroup:
        """The ranks that this tensor's operations run on."""
        return RankGroup.of(self.process_group)

    def gather(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        dst: int = 0,
        out: torch.Tensor | None = None,
        enforce_dtype: bool = False,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor | None:
        """The whole tensor on rank `dst` of the group, None elsewhere. SPMD.

        It is put into `out` if `dst` gives one. Values travel in their own dtype; an `out` of
        another dtype must be named by `dtype`. `enforce_dtype` is accepted and changes nothing.
        """
        from shardkeep.sharded.gathering import gather

        return gather(self, dst, out, dtype)

    def full_tensor(self) -> torch.Tensor:
        """The whole tensor on every rank of the group. SPMD."""
        from shardkeep.sharded.gathering import full_tensor

        return full_tensor(self)

    def fetch(self, box: Box | Sequence[slice] | None) -> torch.Tensor | None:
        """Any box of the tensor, each rank its own; None for a rank that wants nothing. SPMD."""
        from shardkeep.sharded.gathering import fetch

        return fetch(self, box)

    def reshard(self, resharding_spec: ShardingSpec | Layout) -> ShardedTensor:
        """A new sharded tensor with other boxes; only cells that change owner travel. SPMD."""
        from shardkeep.sharded.gathering import reshard

        return reshard(self, resharding_spec)

    def to(self, *args: Any, process_group: object = None, **kwargs: Any) -> ShardedTensor:  # type: ignore[override]
        """As torch.Tensor.to, in all its forms; `process_group` is the result's group."""
        return self._regrouped(super().to(*args, **kwargs), process_group)

    def cpu(  # type: ignore[override]
        self,
        memory_format: torch.memory_format = torch.preserve_format,
        process_group: object = None,
    ) -> ShardedTensor:
        """The shards on the CPU; self if they are there."""
        return self._regrouped(super().cpu(memory_format=memory_format), process_group)

    def cuda(  # type: ignore[override]
        self,
        device: torch.device | str | int | None = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
        process_group: object = None,
    ) -> ShardedTensor:
        """The shards on a CUDA device of this rank, the current one by default."""
        moved = super().cuda(device, non_blocking=non_blocking, memory_format=memory_format)
        return self._regrouped(moved, process_group)

    def _regrouped(self, moved: torch.Tensor, process_group: object) -> ShardedTensor:
        result = cast("ShardedTensor", moved)
        if process_group is None or process_group is result.process_group:
            return result
        return type(self).in_group(
            result.metadata(), result._local_shards, self.given_spec, process_group
        )

    def with_local_tensors(
        self,
        tensors: Sequence[torch.Tensor],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Self:
        """The same boxes with this memory; `dtype` and `device` speak for ranks without shards."""
        from shardkeep.sharded.checks import replaced_shards

        if len(tensors) != len(self._local_shards):
            raise InvalidError(
                f"this rank has {len(self._local_shards)} shards, got {len(tensors)} tensors"
            )
        dtype = tensors[0].dtype if tensors else dtype or self.dtype
        device = tensors[0].device if tensors else device or self.device
        metadata, shards = replaced_shards(self, tensors, dtype, device)
        return type(self).in_group(
            metadata, shards, self._kept_spec(device), self.process_group, device
        )

    def _kept_spec(self, device: torch.device) -> ShardingSpec | None:
        # A spec names devices: on another device it no longer tells the truth.
        return self.given_spec if device == self.device else None

    def remote_shards(self) -> dict[int, list[RRef[Shard]]]:
        """RPC references to the other ranks' shards, by rank; needs `init_rrefs=True`."""
        if self.rrefs is None:
            raise RuntimeError(
                "remote_shards() needs a tensor made with init_rrefs=True and an initialised RPC "
                "framework; fetch(box) works without"
            )
        return self.rrefs

    def __deepcopy__(self, memo: dict[int, object]) -> ShardedTensor:
        if id(self) in memo:
            return cast("ShardedTensor", memo[id(self)])
        copies = [shard.tensor.detach().clone() for shard in self._local_shards]
        result = self.with_local_tensors(copies)
        result.requires_grad_(self.requires_grad)
        memo[id(self)] = result
        if self.grad is not None:
            result.grad = copy.deepcopy(self.grad, memo)
        # What others hung onto the tensor goes along, such as a parameter's mark.
        for name, value in vars(self).items():
            if name not in vars(result):
                setattr(result, name, copy.deepcopy(value, memo))
        return result

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        from shardkeep.sharded.saving import reduce

        return reduce(self)
