"""Where does a shard live: on which rank, on which device?"""

from __future__ import annotations

import torch

from shardkeep.errors import InvalidError

_RANK = "rank:"


class RemoteDevice:
    """A device of some rank, written `rank:1/cuda:0`, `worker/cpu`, `worker` or `cpu`.

    >>> RemoteDevice("rank:1/cpu").rank()
    1
    """

    __slots__ = ("_device", "_rank", "_worker")
    _rank: int | None
    _worker: str | None
    _device: torch.device

    def __init__(self, remote_device: str | torch.device | RemoteDevice) -> None:
        if isinstance(remote_device, RemoteDevice):
            parts = (remote_device._rank, remote_device._worker, remote_device._device)
        elif isinstance(remote_device, torch.device):
            parts = (None, None, remote_device)
        elif isinstance(remote_device, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            parts = _parse(remote_device)
        else:
            raise TypeError(
                f"a placement is a string or torch.device, got {type(remote_device).__name__}"
            )
        self._rank, self._worker, self._device = parts

    @classmethod
    def on_rank(cls, rank: int, device: torch.device | str) -> RemoteDevice:
        """A device of a global rank."""
        return cls(f"rank:{rank}/{device}")

    def rank(self) -> int | None:
        """The global rank, if the placement names one."""
        return self._rank

    def worker_name(self) -> str | None:
        """The RPC worker, if the placement names one."""
        return self._worker

    def device(self) -> torch.device:
        """The device on that rank."""
        return self._device

    def on_device(self, device: torch.device) -> RemoteDevice:
        """The same owner, another device."""
        return RemoteDevice(f"{self._owner()}/{device}" if self._owner() else device)

    def _owner(self) -> str | None:
        return self._worker if self._rank is None else f"rank:{self._rank}"

    def __str__(self) -> str:
        owner = self._owner()
        return f"{owner}/{self._device}" if owner else str(self._device)

    def __repr__(self) -> str:
        return f"RemoteDevice({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteDevice) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[type[RemoteDevice], tuple[str]]:
        return RemoteDevice, (str(self),)


def _parse(text: str) -> tuple[int | None, str | None, torch.device]:
    owner, slash, device = text.partition("/")
    if "/" in device or not owner or (slash and not device):
        raise InvalidError(
            f"cannot read placement {text!r}; write 'rank:<n>/<device>', '<worker>/<device>', "
            "'<worker>' or '<device>'"
        )
    if not slash:
        try:
            return None, None, torch.device(owner)
        except RuntimeError:
            device = "cpu"
    return *_parse_owner(owner, text), torch.device(device)


def _parse_owner(owner: str, text: str) -> tuple[int | None, str | None]:
    rank = owner.removeprefix(_RANK)
    if rank != owner and rank.isdecimal():
        return int(rank), None
    if ":" in owner:
        raise InvalidError(f"cannot read the owner of placement {text!r}; write 'rank:<n>'")
    return None, owner
