"""Does every place of a tree have one text, and can it be read and written?"""

import json
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, strategies as st
from torch.distributed.checkpoint import _traverse as reference

from shardkeep.errors import InvalidError
from shardkeep.state.paths import flat_keys, get_element, path_text, quoted, set_element
from tests.state.trees import keys, plain_leaves, trees

paths = st.lists(keys, max_size=3).map(tuple)
plain_paths = st.lists(st.sampled_from("ab") | st.integers(0, 2), min_size=1, max_size=3).map(tuple)


def test_the_text_is_the_dotted_path_where_it_is_unique():
    assert flat_keys([("model", "layers.0.w"), ("optim", 0, "step")]) == {
        ("model", "layers.0.w"): "model.layers.0.w",
        ("optim", 0, "step"): "optim.0.step",
    }


@pytest.mark.parametrize(
    ("first", "first_text", "second", "second_text"),
    [
        (("a.b",), '"a.b"', ("a", "b"), "a.b"),
        ((1,), "1", ("1",), '"1"'),
        ((-1,), "-1", ("-1",), '"-1"'),
        (("a", 0), "a.0", ("a.0",), '"a.0"'),
        (("None",), "None", (None,), 'NoneType("None")'),
        (("True",), "True", (True,), 'bool("True")'),
        ((), "", ("",), '""'),
        ((1.5,), 'float("1.5")', (1, 5), "1.5"),
    ],
)
def test_colliding_paths_are_quoted(first, first_text, second, second_text):
    assert flat_keys([first, second, ("z",)]) == {
        first: first_text,
        second: second_text,
        ("z",): "z",
    }


def test_a_key_that_looks_quoted_is_quoted_again():
    texts = flat_keys([("a.b",), ("a", "b"), ('"a.b"',)])
    assert texts == {("a.b",): '"a.b"', ("a", "b"): "a.b", ('"a.b"',): r'"\"a.b\""'}


def test_a_long_chain_of_quotes_ends():
    names = ["a.b"]
    for _ in range(8):
        names.append(json.dumps(names[-1]))
    texts = flat_keys([("a", "b"), *((name,) for name in names)])
    assert len(set(texts.values())) == 10


@given(st.lists(paths, unique=True))
def test_texts_are_unique(found):
    texts = flat_keys(found)
    assert list(texts) == found
    assert len(set(texts.values())) == len(found)


@given(st.lists(paths, unique=True).flatmap(lambda x: st.tuples(st.just(x), st.permutations(x))))
def test_texts_do_not_depend_on_the_order(both):
    assert flat_keys(both[0]) == flat_keys(both[1])


@given(paths, paths)
def test_a_quoted_text_belongs_to_one_path(first, second):
    assert (quoted(first) == quoted(second)) == (
        first == second and [type(x) for x in first] == [type(x) for x in second]
    )


def test_keys_that_look_the_same_are_refused():
    class Key:
        def __repr__(self) -> str:
            return "key"

    with pytest.raises(InvalidError, match=r'both written Key\("key"\)'):
        flat_keys([(Key(),), (Key(),)])


def test_a_very_long_path_is_shortened_in_messages():
    assert len(path_text(("x" * 50,) * 10_000)) < 250


@given(trees)
def test_every_leaf_is_found_by_its_path(tree):
    for path, leaf in plain_leaves(tree):
        assert get_element(tree, path, default="missing") is leaf


@pytest.mark.parametrize(
    "path",
    [("x",), ("a", 2), ("a", -1), ("a", "0"), ("a", True), ("t", 2), ("n", "y"), ("a", 0, 0)],
)
def test_what_is_not_there_is_the_default(path):
    tree = {"a": [1, 2], "t": (3, 4), "n": None}
    assert get_element(tree, path) is None
    assert get_element(tree, path, default="none") == "none"


def test_an_element_of_a_tuple_is_found():
    assert get_element({"t": (3, {"x": 4})}, ("t", 1, "x")) == 4


def test_an_element_that_is_none_is_not_the_default():
    assert get_element({"n": None}, ("n",), default=1) is None


def test_an_empty_path_is_the_root():
    assert get_element(5, ()) == 5


@given(st.lists(plain_paths, max_size=6))
def test_elements_are_set_as_the_reference_sets_them(found):
    ours: Any = {}
    theirs: Any = {}
    for number, path in enumerate(found):
        # The reference sees keys of a mapping as text, and fails on what we refuse.
        path = (str(path[0]), *path[1:])
        try:
            reference.set_element(theirs, path, number)
        except (TypeError, AttributeError):
            return
        set_element(ours, path, number)
        assert ours == theirs


def test_missing_containers_follow_the_type_of_the_next_key():
    root: dict[str, Any] = {}
    set_element(root, ("a", 2, "b"), 5)
    assert root == {"a": [None, None, {"b": 5}]}
    set_element(root, ("a", 0, 1), 6)
    assert root == {"a": [[None, 6], None, {"b": 5}]}


def test_an_int_is_a_key_where_there_is_a_mapping():
    root = {"state": OrderedDict()}
    set_element(root, ("state", 7), "x")
    assert root == {"state": OrderedDict({7: "x"})}


def test_a_list_can_be_the_root():
    root = [1]
    set_element(root, (1,), 2)
    assert root == [1, 2]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ((), "an empty path names the root"),
        (("t", 0), "'t' is a tuple, which cannot be changed"),
        (("t", 5, "x"), "'t' is a tuple, which cannot be changed"),
        (("a", -1), "'a' is a list, which has no element -1"),
        (("a", "x"), "'a' is a list, which has no element 'x'"),
        (("a", True), "'a' is a list, which has no element True"),
        (("n", "x"), "'n' is a NoneType, not a mapping or list"),
        (("i", 0), "'i' is a int, not a mapping or list"),
    ],
)
def test_what_cannot_be_set_is_refused(path, message):
    root = {"t": (1, 2), "a": [1], "n": None, "i": 3}
    with pytest.raises(InvalidError, match=message):
        set_element(root, path, 9)
    assert root == {"t": (1, 2), "a": [1], "n": None, "i": 3}
