"""Talking between ranks: who is there, do all agree, and boxes from memory to memory."""

from shardkeep.ranks.agree import agree, agree_equal, require_member, share_bytes
from shardkeep.ranks.exchange import DEFAULT_BUFFER_NBYTES, Shipment, ship
from shardkeep.ranks.group import RankGroup

__all__ = [
    "DEFAULT_BUFFER_NBYTES",
    "RankGroup",
    "Shipment",
    "agree",
    "agree_equal",
    "require_member",
    "share_bytes",
    "ship",
]
