"""Is everyone ready, and do all say the same? If one rank is not, every rank raises.

Checks that could fail on one rank alone run before the first message of an act, and their
outcome is exchanged, so that nobody waits for a rank that has given up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import torch
import xxhash

from shardkeep.errors import (
    DeadlineError,
    RankFailedError,
    RankInputError,
    RanksDisagreeError,
    name_ranks,
)
from shardkeep.ranks.group import RankGroup

# What fits goes in one round.
_RECORD_NBYTES = 256
_LENGTH_NBYTES = 8
_OK, _INPUT, _OTHER = b"\0", b"\1", b"\2"


def share_bytes(group: RankGroup, payload: bytes) -> list[bytes]:
    """Every rank's payload, by group rank."""
    if group.messenger is None or group.size == 1:
        return [payload]
    room = _RECORD_NBYTES - _LENGTH_NBYTES
    head = len(payload).to_bytes(_LENGTH_NBYTES, "little") + payload[:room]
    heads = _all_gather(group, head, _RECORD_NBYTES)
    lengths = [int.from_bytes(head[:_LENGTH_NBYTES], "little") for head in heads]
    if max(lengths) > room:
        bodies = _all_gather(group, payload, max(lengths))
    else:
        bodies = [head[_LENGTH_NBYTES:] for head in heads]
    return [body[:length] for body, length in zip(bodies, lengths, strict=True)]


def _all_gather(group: RankGroup, payload: bytes, nbytes: int) -> list[bytes]:
    if group.messenger is None:
        return [payload]
    padded = bytearray(payload.ljust(nbytes, b"\0"))
    if group.wire_device.type == "cpu":
        # Each to each takes half the time of a ring. Backends of devices would have to connect.
        copies, found = padded * group.size, bytearray(nbytes * group.size)
        source, target = (torch.frombuffer(room, dtype=torch.uint8) for room in (copies, found))
        none = list[int]()
        group.messenger.alltoall_base(target, source, none, none).wait()
        return [bytes(found[at : at + nbytes]) for at in range(0, len(found), nbytes)]
    mine = torch.frombuffer(padded, dtype=torch.uint8).to(group.wire_device)
    everyone = torch.empty((group.size, nbytes), dtype=torch.uint8, device=mine.device)
    group.messenger.allgather([list(everyone)], [mine]).wait()
    return [bytes(one) for one in everyone.cpu().numpy()]


def swap_bytes(group: RankGroup, payloads: Sequence[bytes]) -> list[bytes]:
    """What each rank has for me, by group rank; `payloads` are what I have for each. SPMD."""
    if group.messenger is None or group.size == 1:
        return list(payloads)
    none = list[int]()
    sizes = [len(payload) for payload in payloads]
    coming = torch.empty(group.size, dtype=torch.int64)
    group.messenger.alltoall_base(coming, torch.tensor(sizes), none, none).wait()
    lengths = [int(one) for one in coming]
    # An empty buffer would not do.
    mine = torch.frombuffer(bytearray(b"".join(payloads) or b"\0"), dtype=torch.uint8)
    room = torch.empty(sum(lengths), dtype=torch.uint8)
    group.messenger.alltoall_base(room, mine[: sum(sizes)], lengths, sizes).wait()
    data, found, at = room.numpy().tobytes(), list[bytes](), 0
    for length in lengths:
        found.append(data[at : at + length])
        at += length
    return found


def agree(group: RankGroup, phase: str, check: Callable[[], bytes]) -> list[bytes]:
    """Run `check` on every rank; the facts it returned by group rank, or one error on all.

    Raises RankInputError where every failure is bad input (a ValueError or TypeError),
    else RankFailedError; each names the ranks and what they said.
    """
    if group.size == 1:
        return [check()]
    error: Exception | None = None
    try:
        payload = _OK + check()
    except Exception as caught:
        error = caught
        kind = _INPUT if isinstance(caught, ValueError | TypeError) else _OTHER
        payload = kind + f"{type(caught).__name__}: {caught}".encode()
    answers = _exchange(group, phase, payload)
    failures = {
        rank: answer for rank, answer in zip(group.ranks, answers, strict=True) if answer[:1] != _OK
    }
    if failures:
        texts = {rank: answer[1:].decode(errors="replace") for rank, answer in failures.items()}
        only_input = all(answer[:1] == _INPUT for answer in failures.values())
        raise (RankInputError if only_input else RankFailedError)(texts, phase) from error
    return [answer[1:] for answer in answers]


def _exchange(group: RankGroup, phase: str, payload: bytes) -> list[bytes]:
    try:
        return share_bytes(group, payload)
    except RuntimeError as error:
        raise DeadlineError(
            f"{phase}: not all of {name_ranks(group.ranks)} took part within the group's timeout; "
            f"one may be dead, or not have called ({error})"
        ) from error


def agree_equal(group: RankGroup, phase: str, check: Callable[[], object]) -> None:
    """Run `check` on every rank and require that all return the same JSON value.

    Digests of it are compared; the values themselves travel only where they differ.
    """
    mine = b""

    def digest() -> bytes:
        nonlocal mine
        mine = json.dumps(check(), sort_keys=True).encode()
        return xxhash.xxh3_128_digest(mine)

    if len(set(agree(group, phase, digest))) > 1:
        said = _exchange(group, phase, mine)
        require_equal(group, phase, [text.decode() for text in said])


def require_equal(group: RankGroup, phase: str, said: Sequence[str]) -> None:
    """Raise RanksDisagreeError, naming who said what, unless all ranks said the same."""
    holders: dict[str, list[int]] = {}
    for rank, text in zip(group.ranks, said, strict=True):
        holders.setdefault(text, []).append(rank)
    if len(holders) > 1:
        lines = "\n".join(f"  {name_ranks(who)}: {text}" for text, who in holders.items())
        raise RanksDisagreeError(f"{phase}: ranks disagree:\n{lines}")
