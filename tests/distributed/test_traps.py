"""Sharded tensors: traps of PyTorch's API, regressions, and any tiling to any other."""

from tests.distributed import cases_traps


def test_regression_150928_gather_with_empty_shards_on_some_ranks(pool4):
    pool4.run(cases_traps.empty_shards_on_some_ranks_gather)


def test_trap_every_form_of_to_heeds_the_dtype(pool4):
    pool4.run(cases_traps.to_keeps_what_it_is_told)


def test_trap_to_keeps_the_owners_of_all_shards(pool4):
    pool4.run(cases_traps.to_keeps_the_owners_of_all_shards)


def test_trap_zeros_like_keeps_dtype_and_group(pool4):
    pool4.run(cases_traps.likes_keep_dtype_and_group)


def test_trap_full_has_the_dtype_of_its_value(pool4):
    pool4.run(cases_traps.full_has_the_dtype_of_its_value)


def test_trap_equal_seeds_make_different_shards(pool4):
    pool4.run(cases_traps.equal_seeds_make_different_shards)


def test_trap_a_placement_without_a_rank_is_refused(pool4):
    pool4.run(cases_traps.a_placement_without_a_rank_is_refused)


def test_reshard_goes_between_all_kinds_of_tilings(pool4):
    pool4.run(cases_traps.reshard_between_all_kinds_of_tilings)


def test_fetch_brings_each_rank_its_own_box(pool4):
    pool4.run(cases_traps.fetch_brings_each_rank_its_own_box)


def test_tensors_larger_than_a_message_arrive(pool4):
    pool4.run(cases_traps.tensors_larger_than_a_message)
