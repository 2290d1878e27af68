"""Do trees come back with the containers that they had?"""

import types
from collections import ChainMap, OrderedDict, defaultdict
from typing import Any

import pytest
import torch
from hypothesis import given

from shardkeep.errors import InvalidError
from shardkeep.state.tree import MAX_DEPTH, leaves, map_tree, nodes
from tests.state.trees import Pair, assert_same_tree, plain_leaves, trees, with_metadata


def keep(_path: tuple[Any, ...], leaf: Any) -> Any:
    return leaf


def nested(depth: int) -> Any:
    tree: Any = "leaf"
    for _ in range(depth):
        tree = [tree]
    return tree


@given(trees)
def test_mapping_a_tree_to_itself_rebuilds_it(tree):
    assert_same_tree(map_tree(keep, tree), tree)


@given(trees)
def test_leaves_are_those_of_a_plain_recursion(tree):
    assert list(leaves(tree)) == plain_leaves(tree)


@given(trees)
def test_a_function_sees_each_leaf_with_its_path(tree):
    seen: list[Any] = []
    map_tree(lambda path, leaf: seen.append((path, leaf)), tree)
    assert seen == plain_leaves(tree)


def test_the_path_starts_where_the_tree_stands():
    assert map_tree(lambda path, leaf: (path, leaf), {"w": 7}, ("model",)) == {
        "w": (("model", "w"), 7)
    }


def test_containers_are_fresh():
    tree = {"a": [1], "b": OrderedDict(c=2)}
    copy = map_tree(keep, tree)
    assert copy is not tree
    assert copy["a"] is not tree["a"]
    assert copy["b"] is not tree["b"]


def test_a_module_state_dict_keeps_its_metadata():
    state = torch.nn.Linear(2, 3).state_dict()
    copy = map_tree(keep, state)
    assert type(copy) is OrderedDict
    assert copy._metadata == state._metadata  # type: ignore[attr-defined]
    torch.nn.Linear(2, 3).load_state_dict(copy)


def test_a_defaultdict_keeps_its_factory():
    copy = map_tree(keep, defaultdict(list, {"a": 1}))
    assert copy["new"] == []


def test_a_namedtuple_keeps_its_class():
    assert map_tree(lambda _, x: -x, Pair(1, 2)) == Pair(-1, -2)
    assert type(map_tree(keep, Pair(1, 2))) is Pair


def test_other_mappings_become_dicts():
    tree = {"proxy": types.MappingProxyType({"a": 1}), "chain": ChainMap({"b": 2})}
    assert_same_tree(map_tree(keep, tree), {"proxy": {"a": 1}, "chain": {"b": 2}})


def test_other_lists_and_tuples_become_plain_ones():
    class Names(list[Any]):
        pass

    class Fixed(tuple[Any, ...]):
        __slots__ = ()

    assert_same_tree(map_tree(keep, [Names("ab"), Fixed("cd")]), [["a", "b"], ("c", "d")])


@pytest.mark.parametrize("leaf", [torch.Size([1, 2]), "text", b"bytes", {1, 2}, range(3), None])
def test_what_is_no_mapping_list_or_tuple_is_a_leaf(leaf):
    assert list(leaves({"x": leaf})) == [(("x",), leaf)]


def test_a_tensor_is_a_leaf():
    tensor = torch.arange(3)
    assert next(leaf for _, leaf in leaves([tensor])) is tensor


def test_a_container_comes_before_what_is_in_it():
    assert [node.path for node in nodes({"a": [5, {}]})] == [(), ("a",), ("a", 0), ("a", 1)]


def test_a_container_may_stand_in_two_places():
    shared = [1]
    assert_same_tree(map_tree(keep, {"a": shared, "b": shared}), {"a": [1], "b": [1]})


def test_a_tree_that_contains_itself_is_refused():
    tree: dict[str, Any] = {"a": [1, {}]}
    tree["a"][1]["again"] = tree
    message = r"contains itself: 'a\.1\.again' is one of its own parents"
    with pytest.raises(InvalidError, match=message):
        map_tree(keep, tree)
    with pytest.raises(InvalidError, match=message):
        list(leaves(tree))


def test_the_deepest_tree_that_is_allowed_works():
    tree = nested(MAX_DEPTH)
    assert list(leaves(tree)) == [((0,) * MAX_DEPTH, "leaf")]
    assert_same_tree(map_tree(keep, tree), tree)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 10_000])
def test_a_deeper_tree_is_refused(depth):
    tree = nested(depth)
    with pytest.raises(InvalidError, match=f"nested more than {MAX_DEPTH} deep"):
        map_tree(keep, tree)
    with pytest.raises(InvalidError, match=f"nested more than {MAX_DEPTH} deep"):
        list(leaves(tree))


def test_attributes_are_those_of_the_source():
    tree = with_metadata({"a": 1})
    assert map_tree(keep, tree)._metadata is tree._metadata  # type: ignore[attr-defined]
