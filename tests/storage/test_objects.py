import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from shardkeep.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from shardkeep.storage import (
    CanFetch,
    OutcomeUnknownError,
    Storage,
    StreamSink,
    object_commit,
    open_storage,
)
from shardkeep.storage.objects import ObjectStorage
from shardkeep.testing.storage_suite import StorageSuite, distinct_bytes, read_all, write_object
from torture.fault_proxy import Fault, FaultProxy
from torture.object_servers import S3Server

MIB = 2**20
PART = 5 * MIB


@pytest.fixture
def url(s3: S3Server) -> str:
    return s3.url(f"tests/{uuid4().hex}")


@pytest.fixture
def storage(s3: S3Server, url: str) -> ObjectStorage:
    return ObjectStorage(url, part_nbytes=PART, **s3.options)


class TestObjectStorage(StorageSuite):
    @pytest.fixture
    def storage(self, s3: S3Server, url: str) -> Storage:
        self.make = lambda: ObjectStorage(url, part_nbytes=PART, **s3.options)
        return self.make()

    def second(self, storage: Storage) -> Storage:
        return self.make()


# Large objects


def test_a_large_object_is_streamed_in_parts_and_comes_back(storage: ObjectStorage):
    content = distinct_bytes(3 * PART + 12345)
    with storage.create("large") as sink:
        assert isinstance(sink, StreamSink)
        for at in range(0, len(content), MIB):
            sink.write_kept(at, [memoryview(content)[at : at + MIB]])
        assert storage.list() == []

    assert storage.size("large") == len(content)
    assert read_all(storage, "large") == content
    assert storage.read("large", PART - 3, 6) == content[PART - 3 : PART + 3]


def test_a_large_object_may_be_written_in_any_order_by_several_threads(storage: ObjectStorage):
    content = distinct_bytes(2 * PART + 99)
    starts = list(range(0, len(content), 300_000))[::-1]
    with storage.create("large") as sink, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: sink.write(at, [content[at : at + 300_000]]), starts))

    assert read_all(storage, "large") == content


def test_a_hole_in_a_large_object_reads_as_zeros(storage: ObjectStorage):
    with storage.create("large") as sink:
        sink.write(2 * PART, [b"end"])

    assert storage.size("large") == 2 * PART + 3
    assert storage.read("large", 2 * PART - 2, 5) == b"\0\0end"


def test_what_was_sent_cannot_be_written_again(storage: ObjectStorage):
    sink = storage.create("a")
    sink.write(0, [bytes(PART + 1)])
    with pytest.raises(InvalidError, match="byte 0 was written before"):
        sink.write(0, [b"again"])
    sink.abort()
    assert storage.list() == []


def test_a_large_object_never_takes_the_place_of_another(storage: ObjectStorage):
    sink = storage.create("large")
    sink.write(0, [bytes(PART + 1)])
    write_object(storage, "large", b"first")
    with pytest.raises(ConflictError, match="large is already there"):
        sink.finish()
    sink.abort()

    assert read_all(storage, "large") == b"first"


def test_an_aborted_upload_leaves_nothing_and_no_thread(storage: ObjectStorage):
    sink = storage.create("large")
    sink.write(0, [bytes(3 * PART)])
    sink.abort()

    assert storage.list() == []
    assert not [one for one in threading.enumerate() if one.name == "shardkeep-upload"]
    write_object(storage, "large", b"whole")
    assert read_all(storage, "large") == b"whole"


def test_parts_too_small_for_s3_are_refused(url: str, s3: S3Server):
    with pytest.raises(InvalidError, match="part_nbytes is at least 5242880, got 1000"):
        ObjectStorage(url, part_nbytes=1000, **s3.options)


def test_a_file_of_more_parts_than_s3_takes_says_what_to_do(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("shardkeep.storage.object_sink._MAX_PARTS", 2)
    with pytest.raises(StorageError, match="part_nbytes="), storage.create("a") as sink:
        sink.write(0, [bytes(3 * PART)])
    assert storage.list() == []


# URLs and options


def test_a_url_takes_its_credentials_from_the_environment(
    s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch
):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with open_storage(f"{url}/", create=True, durable=True) as storage:
        write_object(storage, "a", b"1")
        assert storage.location == url
        assert isinstance(storage, CanFetch)


def test_a_bucket_that_is_not_there_is_named(s3: S3Server):
    storage = ObjectStorage("s3://no-such-bucket/a", deadline=1, **s3.options)
    with pytest.raises(NotFoundError, match="'a' is not in s3://no-such-bucket/a"):
        storage.size("a")


def test_wrong_keys_are_a_permission_and_not_tried_for_long(s3: S3Server, url: str):
    wrong = {**s3.options, "secret_access_key": "wrong"}
    start = time.monotonic()
    with pytest.raises(StorageError, match="permission denied; check the credentials") as caught:
        ObjectStorage(url, **wrong).put_if_absent("a", b"1")
    assert url in str(caught.value)
    assert not isinstance(caught.value, OutcomeUnknownError)
    assert time.monotonic() - start < 30


def test_a_server_that_is_not_there_is_a_storage_error(url: str, s3: S3Server):
    dead = {**s3.options, "endpoint": "http://127.0.0.1:9"}
    quick = {"max_retries": 1, "retry_timeout": timedelta(seconds=1)}
    with pytest.raises(StorageError, match="reading it: ") as caught:
        ObjectStorage(url, deadline=0.5, retry_config=quick, **dead).get("a", max_nbytes=9)
    assert url in str(caught.value)


# The store that ignores conditions


def test_a_store_that_ignores_conditions_is_refused_before_anything_is_put(careless_s3: S3Server):
    storage = ObjectStorage(careless_s3.url("refused"), **careless_s3.options)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"ignores If-None-Match: .* conditional=False"):
            storage.put_if_absent("manifest.json", b"1")
    assert storage.list() == []


def test_a_store_that_ignores_conditions_is_taken_when_told_so(careless_s3: S3Server):
    storage = ObjectStorage(careless_s3.url("taken"), conditional=False, **careless_s3.options)

    assert storage.put_if_absent("manifest.json", b"1")
    assert not storage.put_if_absent("manifest.json", b"2")
    assert not storage.replace("manifest.json", b"2", expected=b"3")
    assert storage.replace("manifest.json", b"2", expected=b"1")
    assert read_all(storage, "manifest.json") == b"2"


# Leases


def test_a_lease_that_is_not_renewed_may_be_taken_over(s3: S3Server, url: str):
    """The holder was stopped for longer than its lease; a clean-up came; the holder goes on."""
    holder = ObjectStorage(url, lease_seconds=1.0, **s3.options)
    cleaner = ObjectStorage(url, **s3.options)
    with holder.hold("a.lock"):
        (lease,) = holder._leases._held.values()
        assert cleaner.is_held("a.lock")
        with lease._renewing:
            deadline = time.monotonic() + 20
            while not cleaner.delete_unless_held("a.lock"):
                assert time.monotonic() < deadline
                time.sleep(0.3)

        lease._renewed_at -= 10
        with pytest.raises(StorageError, match=r"a clean-up took it for dead.*save again"):
            holder.put_if_absent("manifest.json", b"new")
    assert cleaner.list() == []


def test_a_lease_that_is_renewed_is_held_for_long(s3: S3Server, url: str):
    holder = ObjectStorage(url, lease_seconds=2.0, **s3.options)
    cleaner = ObjectStorage(url, **s3.options)
    end = time.monotonic() + 5
    with holder.hold("a.lock"):
        while time.monotonic() < end:
            assert not cleaner.delete_unless_held("a.lock")
            time.sleep(0.2)
        assert holder.put_if_absent("manifest.json", b"new")
    assert [entry.key for entry in cleaner.list()] == ["manifest.json"]


# Faults between us and the store


def through(proxy_url: str, s3: S3Server, url: str, **options: Any) -> ObjectStorage:
    quick = {"max_retries": 3, "backoff": {"init_backoff": timedelta(milliseconds=5)}}
    server = s3.by_way_of(proxy_url)
    return ObjectStorage(url, part_nbytes=PART, retry_config=quick, **server.options, **options)


@pytest.mark.parametrize("fault", ["500", "503", "slow", "reset", "lost", "cut"])
def test_every_other_request_fails_and_nothing_is_lost(s3: S3Server, url: str, fault: Fault):
    # Not every second one: a put could be the second for ever.
    dice = random.Random(fault)
    proxy = FaultProxy(
        s3.endpoint, lambda *_: fault if dice.random() < 0.4 else None, slow_seconds=0.05
    )
    content = distinct_bytes(2 * PART + 7)
    with proxy.serving() as endpoint:
        storage = through(endpoint, s3, url)
        assert storage.put_if_absent("manifest.json", b"1")
        assert not storage.put_if_absent("manifest.json", b"2")
        assert storage.replace("manifest.json", b"2", expected=b"1")
        assert not storage.replace("manifest.json", b"3", expected=b"1")
        write_object(storage, "small", b"small")
        write_object(storage, "large", content)
        assert read_all(storage, "large") == content
        assert storage.read("large", PART, 10) == content[PART : PART + 10]
        assert [entry.key for entry in storage.list()] == ["large", "manifest.json", "small"]
        storage.delete("small")
        assert storage.get("manifest.json", max_nbytes=9) == b"2"
    assert any(asked.fault for asked in proxy.log)


def test_a_put_whose_answers_are_all_lost_is_known_by_its_name(s3: S3Server, url: str):
    direct = ObjectStorage(url, **s3.options)
    assert direct.put_if_absent("before", b"0")
    proxy = FaultProxy(s3.endpoint, lambda method, _: "lost" if method == "PUT" else None)
    with proxy.serving() as endpoint:
        storage = through(endpoint, s3, url)
        assert object_commit.put_if_absent(storage._requests, "manifest.json", b"mine")
        assert object_commit.replace(storage._requests, "manifest.json", b"new", b"mine")
        assert not object_commit.replace(storage._requests, "before", b"new", b"other")
    assert read_all(direct, "manifest.json") == b"new"


def test_a_put_whose_answer_was_lost_and_that_was_replaced_since_has_won(s3: S3Server, url: str):
    direct = ObjectStorage(url, **s3.options)
    assert direct.put_if_absent("manifest.json", b"old")
    events = iter(["lost", "replaced"])

    def choose(method: str, _target: str) -> Fault | None:
        if method == "PUT":
            return "lost" if next(events, "") == "lost" else None
        if method == "HEAD" and next(events, "") == "replaced":
            assert direct.replace("manifest.json", b"newer", expected=b"mine")
        return None

    with FaultProxy(s3.endpoint, choose).serving() as endpoint:
        storage = through(endpoint, s3, url)
        assert object_commit.replace(storage._requests, "manifest.json", b"mine", b"old")
    assert read_all(direct, "manifest.json") == b"newer"


def test_an_answer_lost_for_good_is_an_unknown_outcome(s3: S3Server, url: str):
    is_on = threading.Event()

    def choose(method: str, _target: str) -> Fault | None:
        if method == "PUT":
            is_on.set()
        return "lost" if is_on.is_set() else None

    with FaultProxy(s3.endpoint, choose).serving() as endpoint:
        storage = through(endpoint, s3, url, deadline=0.5)
        with pytest.raises(OutcomeUnknownError, match="whether it holds the new value is unknown"):
            object_commit.put_if_absent(storage._requests, "manifest.json", b"mine")


def test_a_failed_upload_in_parts_is_a_storage_error_and_leaves_nothing(s3: S3Server, url: str):
    def choose(method: str, target: str) -> Fault | None:
        return "reset" if method == "PUT" and "partNumber=2" in target else None

    with FaultProxy(s3.endpoint, choose).serving() as endpoint:
        storage = through(endpoint, s3, url, deadline=1.0)
        with pytest.raises(StorageError, match="writing it: ") as caught:
            write_object(storage, "large", bytes(3 * PART))
    assert f"{url}/large" in str(caught.value)
    assert ObjectStorage(url, **s3.options).list() == []


def test_an_upload_that_fails_is_begun_anew_from_the_same_memory(s3: S3Server, url: str):
    failures = iter(range(6))

    def choose(method: str, target: str) -> Fault | None:
        # More often than obstore itself tries again.
        is_part = method == "PUT" and "partNumber=3" in target
        return "reset" if is_part and next(failures, None) is not None else None

    content = distinct_bytes(5 * PART)
    with FaultProxy(s3.endpoint, choose).serving() as endpoint:
        storage = through(endpoint, s3, url)
        with storage.create("large") as sink:
            for at in range(0, len(content), MIB):
                sink.write_kept(at, [memoryview(content)[at : at + MIB]])
    direct = ObjectStorage(url, **s3.options)
    assert read_all(direct, "large") == content
    assert direct.unfinished() == []


def test_an_object_that_is_cut_off_is_corrupt_from_a_distance_too(storage: ObjectStorage):
    write_object(storage, "cut", b"0123456789")
    assert storage.read_start("cut", 4) == (b"0123", 10)
    assert storage.read_start("cut", 99) == (b"0123456789", 10)
    with pytest.raises(CorruptError, match="cut: wanted 3 bytes at offset 9, found 1"):
        storage.fetch("cut", 9, 3)


def test_a_forked_process_is_told_so_instead_of_waiting_for_ever():
    code = (
        "import os, sys\n"
        "from shardkeep.errors import UnsupportedError\n"
        "from shardkeep.storage.objects import ObjectStorage\n"
        "storage = ObjectStorage('s3://bucket/a', skip_signature=True)\n"
        "storage._requests.run('asking', 'a', lambda: None)\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        storage.list()\n"
        "    except UnsupportedError as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "was forked from one that had used an object store" in done.stdout, done.stderr
