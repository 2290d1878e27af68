"""Which trees do the tests try, and when are two of them exactly the same?"""

from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st


class Pair(NamedTuple):
    left: Any
    right: Any


# Few and awkward, so that paths collide often.
AWKWARD_KEYS = ("a", "b", "a.b", "", ".", "0", "1", "-1", '"', '"a.b"', "\\", '"0"', "é", "True")
text_keys = st.sampled_from(AWKWARD_KEYS)
int_keys = st.sampled_from((-1, 0, 1, 10))
other_keys = st.sampled_from((True, None, 0.5, ("a", 1), b"a", torch.float32))
keys = text_keys | int_keys | other_keys

values = st.one_of(
    st.integers(),
    st.none(),
    st.text(max_size=2),
    st.sampled_from((torch.Size([2, 3]), torch.bfloat16, b"", 1.5, True)),
)


def with_metadata(items: dict[Any, Any]) -> OrderedDict[Any, Any]:
    tree = OrderedDict(items)
    tree._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    return tree


def _containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    dicts = st.dictionaries(keys, children, max_size=4)
    lists = st.lists(children, max_size=3)
    return st.one_of(
        dicts,
        dicts.map(OrderedDict),
        dicts.map(with_metadata),
        dicts.map(lambda items: defaultdict(list, items)),
        lists,
        lists.map(tuple),
        st.builds(Pair, children, children),
    )


trees = st.recursive(values, _containers, max_leaves=12)
state_dicts = st.dictionaries(keys, trees, max_size=4)


def assert_same_tree(a: Any, b: Any) -> None:
    """Types, key order, attributes, factories and leaves: everything is equal."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert [(type(key), key) for key in a] == [(type(key), key) for key in b]
        assert getattr(a, "__dict__", None) == getattr(b, "__dict__", None)
        assert getattr(a, "default_factory", None) == getattr(b, "default_factory", None)
        for key in a:
            assert_same_tree(a[key], b[key])
    elif isinstance(a, list | tuple) and not isinstance(a, torch.Size):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same_tree(x, y)
    else:
        assert a is b or a == b


def plain_leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """Every leaf with its path, by the simplest recursion."""
    if isinstance(tree, dict):
        items = list(tree.items())
    elif isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        items = list(enumerate(tree))
    else:
        return [(path, tree)]
    return [found for key, child in items for found in plain_leaves(child, (*path, key))]
