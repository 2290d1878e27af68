"""Do the engine's promises hold on a real object store?"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

import shardkeep as sk
from shardkeep.errors import ConflictError, CorruptError, NotFoundError, ShardkeepError
from shardkeep.manifest import MANIFEST_NAME
from shardkeep.storage.objects import ObjectStorage
from tests.transfer.test_any_to_any import Moves, assert_comes_back, moves, world_of
from tests.transfer.worlds import Laid, all_well, kept_by, save_kept
from torture.fault_proxy import Fault, FaultProxy
from torture.object_servers import S3Server

SAVERS = 16


@pytest.fixture
def place(s3: S3Server) -> Callable[..., ObjectStorage]:
    """Storages of one fresh checkpoint."""
    url = s3.url(f"engine/{uuid4().hex}")
    return lambda **options: ObjectStorage(url, **{**s3.options, **options})


def state_of(version: int) -> dict[str, Any]:
    return {
        "a": torch.full((4096,), version, dtype=torch.int64),
        "b": torch.arange(version, version + 100),
        "n": version,
    }


def version_of(state: dict[str, Any]) -> int:
    wanted = state_of(state["n"])
    assert torch.equal(state["a"], wanted["a"])
    assert torch.equal(state["b"], wanted["b"])
    return state["n"]


@given(moves=moves(), reverse=st.booleans())
@settings(max_examples=8, suppress_health_check=list(HealthCheck))  # pyright: ignore[reportArgumentType]
def test_any_layout_loads_into_any_other(s3: S3Server, moves: Moves, reverse: bool) -> None:
    sources = {key: Laid(whole, source) for key, (whole, source, _) in moves.items()}
    storage = ObjectStorage(s3.url(f"any/{uuid4().hex}"), **s3.options)
    all_well(save_kept(lambda rank: kept_by(rank, sources), storage, world_of(sources), threads=2))
    assert_comes_back(storage, moves, reverse=reverse)


@pytest.mark.parametrize("fault", ["reset", "lost"])
def test_an_overwrite_torn_at_any_request_leaves_the_old_or_the_new(
    s3: S3Server, place: Callable[..., ObjectStorage], fault: Fault
) -> None:
    """From the n-th request of the save on, nothing reaches the store any more, or no answer."""
    direct = place()
    sk.save(state_of(0), direct)
    version = torn = number = 0
    for number in range(100):
        proxy = FaultProxy(s3.endpoint, from_nth(number, fault))
        with proxy.serving() as endpoint:
            quick = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
            storage = place(endpoint=endpoint, deadline=0.01, retry_config=quick)
            try:
                sk.save(state_of(version + 1), storage, overwrite=True)
                told = True
            except ShardkeepError:
                told = False
        found = version_of(sk.load(direct))
        assert found in ((version + 1,) if told else (version, version + 1))
        torn, version = torn + (not told), found
        if told and len(proxy.log) <= number:
            break
    assert torn >= 5
    assert torn < number


def from_nth(number: int, fault: Fault) -> Callable[[str, str], Fault | None]:
    turn = itertools.count()
    return lambda _method, _target: fault if next(turn) >= number else None


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_sixteen_savers_exactly_one_wins(
    place: Callable[..., ObjectStorage], overwrite: bool
) -> None:
    if overwrite:
        sk.save(state_of(99), place())
    start = threading.Barrier(SAVERS)

    def save(version: int) -> bool:
        storage = place()
        start.wait(60)
        try:
            sk.save(state_of(version), storage, overwrite=overwrite)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(SAVERS) as pool:
        told = list(pool.map(save, range(SAVERS)))

    winners = [version for version, won in enumerate(told) if won]
    assert version_of(sk.load(place())) in winners
    if not overwrite:
        assert len(winners) == 1
    sk.prune(place())
    save_id = sk.open(place()).save_id
    assert all(one.key.startswith(save_id) for one in place().list() if one.key != MANIFEST_NAME)


def test_damage_is_found_and_named(place: Callable[..., ObjectStorage]) -> None:
    storage = place()
    sk.save({"w": torch.arange(100_000), "v": torch.arange(100_000)}, storage)
    name = next(one.key for one in storage.list() if one.key.endswith(".safetensors"))
    content = storage.get(name, max_nbytes=2**30)

    def damaged(data: bytes | None) -> str:
        storage.delete(name)
        if data is not None:
            assert storage.put_if_absent(name, data)
        with pytest.raises((CorruptError, NotFoundError)) as caught:
            sk.load(storage)
        return str(caught.value)

    assert "are not what was written" in damaged(content[:-9] + b"x" + content[-8:])
    assert name in damaged(content[:-1])
    assert name in damaged(content + b"\0")
    assert name in damaged(b"")
    assert name in damaged(bytes(100) + content[100:])
    assert name in damaged_missing(storage, name, content)


def damaged_missing(storage: ObjectStorage, name: str, content: bytes) -> str:
    storage.delete(name)
    with pytest.raises(NotFoundError, match="is not in") as caught:
        sk.load(storage)
    assert storage.put_if_absent(name, content)
    assert set(sk.load(storage)) == {"w", "v"}
    return str(caught.value)


def test_what_a_killed_save_left_is_pruned_when_its_lease_is_over(
    s3: S3Server, place: Callable[..., ObjectStorage]
) -> None:
    code = (
        "import sys, torch, shardkeep as sk\n"
        "storage = sk.ObjectStorage(sys.argv[1], lease_seconds=2.0, part_nbytes=5 * 2**20)\n"
        "print('go', flush=True)\n"
        "sk.save({'w': torch.arange(2**22), 'v': torch.ones(10)}, storage)\n"
    )
    held = threading.Event()

    def choose(method: str, target: str) -> Fault | None:
        # The lock and files come; the manifest does not get through in time.
        if method == "PUT" and MANIFEST_NAME in target:
            held.set()
            return "slow"
        return None

    storage = place()
    with FaultProxy(s3.endpoint, choose, slow_seconds=30).serving() as endpoint:
        environment = {**os.environ, **s3.by_way_of(endpoint).environment}
        command = [sys.executable, "-c", code, storage.location]
        with subprocess.Popen(command, env=environment) as saver:
            assert held.wait(60)
            report = sk.prune(storage)
            assert report.names == ()
            os.kill(saver.pid, signal.SIGKILL)
    left = [one.key for one in storage.list()]
    assert sum(name.endswith(".safetensors") for name in left) >= 1
    deadline = time.monotonic() + 30
    while storage.list() and time.monotonic() < deadline:
        sk.prune(storage)
        time.sleep(0.3)
    assert storage.list() == []


def test_an_upload_that_was_never_finished_is_pruned_unless_its_save_is_under_way(
    place: Callable[..., ObjectStorage],
) -> None:
    storage, name = place(part_nbytes=5 * 2**20), "0123456789abcdef-00000-0.safetensors"
    sink = storage.create(name)
    sink.write(0, [bytes(20 * 2**20)])
    deadline = time.monotonic() + 30
    while not storage.unfinished() and time.monotonic() < deadline:
        time.sleep(0.05)
    with storage.hold("0123456789abcdef.lock"):
        assert sk.prune(storage).uploads == ()
    assert sk.prune(storage, dry_run=True).uploads == (name,)
    assert len(storage.unfinished()) == 1
    assert sk.prune(storage).uploads == (name,)
    assert storage.unfinished() == []
    sink.abort()


def count(s3: S3Server, act: Callable[[S3Server], object], **proxy_options: Any) -> int:
    """How many requests an act takes."""
    proxy = FaultProxy(s3.endpoint, **proxy_options)
    with proxy.serving() as endpoint:
        act(s3.by_way_of(endpoint))
    return len(proxy.log)


def test_thousands_of_small_tensors_are_a_few_requests(
    s3: S3Server, place: Callable[..., ObjectStorage]
) -> None:
    state = {f"t{n}": torch.full((500,), n, dtype=torch.float32) for n in range(5000)}
    into = {key: torch.zeros(500) for key in state}

    def save(server: S3Server) -> None:
        sk.save(state, place(endpoint=server.endpoint))

    def load(server: S3Server) -> None:
        sk.load(place(endpoint=server.endpoint), into=into)

    def peek(server: S3Server) -> None:
        with sk.open(place(endpoint=server.endpoint)) as checkpoint:
            assert checkpoint["t77"][3].item() == 77

    assert count(s3, save) <= 20
    assert count(s3, load) <= 10
    assert all(torch.equal(into[key], value) for key, value in state.items())
    assert count(s3, peek) <= 3
