"""Is page-locked shared memory unlocked, once, when the last tensor on it is gone?"""

import gc
from typing import Any

import pytest
import torch

from shardkeep.state.buffers import HostMemory


class FakeCudart:
    """Stands in for the CUDA runtime, which this machine may lack."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.locked: dict[int, int] = {}
        self.unlocked: list[int] = []

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        assert flags == 1
        self.locked[address] = nbytes
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.unlocked.append(address)
        return 0


def use_fake_cudart(monkeypatch: pytest.MonkeyPatch, code: int = 0) -> FakeCudart:
    fake = FakeCudart(code)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    return fake


def test_shared_memory_is_locked_while_any_tensor_views_it(monkeypatch):
    fake = use_fake_cudart(monkeypatch)
    buffer: Any = HostMemory(pin_memory=True, share_memory=True).allocate(64)
    address = buffer.data_ptr()
    assert buffer.is_shared()
    assert fake.locked == {address: 64}
    view = buffer[8:16]
    del buffer
    gc.collect()
    assert fake.unlocked == []
    del view
    gc.collect()
    assert fake.unlocked == [address]


def test_memory_that_cannot_be_locked_is_an_error(monkeypatch):
    fake = use_fake_cudart(monkeypatch, code=712)
    with pytest.raises(RuntimeError, match="64 bytes could not be page-locked: CUDA error 712"):
        HostMemory(pin_memory=True, share_memory=True).allocate(64)
    gc.collect()
    assert fake.unlocked == []
