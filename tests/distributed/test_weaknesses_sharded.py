"""Where PyTorch's sharded tensors lose data, crash or hang: B1 to B15 of the reference page."""

import pytest

from shardkeep import Box, CoverError, Layout
from shardkeep.plan import plan_moves
from tests.distributed import cases_sharded as cases


def test_b01_gather_keeps_the_tensors_dtype(pool4):
    pool4.run(cases.b01_values_travel_in_the_tensors_dtype)


def test_b01_gather_converts_only_to_a_dtype_that_is_named(pool4):
    pool4.run(cases.b01_a_conversion_is_asked_for_by_name)


def test_b02_gather_places_cells_by_their_box(pool4):
    pool4.run(cases.b02_cells_are_placed_by_their_box)


def test_b06_a_gap_is_refused_on_all_ranks(pool4):
    pool4.run(cases.b06_a_gap_is_refused_everywhere)


def test_b06_a_plan_that_leaves_cells_unread_is_refused():
    held = Layout.listed((4, 2), [(0, Box((0, 0), (2, 2))), (1, Box((3, 0), (4, 2)))])

    with pytest.raises(CoverError, match=r"rank 1 wants \[0:4, 0:2\].*no rank holds all of it"):
        plan_moves((held,), Layout.replicated((4, 2), [1]), 1)


def test_b09_five_rows_on_four_ranks_shard_clone_and_cast(pool4):
    pool4.run(cases.b09_five_rows_on_four_ranks)


def test_b10_a_group_without_rank_0_gathers_fetches_and_reshards(pool4):
    pool4.run(cases.b10_a_group_without_rank_0)


def test_b11_reshard_reaches_every_order_of_ranks(pool4):
    pool4.run(cases.b11_reshard_to_every_order_of_ranks)


def test_b11_reshard_leaves_its_tensor_alone(pool4):
    pool4.run(cases.b11_reshard_leaves_its_tensor_alone)


@pytest.mark.parametrize("mistake", cases.WRONG_ON_RANK_2)
def test_b12_one_ranks_mistake_is_everyones_error(pool4, mistake):
    told = pool4.run(cases.b12_one_ranks_mistake_is_everyones_error, mistake=mistake)

    assert len(set(told)) == 1


def test_b12_ranks_that_want_different_things_are_told(pool4):
    pool4.run(cases.b12_ranks_that_want_different_things_are_told)


def test_b13_equal_and_allclose_agree_on_all_ranks_without_an_accelerator(pool4):
    pool4.run(cases.b13_equal_and_allclose_agree_on_all_ranks)


def test_b14_a_sharder_replaces_its_module_and_emb1_is_not_emb10(pool4):
    pool4.run(cases.b14_a_sharder_replaces_its_module)


def test_b15_tensors_without_dims_or_cells_gather(pool4):
    pool4.run(cases.b15_no_dims_and_no_cells)


def test_b15_out_on_a_rank_that_does_not_gather_is_explained(pool4):
    pool4.run(cases.b15_out_on_a_rank_that_does_not_gather)


def test_b15_a_rank_without_shards_answers_like_the_others(pool4):
    pool4.run(cases.b15_a_rank_without_shards_answers_like_the_others)


def test_regression_150928_gather_with_empty_shards_on_some_ranks(pool4):
    pool4.run(cases.empty_shards_on_some_ranks_gather)


def test_trap_every_form_of_to_heeds_the_dtype(pool4):
    pool4.run(cases.to_keeps_what_it_is_told)


def test_trap_to_keeps_the_owners_of_all_shards(pool4):
    pool4.run(cases.to_keeps_the_owners_of_all_shards)


def test_trap_zeros_like_keeps_dtype_and_group(pool4):
    pool4.run(cases.likes_keep_dtype_and_group)


def test_trap_full_has_the_dtype_of_its_value(pool4):
    pool4.run(cases.full_has_the_dtype_of_its_value)


def test_trap_equal_seeds_make_different_shards(pool4):
    pool4.run(cases.equal_seeds_make_different_shards)


def test_trap_a_placement_without_a_rank_is_refused(pool4):
    pool4.run(cases.a_placement_without_a_rank_is_refused)


def test_reshard_goes_between_all_kinds_of_tilings(pool4):
    pool4.run(cases.reshard_between_all_kinds_of_tilings)


def test_fetch_brings_each_rank_its_own_box(pool4):
    pool4.run(cases.fetch_brings_each_rank_its_own_box)


def test_tensors_larger_than_a_message_arrive(pool4):
    pool4.run(cases.tensors_larger_than_a_message)
