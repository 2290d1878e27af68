"""Where PyTorch's state-dict tools lose data, crash or alias: B1 to B16 of the reference page."""

from tests.distributed import cases_state


def test_b01_gather_state_dict_keeps_every_dtype(pool4):
    pool4.run(cases_state.b01_gather_keeps_every_dtype)


def test_b02_gather_state_dict_places_cells_by_their_box(pool4):
    pool4.run(cases_state.b02_gather_places_by_box)


def test_b03_broadcast_and_distribute_refuse_partial_targets(pool4):
    pool4.run(cases_state.b03_partial_targets_are_refused)


def test_b03_gather_adds_partial_sums_up_once(pool4):
    pool4.run(cases_state.b03_partial_sources_are_reduced)


def test_b04_strided_shards_get_their_own_indices(pool4):
    pool4.run(cases_state.b04_strided_shards_get_their_own_indices)


def test_b05_looking_for_differences_changes_nothing(pool4):
    pool4.run(cases_state.b05_looking_for_differences_changes_nothing)


def test_b07_a_copy_shares_nothing_with_the_live_state(pool4):
    pool4.run(cases_state.b07_a_copy_shares_nothing_with_the_live_state)


def test_b07_regression_145408_a_staged_snapshot_never_changes(pool4):
    pool4.run(cases_state.b07_a_staged_snapshot_never_changes)


def test_b08_offload_copies_unless_told_otherwise(pool4):
    pool4.run(cases_state.b08_offload_copies_unless_told_otherwise)


def test_b09_five_rows_on_four_ranks_are_staged_and_gathered(pool4):
    pool4.run(cases_state.b09_five_rows_on_four_ranks_are_staged_and_gathered)


def test_b10_groups_without_rank_0_gather_broadcast_and_distribute(pool4):
    pool4.run(cases_state.b10_groups_without_rank_0)


def test_b12_one_ranks_wrong_state_is_everyones_error(pool4):
    pool4.run(cases_state.b12_one_ranks_state_is_wrong)


def test_b12_ranks_with_different_keys_are_told(pool4):
    pool4.run(cases_state.b12_ranks_with_different_keys)


def test_b15_tensors_without_dims_or_cells_gather(pool4):
    pool4.run(cases_state.b15_no_dims_and_no_cells_gather)


def test_b16_broadcast_with_cpu_offload_passes_over_unknown_keys(pool4):
    pool4.run(cases_state.b16_unknown_keys_with_cpu_offload)


def test_b16_broadcast_to_ranks_of_which_some_lack_a_key(pool4):
    pool4.run(cases_state.b16_some_ranks_lack_a_key)


def test_b16_ranks_outside_the_mesh_take_part(pool4):
    pool4.run(cases_state.b16_ranks_outside_the_mesh)


def test_b16_regression_164843_the_source_has_dtensors_already(pool4):
    pool4.run(cases_state.b16_the_source_has_dtensors)
