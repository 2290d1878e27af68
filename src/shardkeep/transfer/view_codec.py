"""How does a rank hand its view to the chair?"""

from __future__ import annotations

from typing import Any

import msgspec

from shardkeep.manifest import decode_tree, encode_tree
from shardkeep.plan import decode_view, encode_view
from shardkeep.plan.settle import SaveView


def encode_save_view(view: SaveView) -> bytes:
    """The view as JSON."""
    tree = encode_tree(view.tree, tensor_count=len(view.entries), per_rank=view.per_rank)
    return msgspec.json.encode([tree, view.per_rank, msgspec.Raw(encode_view(view.entries))])


def decode_save_view(data: bytes) -> SaveView:
    """The view that was encoded."""
    tree, per_rank, raw = msgspec.json.decode(data, type=tuple[Any, list[str], msgspec.Raw])
    entries = decode_view(bytes(raw))
    made = decode_tree(tree, tensor_count=len(entries), per_rank=per_rank)
    return SaveView(made, entries, tuple(per_rank))
