"""Where PyTorch's state-dict tools lose data, crash or alias: B1 to B16 of the reference page."""

from shardkeep import flatten_state_dict, unflatten_state_dict
from tests.distributed import cases_state as cases


def test_b01_gather_state_dict_keeps_every_dtype(pool4):
    pool4.run(cases.b01_gather_keeps_every_dtype)


def test_b02_gather_state_dict_places_cells_by_their_box(pool4):
    pool4.run(cases.b02_gather_places_by_box)


def test_b03_broadcast_and_distribute_refuse_partial_targets(pool4):
    pool4.run(cases.b03_partial_targets_are_refused)


def test_b03_gather_adds_partial_sums_up_once(pool4):
    pool4.run(cases.b03_partial_sources_are_reduced)


def test_b04_strided_shards_get_their_own_indices(pool4):
    pool4.run(cases.b04_strided_shards_get_their_own_indices)


def test_b05_looking_for_differences_changes_nothing(pool4):
    pool4.run(cases.b05_looking_for_differences_changes_nothing)


def test_b07_a_copy_shares_nothing_with_the_live_state(pool4):
    pool4.run(cases.b07_a_copy_shares_nothing_with_the_live_state)


def test_b07_regression_145408_a_staged_snapshot_never_changes(pool4):
    pool4.run(cases.b07_a_staged_snapshot_never_changes)


def test_b08_offload_copies_unless_told_otherwise(pool4):
    pool4.run(cases.b08_offload_copies_unless_told_otherwise)


def test_b09_five_rows_on_four_ranks_are_staged_and_gathered(pool4):
    pool4.run(cases.b09_five_rows_on_four_ranks_are_staged_and_gathered)


def test_b10_groups_without_rank_0_gather_broadcast_and_distribute(pool4):
    pool4.run(cases.b10_groups_without_rank_0)


def test_b12_one_ranks_wrong_state_is_everyones_error(pool4):
    pool4.run(cases.b12_one_ranks_state_is_wrong)


def test_b12_ranks_with_different_keys_are_told(pool4):
    pool4.run(cases.b12_ranks_with_different_keys)


def test_the_order_of_keys_may_differ_between_ranks(pool4):
    pool4.run(cases.the_order_of_keys_may_differ_between_ranks)


def test_b15_tensors_without_dims_or_cells_gather(pool4):
    pool4.run(cases.b15_no_dims_and_no_cells_gather)


def test_b16_broadcast_with_cpu_offload_passes_over_unknown_keys(pool4):
    pool4.run(cases.b16_unknown_keys_with_cpu_offload)


def test_b16_broadcast_to_ranks_of_which_some_lack_a_key(pool4):
    pool4.run(cases.b16_some_ranks_lack_a_key)


def test_b16_ranks_outside_the_mesh_take_part(pool4):
    pool4.run(cases.b16_ranks_outside_the_mesh)


def test_b16_regression_164843_the_source_has_dtensors_already(pool4):
    pool4.run(cases.b16_the_source_has_dtensors)


def test_broadcast_fills_what_is_there_in_any_container(pool4):
    pool4.run(cases.broadcast_fills_what_is_there)


def test_distribute_fills_what_is_there_in_any_container(pool4):
    pool4.run(cases.distribute_fills_what_is_there)


def test_meshes_of_each_ranks_own_are_told_apart(pool4):
    pool4.run(cases.meshes_of_each_ranks_own)


def test_gather_gives_the_whole_to_the_named_ranks_only(pool4):
    pool4.run(cases.gather_to_some_ranks)


def test_nested_sharded_tensors_become_flat_with_their_true_owners(pool4):
    pool4.run(cases.nested_tensors_become_flat)


def test_regression_188434_released_memory_is_used_again(pool4):
    pool4.run(cases.released_memory_is_used_again)


def test_pytorchs_own_sharded_tensors_gather_and_are_filled(pool4):
    pool4.run(cases.pytorchs_own_sharded_tensors)


def test_trap_empty_containers_tuples_and_int_keys_survive_flattening():
    tree = {1: {}, "1": [], "pair": (1, (2,)), "a.b": 3, "a": {"b": 4}}

    flat, mapping = flatten_state_dict(tree)
    back = unflatten_state_dict(flat, mapping)

    assert len(flat) == 4
    assert back == tree
    assert [type(key) for key in back] == [int, str, str, str, str]
    assert isinstance(back["pair"], tuple)
    assert isinstance(back["pair"][1], tuple)
