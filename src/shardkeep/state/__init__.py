"""State-dict trees: walk, flatten, compare, copy, stage, gather, broadcast, distribute."""

from shardkeep.state.broadcast import broadcast_state_dict as broadcast_state_dict
from shardkeep.state.copying import (
    copy_state_dict as copy_state_dict,
    create_cpu_state_dict as create_cpu_state_dict,
    offload_state_dict_to_cpu as offload_state_dict_to_cpu,
)
from shardkeep.state.diff import (
    StateDiff as StateDiff,
    check_state_dict_similarity as check_state_dict_similarity,
    diff_state_dict as diff_state_dict,
)
from shardkeep.state.distribute import distribute_state_dict as distribute_state_dict
from shardkeep.state.flatten import (
    flatten_state_dict as flatten_state_dict,
    traverse_state_dict as traverse_state_dict,
    unflatten_state_dict as unflatten_state_dict,
)
from shardkeep.state.gather import gather_state_dict as gather_state_dict
from shardkeep.state.iterate import iterate_state_dict as iterate_state_dict
from shardkeep.state.nested import flatten_sharded_tensors as flatten_sharded_tensors
from shardkeep.state.paths import get_element as get_element, set_element as set_element
from shardkeep.state.staging import Stager as Stager
