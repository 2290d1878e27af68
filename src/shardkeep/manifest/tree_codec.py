"""How is the state's structure written as JSON?

A tensor is its number, everything else an object with one key that says what it is. What is
written and what is read obey the same rules, so both walk the tree with them at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest.nodes import (
    ArrayNode,
    DictNode,
    ListNode,
    Node,
    PerRankNode,
    SparseNode,
    TensorNode,
    TupleNode,
    ValueNode,
)
from shardkeep.manifest.plain_json import Json, shown
from shardkeep.manifest.tree_rules import TreeRules
from shardkeep.manifest.values import check_value


def encode_tree(node: Node, *, tensor_count: int, per_rank: Sequence[str] = ()) -> Json:
    """The tree as JSON; raises InvalidError for what a reader would reject.

    >>> tree = DictNode((("w", TensorNode(0)), ("step", ValueNode(7))))
    >>> encode_tree(tree, tensor_count=1)
    {'dict': [['w', 0], ['step', {'value': 7}]]}
    """
    return _Writer(tensor_count, per_rank).write(node, 0)


def decode_tree(data: object, *, tensor_count: int, per_rank: Sequence[str] = ()) -> Node:
    """The tree that was written; raises CorruptError or InvalidError for any other JSON."""
    return _Reader(tensor_count, per_rank).read(data, 0)


class _Writer(TreeRules):
    def write(self, node: Node, depth: int) -> Json:
        self.check_depth(depth)
        if type(node) is TensorNode:
            self.check_index(node.index)
            return node.index
        return self._WRITERS[type(node)](self, node, depth + 1)

    def _array(self, node: ArrayNode, depth: int) -> Json:
        self.check_index(node.index)
        return {"array": node.index}

    def _dict(self, node: DictNode, depth: int) -> Json:
        self.check_keys([key for key, _ in node.items])
        if node.items:
            self.check_depth(depth)
        write, count = self.write, self.tensor_count
        # Nearly all are tensors, perhaps many thousands: no call is made for each.
        items = [
            [key, child.index]
            if type(child) is TensorNode and type(child.index) is int and 0 <= child.index < count
            else [key, write(child, depth)]
            for key, child in node.items
        ]
        return {"odict" if node.ordered else "dict": items}

    def _list(self, node: ListNode, depth: int) -> Json:
        return {"list": [self.write(child, depth) for child in node.items]}

    def _tuple(self, node: TupleNode, depth: int) -> Json:
        return {"tuple": [self.write(child, depth) for child in node.items]}

    def _value(self, node: ValueNode, depth: int) -> Json:
        try:
            check_value(node.data)
        except CorruptError as error:
            raise InvalidError(f"tree: {error}") from None
        return {"value": node.data}

    def _own(self, node: PerRankNode, depth: int) -> Json:
        self.check_per_rank(node.key)
        return {"per_rank": node.key}

    def _sparse(self, node: SparseNode, depth: int) -> Json:
        self.check_sparse(node)
        body: dict[str, Any] = {
            "layout": node.layout,
            "shape": list(node.shape),
            "coalesced": node.coalesced,
            "parts": {name: self.write(part, depth) for name, part in node.parts},
        }
        return {"sparse": body}

    _WRITERS: ClassVar[Mapping[type, Callable[[Any, Any, int], Json]]] = {
        ArrayNode: _array,
        DictNode: _dict,
        ListNode: _list,
        TupleNode: _tuple,
        ValueNode: _value,
        PerRankNode: _own,
        SparseNode: _sparse,
    }


class _Reader(TreeRules):
    def read(self, data: object, depth: int) -> Node:
        self.check_depth(depth)
        if type(data) is int:
            self.check_index(data)
            return TensorNode(data)
        fields = cast("dict[str, object]", data) if isinstance(data, dict) else {}
        if len(fields) != 1:
            found = type(cast("object", data)).__name__
            raise CorruptError(
                f"tree: a node is a number or an object with one key, found a {found}"
            )
        ((kind, body),) = fields.items()
        if kind not in self._READERS:
            raise CorruptError(f"tree: unknown kind of node {shown(kind)}")
        return self._READERS[kind](self, body, depth + 1)

    def _array(self, body: object, depth: int) -> ArrayNode:
        self.check_index(body)
        return ArrayNode(cast("int", body))

    def _dict(self, body: object, depth: int) -> DictNode:
        return DictNode(self._items(body, depth), ordered=False)

    def _odict(self, body: object, depth: int) -> DictNode:
        return DictNode(self._items(body, depth), ordered=True)

    def _items(self, body: object, depth: int) -> tuple[tuple[str | int, Node], ...]:
        pairs = _pairs_of(body)
        self.check_keys([key for key, _ in pairs])
        if pairs:
            self.check_depth(depth)
        read, count = self.read, self.tensor_count
        # As in `_dict` of the writer.
        return tuple(
            [
                (key, TensorNode(child))
                if type(child) is int and 0 <= child < count
                else (key, read(child, depth))
                for key, child in pairs
            ]
        )

    def _list(self, body: object, depth: int) -> ListNode:
        return ListNode(tuple([self.read(child, depth) for child in _list_of(body)]))

    def _tuple(self, body: object, depth: int) -> TupleNode:
        return TupleNode(tuple([self.read(child, depth) for child in _list_of(body)]))

    def _value(self, body: object, depth: int) -> ValueNode:
        data = cast("Json", body)
        check_value(data)
        return ValueNode(data)

    def _own(self, body: object, depth: int) -> PerRankNode:
        self.check_per_rank(body)
        return PerRankNode(cast("str", body))

    def _sparse(self, body: object, depth: int) -> SparseNode:
        layout, shape, coalesced, parts = _sparse_fields(body)
        read = tuple([(name, self.read(part, depth)) for name, part in parts.items()])
        node = SparseNode(layout, shape, coalesced, read)
        self.check_sparse(node)
        return node

    _READERS: ClassVar[Mapping[str, Callable[[Any, object, int], Node]]] = {
        "array": _array,
        "dict": _dict,
        "odict": _odict,
        "list": _list,
        "tuple": _tuple,
        "value": _value,
        "per_rank": _own,
        "sparse": _sparse,
    }


def _list_of(body: object) -> list[object]:
    if type(body) is not list:
        raise CorruptError(f"tree: expected a list, found {shown(body)}")
    return cast("list[object]", body)


def _pairs_of(body: object) -> list[tuple[Any, Any]]:
    """The items of a dict."""
    items = cast("list[Any]", _list_of(body))
    if not all(type(item) is list and len(item) == 2 for item in items):
        raise CorruptError("tree: an item of a dict is not [key, node]")
    return items


def _sparse_fields(body: object) -> tuple[str, tuple[int, ...], bool, dict[str, object]]:
    fields = cast("dict[str, Any]", body) if type(body) is dict else {}
    if list(fields) != ["layout", "shape", "coalesced", "parts"]:
        raise CorruptError("tree: a sparse tensor has layout, shape, coalesced, parts")
    layout, shape, coalesced, parts = fields.values()
    if not all(map(isinstance, fields.values(), (str, list, bool, dict))):
        raise CorruptError("tree: a field of a sparse tensor has the wrong type")
    return layout, tuple(shape), coalesced, parts
