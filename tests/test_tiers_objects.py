"""A run whose slow tier is a real object store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch

import shardkeep as sk
from torture.fault_proxy import FaultProxy
from torture.object_servers import S3Server


def state_of(version: int) -> dict[str, Any]:
    return {"w": torch.arange(3_000_000) + version, "version": version}


@pytest.fixture
def run_by(s3: S3Server, tmp_path: Path) -> Callable[[FaultProxy], Any]:
    """Runs of one place, whose requests a proxy sees."""
    url = s3.url(f"tiers/{uuid4().hex}")

    @contextmanager
    def make(proxy: FaultProxy) -> Iterator[sk.Checkpointer]:
        with proxy.serving() as endpoint:
            slow = sk.ObjectStorage(url, **s3.by_way_of(endpoint).options)
            with sk.Checkpointer(slow, local=tmp_path / "local") as run:
                yield run

    return make


def data_requests(proxy: FaultProxy) -> list[str]:
    return [asked.method for asked in proxy.log if ".safetensors" in asked.target]


def restored(run: sk.Checkpointer) -> tuple[int, int]:
    state = state_of(0)
    step = run.restore(state)
    assert torch.equal(state["w"], state_of(state["version"])["w"])
    return step, state["version"]


def test_what_the_local_disk_has_is_restored_from_it_and_else_from_the_object_store(
    s3: S3Server, run_by: Callable[[FaultProxy], Any], tmp_path: Path
) -> None:
    uploading, near, far = (FaultProxy(s3.endpoint) for _ in range(3))
    with run_by(uploading) as run:
        run.save(7, state_of(7))
        run.wait()
        assert run.steps() == [7]
    assert "PUT" in data_requests(uploading)

    with run_by(near) as run:
        assert restored(run) == (7, 7)
    assert data_requests(near) == []

    shutil.rmtree(tmp_path / "local")
    with run_by(far) as run:
        assert restored(run) == (7, 7)
    assert "GET" in data_requests(far)


def test_a_copy_that_is_damaged_on_the_local_disk_is_taken_from_the_object_store(
    s3: S3Server, run_by: Callable[[FaultProxy], Any], tmp_path: Path
) -> None:
    with run_by(FaultProxy(s3.endpoint)) as run:
        run.save(1, state_of(1))
    for file in (tmp_path / "local").rglob("*.safetensors"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)

    proxy = FaultProxy(s3.endpoint)
    with run_by(proxy) as run:
        assert restored(run) == (1, 1)
    assert "GET" in data_requests(proxy)
