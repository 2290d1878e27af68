"""Frozen memory keeps what was there, whatever the process does to it afterwards."""

import mmap
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from shardkeep.errors import ShardkeepError
from shardkeep.state import frozen
from shardkeep.state.frozen import FrozenTensor, freezable_at, is_freezable
from shardkeep.state.staging import Stager

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="reads a child's memory: Linux only"
)


def large(start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + 64 * 1024, dtype=torch.float32).reshape(256, 256)


def test_what_is_changed_afterwards_does_not_reach_it() -> None:
    weight = large()
    before = weight.clone()
    with Stager().freeze({"weight": [weight]}) as snapshot:
        kept = snapshot.tree["weight"][0]
        weight.zero_()
        assert isinstance(kept, FrozenTensor)
        assert torch.equal(kept.thawed(), before)
        assert torch.equal(kept[3:9, 5:7].thawed(), before[3:9, 5:7])
        assert torch.equal(kept.flat()[100:200].thawed(), before.view(-1)[100:200])


def test_a_tensor_that_is_freed_meanwhile_is_still_there() -> None:
    weight = torch.full((4 * 2**20,), 7.0)
    snapshot = Stager().freeze({"weight": [weight]})
    weight.untyped_storage().resize_(0)
    with snapshot:
        assert snapshot.tree["weight"][0][-3:].thawed().tolist() == [7.0] * 3


def test_small_and_strided_tensors_are_copied() -> None:
    parts = [torch.arange(5), large().t(), large(), torch.tensor(3.5), torch.empty(0, 4)]
    expected = [part.clone() for part in parts]
    with Stager().freeze({"a": parts[:3], "b": parts[3:]}) as snapshot:
        for part in parts:
            part.zero_()
        kept = [*snapshot.tree["a"], *snapshot.tree["b"]]
        assert [isinstance(one, FrozenTensor) for one in kept] == [False, False, True, False, False]
        for one, want in zip(kept, expected, strict=True):
            found = one.thawed() if isinstance(one, FrozenTensor) else one
            assert torch.equal(found, want)


def test_memory_that_a_fork_does_not_part_is_copied(tmp_path: Path) -> None:
    file = tmp_path / "shared"
    file.write_bytes(bytes(2**20))
    with file.open("r+b") as opened:
        mapped = torch.from_numpy(np.frombuffer(mmap.mmap(opened.fileno(), 0), np.uint8))
    assert is_freezable(mapped)
    for tensor in (mapped, large().share_memory_()):
        assert freezable_at([large(), tensor]) == []
        with Stager().freeze({"x": [tensor]}) as snapshot:
            expected = tensor.clone()
            tensor.fill_(9)
            assert torch.equal(snapshot.tree["x"][0], expected)


def test_where_the_kernel_refuses_the_state_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    weight = large()
    with Stager().freeze({"x": [weight]}) as snapshot:
        assert torch.equal(snapshot.tree["x"][0], weight)


def test_where_memory_cannot_be_read_the_state_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen.Frozen, "has", lambda *_: False)
    before = _children()
    weight = large()
    with Stager().freeze({"x": [weight]}) as snapshot:
        assert torch.equal(snapshot.tree["x"][0], weight)
    assert _children() == before


def test_memory_that_does_not_come_along_in_a_fork_is_copied() -> None:
    before = _children()
    room = mmap.mmap(-1, 2**20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    apart = torch.frombuffer(room, dtype=torch.float32)
    apart.copy_(torch.arange(len(apart)))
    room.madvise(mmap.MADV_DONTFORK)
    with Stager().freeze({"x": [large(), apart], "small": [torch.ones(3)]}) as snapshot:
        assert _children() == before
        expected = [large(), apart.clone()]
        apart.zero_()
        assert all(map(torch.equal, snapshot.tree["x"], expected))
        assert snapshot.tree["small"][0].tolist() == [1, 1, 1]


def test_the_child_goes_with_the_snapshot() -> None:
    before = _children()
    snapshot = Stager().freeze({"x": [large()]})
    kept = snapshot.tree["x"][0]
    assert len(_children() - before) == 1
    snapshot.release()
    snapshot.release()
    assert _children() == before
    with pytest.raises(ShardkeepError, match="keeps the state as it was is gone"):
        kept.thawed()


def test_a_child_that_was_killed_is_an_error_not_other_values() -> None:
    before = _children()
    with Stager().freeze({"x": [large()]}) as snapshot:
        (child,) = _children() - before
        os.kill(child, signal.SIGKILL)
        time.sleep(0.1)
        with pytest.raises(ShardkeepError, match="keeps the state as it was is gone"):
            snapshot.tree["x"][0].thawed()


def test_the_child_ends_with_a_parent_that_is_killed_and_keeps_no_pipe_open() -> None:
    code = """
        import os, signal, torch
        from shardkeep.state.staging import Stager
        snapshot = Stager().freeze({"x": [torch.ones(2**20)]})
        print(snapshot.tree["x"][0]._frozen._pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    # Returns when nobody holds the other end of its output any more.
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, timeout=60
    )
    assert run.returncode == -signal.SIGKILL
    child = int(run.stdout)
    for _ in range(100):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.05)
    pytest.fail("the child outlived its parent")


def _children() -> set[int]:
    """The children of this process that are alive or not yet waited for."""
    found: set[int] = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name, in brackets, may hold anything; behind it: state, parent.
            parent = status.read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.add(int(status.parent.name))
    return found
