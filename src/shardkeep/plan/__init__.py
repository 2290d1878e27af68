"""Pure decisions: who sends what to whom."""

from shardkeep.plan.messages import cut, fill
from shardkeep.plan.moves import Move, RankMoves, plan_moves, plan_moves_once
from shardkeep.plan.views import (
    Entry,
    Holders,
    View,
    decode_view,
    digest_view,
    encode_view,
    entries_of,
    held_layout,
    holders_of,
    source_layouts,
)

__all__ = [
    "Entry",
    "Holders",
    "Move",
    "RankMoves",
    "View",
    "cut",
    "decode_view",
    "digest_view",
    "encode_view",
    "entries_of",
    "fill",
    "held_layout",
    "holders_of",
    "plan_moves",
    "plan_moves_once",
    "source_layouts",
]
