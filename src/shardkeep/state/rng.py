"""How do random numbers go on where they stopped, also on another number of ranks?

Each rank keeps the generators of its process. Rank n gets back what rank n saved. Where more ranks
load than saved, rank n starts from the state of rank n modulo their number, moved on to a stream of
its own: the same at every load, and no other rank's.
"""

# NumPy and torch leave their generators' states untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Set

import numpy as np
import torch
import xxhash

from shardkeep.state.keeping import PerRank
from shardkeep.state.live import OfRank, Stored
from shardkeep.state.paths import Path

_PYTHON = struct.Struct("<i625I")
_GAUSS = struct.Struct("<d")
_NUMPY_WORDS = 624
_NUMPY_REST = struct.Struct("<iid")


class RngState:
    """The random number generators of this process: Python's, NumPy's, torch's on each device.

    It stands in a state tree for what they are at the time of a save.
    """

    is_divisible = False

    def __init__(self) -> None:
        self._lap = 0

    def kept(self) -> PerRank:
        return PerRank({name: read() for name, (read, _) in _GENERATORS.items()} | _read_devices())

    def wanted(self, stored: Stored) -> OfRank:
        self._lap, rank = divmod(stored.me, max(1, stored.world))
        return OfRank(rank)

    def give(self, state: Mapping[str, bytes], loaded: Set[Path]) -> None:
        for name, (_, write) in _GENERATORS.items():
            if name in state:
                write(state[name])
        _write_devices(state)
        if self._lap:
            _reseed(state, self._lap)


def rng_state() -> RngState:
    """The random number generators of this process, to be put into a state tree.

    A load sets them to what they were on this rank.
    """
    return RngState()


def _read_python() -> bytes:
    version, words, gauss = random.getstate()
    rest = b"" if gauss is None else _GAUSS.pack(gauss)
    return _PYTHON.pack(version, *words) + rest


def _write_python(data: bytes) -> None:
    version, *words = _PYTHON.unpack(data[: _PYTHON.size])
    rest = data[_PYTHON.size :]
    random.setstate((version, tuple(words), _GAUSS.unpack(rest)[0] if rest else None))


def _read_numpy() -> bytes:
    _, words, at, has_gauss, gauss = np.random.get_state(legacy=True)
    return np.asarray(words, "<u4").tobytes() + _NUMPY_REST.pack(at, has_gauss, gauss)


def _write_numpy(data: bytes) -> None:
    words = np.frombuffer(data, "<u4", _NUMPY_WORDS)
    np.random.set_state(("MT19937", words, *_NUMPY_REST.unpack(data[words.nbytes :])))


def _read_torch() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def _write_torch(data: bytes) -> None:
    torch.set_rng_state(_as_tensor(data))


_GENERATORS: dict[str, tuple[Callable[[], bytes], Callable[[bytes], None]]] = {
    "python": (_read_python, _write_python),
    "numpy": (_read_numpy, _write_numpy),
    "torch": (_read_torch, _write_torch),
}


def _read_devices() -> dict[str, bytes]:
    """The generator of the accelerator that this process uses, where it has one."""
    if not _has_cuda():
        return {}
    return {"cuda": torch.cuda.get_rng_state().cpu().numpy().tobytes()}


def _write_devices(state: Mapping[str, bytes]) -> None:
    if _has_cuda() and "cuda" in state:
        torch.cuda.set_rng_state(_as_tensor(state["cuda"]))


def _has_cuda() -> bool:
    # Not is_available() alone: asking for a state would start CUDA where nobody uses it.
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _reseed(state: Mapping[str, bytes], lap: int) -> None:
    """Streams that follow from a rank's state, for a rank that saved none."""
    seeds = {name: xxhash.xxh3_64_intdigest(data, seed=lap) for name, data in sorted(state.items())}
    random.seed(seeds.get("python", lap))
    np.random.seed(seeds.get("numpy", lap) % 2**32)
    # The CPU's alone: torch.manual_seed would set every device's.
    torch.default_generator.manual_seed(seeds.get("torch", lap) % 2**63)
    if _has_cuda() and "cuda" in seeds:
        torch.cuda.manual_seed(seeds["cuda"] % 2**63)
