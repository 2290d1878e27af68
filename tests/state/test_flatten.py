"""Does a flat state dict become the nested one again, exactly?"""

import pickle
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch.distributed.checkpoint import _nested_dict as reference

from shardkeep.errors import InvalidError
from shardkeep.state.flatten import (
    flatten_state_dict,
    traverse_state_dict,
    unflatten_state_dict,
)
from tests.state.trees import Pair, assert_same_tree, plain_leaves, state_dicts, trees

str_dicts = st.recursive(
    st.integers(),
    lambda children: st.dictionaries(st.sampled_from("abc"), children, min_size=1),
    max_leaves=10,
)


@given(trees)
def test_unflatten_undoes_flatten(tree):
    flat, mapping = flatten_state_dict(tree)
    assert_same_tree(unflatten_state_dict(flat, mapping), tree)


@given(state_dicts)
def test_each_leaf_has_its_own_flat_key(tree):
    flat, mapping = flatten_state_dict(tree)
    assert list(flat.values()) == [leaf for _, leaf in plain_leaves(tree)]
    assert list(mapping.items()) == [
        (key, path) for key, (path, _) in zip(flat, plain_leaves(tree), strict=True)
    ]


@given(st.dictionaries(st.sampled_from("abc"), str_dicts))
def test_plain_dicts_flatten_as_in_the_reference(tree):
    flat, mapping = flatten_state_dict(tree)
    assert (flat, mapping) == reference.flatten_state_dict(tree)
    assert unflatten_state_dict(flat, dict(mapping)) == tree


@given(state_dicts)
def test_neither_the_flat_order_nor_the_order_of_keys_matters(tree):
    flat, mapping = flatten_state_dict(tree)
    assert_same_tree(unflatten_state_dict(dict(reversed(flat.items())), mapping), tree)
    assert set(flatten_state_dict(dict(reversed(tree.items())))[0]) == set(flat)


def test_an_optimizer_state_dict_comes_back():
    model = torch.nn.Linear(2, 3)
    optim = torch.optim.Adam(model.parameters(), lr=0.5)
    model(torch.ones(2)).sum().backward()
    optim.step()
    state = {"model": model.state_dict(), "optim": optim.state_dict(), "none": {}, "empty": ((),)}
    flat, mapping = flatten_state_dict(state)
    assert flat["optim.state.0.exp_avg"] is state["optim"]["state"][0]["exp_avg"]
    assert flat["optim.param_groups.0.betas.1"] == 0.999
    assert_same_tree(unflatten_state_dict(flat, mapping), state)


def test_values_may_be_replaced_before_unflattening():
    flat, mapping = flatten_state_dict({"a": Pair(1, [2]), "b": OrderedDict(c=3)})
    tree = unflatten_state_dict({key: value * 10 for key, value in flat.items()}, mapping)
    assert_same_tree(tree, {"a": Pair(10, [20]), "b": OrderedDict(c=30)})


def test_missing_and_unknown_keys_are_named():
    flat, mapping = flatten_state_dict({"a": {"b": 1, "c": 2}, "d": 3})
    del flat["a.c"]
    flat["new"] = 4
    message = r"missing: 'a\.c'; not in the mapping: 'new'"
    with pytest.raises(InvalidError, match=message):
        unflatten_state_dict(flat, mapping)
    with pytest.raises(InvalidError, match=message):
        unflatten_state_dict(flat, dict(mapping))


def test_many_missing_keys_are_counted():
    _, mapping = flatten_state_dict([0] * 30)
    with pytest.raises(InvalidError, match=r"missing: '0', '1', .* and 20 more$"):
        unflatten_state_dict({}, mapping)


def test_a_plain_mapping_makes_dicts_and_lists():
    mapping = {"a.0": ("a", 0), "a.1.x": ("a", 1, "x")}
    assert unflatten_state_dict({"a.0": 1, "a.1.x": 2}, mapping) == {"a": [1, {"x": 2}]}


def test_a_mapping_is_a_frozen_value():
    _, mapping = flatten_state_dict({"a": (1, 2)})
    _, same = flatten_state_dict({"a": (3, 4)})
    _, as_list = flatten_state_dict({"a": [1, 2]})
    assert mapping == same
    assert mapping != as_list
    assert mapping == {"a.0": ("a", 0), "a.1": ("a", 1)}
    with pytest.raises(TypeError, match="item assignment"):
        mapping["a.0"] = ("b",)  # type: ignore[index]
    with pytest.raises(AttributeError, match="cannot assign"):
        mapping._path_of = {}  # type: ignore[misc]


@given(trees)
def test_a_mapping_can_be_pickled(tree):
    flat, mapping = flatten_state_dict(tree)
    copy = pickle.loads(pickle.dumps(mapping))
    assert copy == mapping
    assert_same_tree(unflatten_state_dict(flat, copy), tree)


def visited(tree: Any, keep_traversing: Any = None) -> list[Any]:
    seen: list[Any] = []
    traverse_state_dict(tree, lambda path, leaf: seen.append((path, leaf)), keep_traversing)
    return seen


@given(trees)
def test_traversal_visits_every_leaf(tree):
    assert visited(tree) == plain_leaves(tree)


def test_the_predicate_makes_containers_leaves():
    tree = {"a": [1, (2, 3)], "b": {"c": (4,)}}
    seen = visited(tree, lambda container: not isinstance(container, tuple))
    assert seen == [(("a", 0), 1), (("a", 1), (2, 3)), (("b", "c"), (4,))]


def test_the_root_is_always_opened():
    assert visited({"a": [1], "b": 2}, lambda _: False) == [(("a",), [1]), (("b",), 2)]
