"""On which host does this process run? A name may be the same on many, so more is looked at."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import cache

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NETWORK = "/proc/self/ns/net"
_NUMBERS = "/proc/self/ns/pid"


@cache
def host_key() -> str:
    """Equal for two processes on the same host: its name, its boot, its network.

    Containers of one machine that have networks of their own are hosts of their own.
    """
    return "/".join((socket.gethostname(), _boot_id(), _inode(_NETWORK)))


@cache
def memory_key() -> str:
    """Equal for two processes that can see each other's memory: the host, the user, the numbers."""
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    return "/".join((host_key(), str(user), _inode(_NUMBERS)))


def host_names(keys: Mapping[int, str]) -> dict[int, str]:
    """What to call the host of each rank, in messages; those of the same name are numbered.

    >>> host_names({0: "a/1/1", 1: "a/2/1", 2: "b/3/1", 3: "a/1/1"})
    {0: 'a#1', 1: 'a#2', 2: 'b', 3: 'a#1'}
    """
    seen: dict[str, list[str]] = {}
    for key in keys.values():
        alike = seen.setdefault(_name(key), [])
        if key not in alike:
            alike.append(key)
    return {
        rank: f"{_name(key)}#{seen[_name(key)].index(key) + 1}"
        if len(seen[_name(key)]) > 1
        else _name(key)
        for rank, key in keys.items()
    }


def _name(key: str) -> str:
    return key.split("/", 1)[0]


def _boot_id() -> str:
    with suppress(OSError), open(_BOOT_ID) as file:
        return file.read().strip()
    return ""


def _inode(path: str) -> str:
    with suppress(OSError):
        return str(os.stat(path).st_ino)
    return ""
