"""Tensors whose cells lie in boxes on several ranks."""

from shardkeep.sharded.factories import (
    empty as empty,
    empty_like as empty_like,
    full as full,
    full_like as full_like,
    init_from_local_shards as init_from_local_shards,
    ones as ones,
    ones_like as ones_like,
    rand as rand,
    rand_like as rand_like,
    randn as randn,
    randn_like as randn_like,
    zeros as zeros,
    zeros_like as zeros_like,
)
from shardkeep.sharded.functions import (
    custom_sharded_op_impl as custom_sharded_op_impl,
    custom_sharding_spec_op as custom_sharding_spec_op,
)
from shardkeep.sharded.metadata import (
    MemoryFormatEncoding as MemoryFormatEncoding,
    ShardedTensorMetadata as ShardedTensorMetadata,
    ShardMetadata as ShardMetadata,
    TensorProperties as TensorProperties,
)
from shardkeep.sharded.modules import (
    Sharder as Sharder,
    ShardingPlan as ShardingPlan,
    ShardingPlanner as ShardingPlanner,
    pre_load_state_dict_hook as pre_load_state_dict_hook,
    shard_module as shard_module,
    shard_parameter as shard_parameter,
    state_dict_hook as state_dict_hook,
)
from shardkeep.sharded.optimizer import (
    ShardedOptimizer as ShardedOptimizer,
    named_params_with_sharded_tensor as named_params_with_sharded_tensor,
)
from shardkeep.sharded.picture import draw_layout as draw_layout
from shardkeep.sharded.remote_device import RemoteDevice as RemoteDevice
from shardkeep.sharded.saving import load_with_process_group as load_with_process_group
from shardkeep.sharded.scatter import shard_tensor as shard_tensor
from shardkeep.sharded.shard import Shard as Shard
from shardkeep.sharded.sharded_tensor import (
    ShardedTensor as ShardedTensor,
    ShardedTensorBase as ShardedTensorBase,
)
from shardkeep.sharded.specs import (
    ChunkShardingSpec as ChunkShardingSpec,
    EnumerableShardingSpec as EnumerableShardingSpec,
    ShardingSpec as ShardingSpec,
    infer_sharding_spec as infer_sharding_spec,
)
