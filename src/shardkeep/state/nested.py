"""How do sharded tensors whose shards are themselves sharded become flat ones?

A rank sees its own outer shard and the inner shards of that one only, so ranks tell each other
what they hold: the flat tensor names the true owner of every shard, on every rank.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch

from shardkeep.errors import InvalidError, UnsupportedError
from shardkeep.ranks import RankGroup, agree
from shardkeep.sharded import Shard, ShardedTensor, ShardedTensorMetadata, ShardMetadata
from shardkeep.sharded.checks import require_whole
from shardkeep.sharded.leaves import leaf_kind
from shardkeep.sharded.metadata import TensorProperties
from shardkeep.sharded.remote_device import RemoteDevice
from shardkeep.state.keys import key_text, wire_key
from shardkeep.state.tree import leaves, map_tree

_WHAT = "flatten_sharded_tensors"
Piece = tuple[tuple[int, ...], torch.Tensor]


def flatten_sharded_tensors(state_dict: Any, pg: Any = None) -> Any:
    """The same tree with nested sharded tensors of any depth flattened. SPMD.

    Every rank of the group must have the same sharded keys; no key is dropped, also where a rank
    holds no shard. Shards share memory with the nested ones; other leaves stay as they are.
    """
    group = RankGroup.of(pg)
    sharded: dict[str, Any] = {}

    def check() -> bytes:
        for path, leaf in leaves(state_dict):
            if leaf_kind(leaf) == "sharded":
                sharded[wire_key(path)] = leaf
        return msgspec.json.encode({key: _describe(leaf) for key, leaf in sharded.items()})

    facts = [msgspec.json.decode(fact) for fact in agree(group, _WHAT, check)]
    flat = {
        key: _flat(key, leaf, facts, group, pg)
        for key, leaf in sharded.items()
        if any(fact.get(key, [False])[0] for fact in facts)
    }
    return map_tree(
        lambda path, leaf: flat.get(wire_key(path), leaf) if leaf_kind(leaf) else leaf, state_dict
    )


def _describe(leaf: Any) -> list[Any]:
    """Whether the tensor is nested here, and the innermost pieces that this rank holds."""
    nested = any(leaf_kind(shard.tensor) == "sharded" for shard in leaf.local_shards())
    pieces = [[start, list(part.shape), str(part.device)] for start, part in _pieces(leaf)]
    return [nested, pieces]


def _pieces(leaf: Any, origin: Sequence[int] = ()) -> Iterator[Piece]:
    """The innermost local tensors with where they start in the outermost one."""
    for shard in leaf.local_shards():
        offsets: Sequence[int] = shard.metadata.shard_offsets
        start = tuple(a + b for a, b in zip(origin or (0,) * len(offsets), offsets, strict=True))
        kind = leaf_kind(shard.tensor)
        if kind == "sharded":
            yield from _pieces(shard.tensor, start)
        elif kind == "dtensor":
            raise UnsupportedError(
                "a shard that is a DTensor cannot be flattened; use ShardedTensor.from_dtensor on "
                "it first"
            )
        else:
            yield start, shard.tensor


def _flat(
    key: str, leaf: Any, facts: Sequence[dict[str, Any]], group: RankGroup, pg: Any
) -> ShardedTensor:
    """The flat tensor: everyone's pieces in the metadata, mine in memory."""
    records = [
        ShardMetadata(start, sizes, RemoteDevice.on_rank(rank, device))
        for rank, fact in zip(group.ranks, facts, strict=True)
        for start, sizes, device in fact.get(key, [False, []])[1]
    ]
    mine = [Shard.from_tensor_and_offsets(part, start, group.me) for start, part in _pieces(leaf)]
    metadata = ShardedTensorMetadata(records, leaf.size(), TensorProperties(leaf.dtype))
    try:
        require_whole(metadata)
    except InvalidError as error:
        raise type(error)(f"{key_text(key)}: {error}") from error
    return ShardedTensor.in_group(metadata, mine, None, pg, leaf.device)
