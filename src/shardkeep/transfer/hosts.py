"""Which ranks are on which host? Those are on one that see the same local folder.

Names of hosts, addresses and the like may be equal where disks are not, or differ where a disk is
shared. So a folder tells itself: whoever comes to it first leaves a token there.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from shardkeep.ranks.hosts import host_names
from shardkeep.storage import LocalStorage
from shardkeep.transfer.council import Council

_TOKEN = "host"
_TOKEN_NBYTES = 16


@dataclass(frozen=True, slots=True)
class Hosts:
    """The number of each rank's host, in the order of their lowest ranks."""

    me: int
    number_of: Mapping[int, int]
    names: Mapping[int, str]
    """What to call the host of each rank."""

    @property
    def mine(self) -> int:
        return self.number_of[self.me]

    @property
    def count(self) -> int:
        return len(set(self.number_of.values()))

    def ranks_on(self, host: int) -> tuple[int, ...]:
        """The ranks of a host, in order."""
        return tuple(rank for rank, number in sorted(self.number_of.items()) if number == host)

    @property
    def leads(self) -> bool:
        """Whether this rank acts for its host."""
        return self.ranks_on(self.mine)[0] == self.me


def folder_token(root: str | os.PathLike[str]) -> str:
    """What tells this folder from those of other hosts; the folder is made if it is not there."""
    with LocalStorage(root, create=True) as storage:
        storage.put_if_absent(_TOKEN, secrets.token_hex(_TOKEN_NBYTES // 2).encode())
        return storage.get(_TOKEN, max_nbytes=_TOKEN_NBYTES).decode(errors="replace")


def meet_hosts(council: Council, root: str | os.PathLike[str]) -> Hosts:
    """The hosts of all ranks, by their local folders; if one cannot be used, all raise. SPMD."""
    try:
        key = f"{socket.gethostname()}/{folder_token(root)}"
        council.report("hosts", key.encode())
        if council.me == council.chair:
            keys = {rank: note.decode() for rank, note in council.collect("hosts").items()}
            council.announce("hosts", msgspec.json.encode(sorted(keys.items())))
        said = msgspec.json.decode(council.hear("hosts"), type=list[tuple[int, str]])
    except BaseException as error:
        council.fail("local tier", error, undone=True)
        council.leave(done=False)
        raise
    council.leave(done=True)
    numbers: dict[str, int] = {}
    # By token alone: containers that share a disk may have names of their own.
    number_of = {
        rank: numbers.setdefault(key.rsplit("/", 1)[1], len(numbers)) for rank, key in said
    }
    return Hosts(council.me, number_of, host_names(dict(said)))
