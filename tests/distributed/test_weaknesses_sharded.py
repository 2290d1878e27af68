"""Where PyTorch's sharded tensors lose data, crash or hang: B1 to B15 of the reference page."""

import pytest

from shardkeep import Box, CoverError, Layout
from shardkeep.plan import plan_moves
from tests.distributed import cases_mistakes, cases_sharded


def test_b01_gather_keeps_the_tensors_dtype(pool4):
    pool4.run(cases_sharded.b01_values_travel_in_the_tensors_dtype)


def test_b01_gather_converts_only_to_a_dtype_that_is_named(pool4):
    pool4.run(cases_sharded.b01_a_conversion_is_asked_for_by_name)


def test_b02_gather_places_cells_by_their_box(pool4):
    pool4.run(cases_sharded.b02_cells_are_placed_by_their_box)


def test_b06_a_gap_is_refused_on_all_ranks(pool4):
    pool4.run(cases_sharded.b06_a_gap_is_refused_everywhere)


def test_b06_a_plan_that_leaves_cells_unread_is_refused():
    held = Layout.listed((4, 2), [(0, Box((0, 0), (2, 2))), (1, Box((3, 0), (4, 2)))])

    with pytest.raises(CoverError, match=r"rank 1 wants \[0:4, 0:2\].*no rank holds all of it"):
        plan_moves((held,), Layout.replicated((4, 2), [1]), 1)


def test_b09_five_rows_on_four_ranks_shard_clone_and_cast(pool4):
    pool4.run(cases_sharded.b09_five_rows_on_four_ranks)


def test_b10_a_group_without_rank_0_gathers_fetches_and_reshards(pool4):
    pool4.run(cases_sharded.b10_a_group_without_rank_0)


def test_b11_reshard_reaches_every_order_of_ranks(pool4):
    pool4.run(cases_sharded.b11_reshard_to_every_order_of_ranks)


def test_b11_reshard_leaves_its_tensor_alone(pool4):
    pool4.run(cases_sharded.b11_reshard_leaves_its_tensor_alone)


@pytest.mark.parametrize("mistake", cases_mistakes.WRONG_ON_RANK_2)
def test_b12_one_ranks_mistake_is_everyones_error(pool4, mistake):
    told = pool4.run(cases_mistakes.b12_one_ranks_mistake_is_everyones_error, mistake=mistake)

    assert len(set(told)) == 1


def test_b12_ranks_that_want_different_things_are_told(pool4):
    pool4.run(cases_mistakes.b12_ranks_that_want_different_things_are_told)


def test_b13_equal_and_allclose_agree_on_all_ranks_without_an_accelerator(pool4):
    pool4.run(cases_sharded.b13_equal_and_allclose_agree_on_all_ranks)


def test_b14_a_sharder_replaces_its_module_and_emb1_is_not_emb10(pool4):
    pool4.run(cases_sharded.b14_a_sharder_replaces_its_module)


def test_b15_tensors_without_dims_or_cells_gather(pool4):
    pool4.run(cases_sharded.b15_no_dims_and_no_cells)


def test_b15_out_on_a_rank_that_does_not_gather_is_explained(pool4):
    pool4.run(cases_sharded.b15_out_on_a_rank_that_does_not_gather)


def test_b15_a_rank_without_shards_answers_like_the_others(pool4):
    pool4.run(cases_sharded.b15_a_rank_without_shards_answers_like_the_others)
