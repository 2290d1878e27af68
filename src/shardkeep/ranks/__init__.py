"""Talking between ranks: who is there, do all agree, and boxes from memory to memory."""

from shardkeep.ranks.agree import (
    agree,
    agree_equal,
    require_equal,
    share_bytes,
    swap_bytes,
)
from shardkeep.ranks.exchange import DEFAULT_BUFFER_NBYTES, broadcast_bytes, ship
from shardkeep.ranks.group import RankGroup
from shardkeep.ranks.hosts import host_key, host_names, memory_key
from shardkeep.ranks.lanes import Shipment
from shardkeep.ranks.views import Views, share_from, share_views

__all__ = [
    "DEFAULT_BUFFER_NBYTES",
    "RankGroup",
    "Shipment",
    "Views",
    "agree",
    "agree_equal",
    "broadcast_bytes",
    "host_key",
    "host_names",
    "memory_key",
    "require_equal",
    "share_bytes",
    "share_from",
    "share_views",
    "ship",
    "swap_bytes",
]
