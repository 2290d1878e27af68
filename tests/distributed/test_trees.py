"""State dicts: any container, kind of leaf and set of receivers."""

from shardkeep import flatten_state_dict, unflatten_state_dict
from tests.distributed import cases_trees


def test_the_order_of_keys_may_differ_between_ranks(pool4):
    pool4.run(cases_trees.the_order_of_keys_may_differ_between_ranks)


def test_broadcast_fills_what_is_there_in_any_container(pool4):
    pool4.run(cases_trees.broadcast_fills_what_is_there)


def test_distribute_fills_what_is_there_in_any_container(pool4):
    pool4.run(cases_trees.distribute_fills_what_is_there)


def test_meshes_of_each_ranks_own_are_told_apart(pool4):
    pool4.run(cases_trees.meshes_of_each_ranks_own)


def test_gather_gives_the_whole_to_the_named_ranks_only(pool4):
    pool4.run(cases_trees.gather_to_some_ranks)


def test_nested_sharded_tensors_become_flat_with_their_true_owners(pool4):
    pool4.run(cases_trees.nested_tensors_become_flat)


def test_regression_188434_released_memory_is_used_again(pool4):
    pool4.run(cases_trees.released_memory_is_used_again)


def test_pytorchs_own_sharded_tensors_gather_and_are_filled(pool4):
    pool4.run(cases_trees.pytorchs_own_sharded_tensors)


def test_trap_empty_containers_tuples_and_int_keys_survive_flattening():
    tree = {1: {}, "1": [], "pair": (1, (2,)), "a.b": 3, "a": {"b": 4}}

    flat, mapping = flatten_state_dict(tree)
    back = unflatten_state_dict(flat, mapping)

    assert len(flat) == 4
    assert back == tree
    assert [type(key) for key in back] == [int, str, str, str, str]
    assert isinstance(back["pair"], tuple)
    assert isinstance(back["pair"][1], tuple)
