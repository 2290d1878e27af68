"""Does a storage keep what `storage.protocols` promises? A backend's test inherits `StorageSuite`.

class TestMyStorage(StorageSuite):
    @pytest.fixture
    def storage(self) -> Storage: ...
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import pytest

from shardkeep.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from shardkeep.storage import CanHold, CanMap, Entry, Storage

T = TypeVar("T")

THREADS = 16

BAD_NAMES = ["", ".", "..", "a/b", "/etc/passwd", "../secret", "a\\b", "a\0b", "a\udcff"]
TOO_LONG_NAMES = ["x" * 256, "ü" * 128]

VERBS: dict[str, Callable[[Storage, str], object]] = {
    "read_into": lambda storage, key: storage.read_into(key, 0, [bytearray(1)]),
    "read": lambda storage, key: storage.read(key, 0, 1),
    "get": lambda storage, key: storage.get(key, max_nbytes=1),
    "size": lambda storage, key: storage.size(key),
    "create": lambda storage, key: storage.create(key),
    "put_if_absent": lambda storage, key: storage.put_if_absent(key, b"x"),
    "replace": lambda storage, key: storage.replace(key, b"x", expected=b""),
    "delete": lambda storage, key: storage.delete(key, missing_ok=True),
}
MAKING_VERBS = ("create", "put_if_absent", "replace")
FINDING_VERBS = ("read_into", "read", "get", "size")


def distinct_bytes(nbytes: int) -> bytes:
    """Bytes in which a piece from the wrong place shows: no two of its words are the same."""
    words = array("I", range(1, nbytes // 4 + 2))
    return words.tobytes()[:nbytes]


def write_object(storage: Storage, key: str, content: bytes) -> None:
    """Make an object by one write."""
    with storage.create(key) as sink:
        sink.write(0, [content])


def read_all(storage: Storage, key: str) -> bytes:
    """The whole object."""
    return storage.get(key, max_nbytes=2**31)


def at_once(act: Callable[[int], T], *, threads: int = THREADS) -> list[T]:
    """The results of `act(i)`, run by threads that start at the same moment."""
    start = threading.Barrier(threads)

    def wait_and_act(index: int) -> T:
        start.wait(30)
        return act(index)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(wait_and_act, range(threads)))


class StorageSuite:
    """The tests that every storage passes."""

    @pytest.fixture
    def storage(self) -> Storage:
        """An empty storage."""
        raise NotImplementedError("give the backend's test class a fixture `storage`")

    def second(self, storage: Storage) -> Storage:
        """Another handle on the same objects, as another process would have one."""
        return storage

    # Reading and writing

    def test_an_object_comes_back_as_it_was_written(self, storage: Storage) -> None:
        content = distinct_bytes(100_003)
        write_object(storage, "a.safetensors", content)

        assert storage.size("a.safetensors") == len(content)
        assert read_all(storage, "a.safetensors") == content
        assert storage.read("a.safetensors", 0, len(content)) == content
        assert storage.read("a.safetensors", 99_000, 1_003) == content[99_000:]

    def test_buffers_are_filled_one_after_the_other(self, storage: Storage) -> None:
        content = distinct_bytes(1000)
        write_object(storage, "a", content)
        buffers = [bytearray(7), bytearray(0), array("d", range(8)), bytearray(3)]

        storage.read_into("a", 11, buffers)

        assert b"".join(buffers) == content[11 : 11 + 74]

    def test_buffers_are_written_one_after_the_other(self, storage: Storage) -> None:
        numbers = array("d", [1.5, -2.5])
        with storage.create("a") as sink:
            sink.write(0, [b"ab", b"", bytearray(b"cde"), memoryview(b"xfx")[1:2], numbers])

        assert read_all(storage, "a") == b"abcdef" + numbers.tobytes()

    def test_pieces_may_come_in_any_order(self, storage: Storage) -> None:
        content = distinct_bytes(90)
        with storage.create("a") as sink:
            for start in (60, 0, 30):
                sink.write(start, [content[start : start + 30]])

        assert read_all(storage, "a") == content

    def test_what_was_never_written_reads_as_zeros(self, storage: Storage) -> None:
        with storage.create("a") as sink:
            sink.write(5, [b"end"])

        assert read_all(storage, "a") == b"\0\0\0\0\0end"

    def test_threads_may_write_to_one_sink(self, storage: Storage) -> None:
        content = distinct_bytes(THREADS * 4096)
        with storage.create("a") as sink:
            at_once(lambda i: sink.write(i * 4096, [content[i * 4096 : (i + 1) * 4096]]))

        assert read_all(storage, "a") == content

    def test_an_object_may_be_empty(self, storage: Storage) -> None:
        with storage.create("a"):
            pass
        with storage.create("b") as sink:
            sink.write(3, [])
            sink.write(3, [b"", bytearray(0)])
        assert storage.put_if_absent("c", b"")

        assert storage.list() == [("a", 0), ("b", 0), ("c", 0)]
        assert read_all(storage, "b") == b""
        storage.read_into("a", 0, [bytearray(0)])
        storage.read_into("a", 0, [])

    def test_thousands_of_small_buffers_pass(self, storage: Storage) -> None:
        content = distinct_bytes(3000 * 5)
        pieces = [content[i : i + 5] for i in range(0, len(content), 5)]
        with storage.create("a") as sink:
            sink.write(0, pieces)
        buffers = [bytearray(5) for _ in pieces]

        storage.read_into("a", 0, buffers)

        assert read_all(storage, "a") == content
        assert b"".join(buffers) == content

    def test_threads_may_read_at_once(self, storage: Storage) -> None:
        contents = {f"{i}": distinct_bytes(5000)[i:] for i in range(THREADS)}
        for key, content in contents.items():
            write_object(storage, key, content)

        def read(index: int) -> list[bool]:
            buffer = bytearray(100)
            same: list[bool] = []
            for turn in range(50):
                key, offset = str((index + turn) % THREADS), 13 * turn
                storage.read_into(key, offset, [buffer])
                same.append(bytes(buffer) == contents[key][offset : offset + 100])
            return same

        assert all(same for found in at_once(read) for same in found)

    # Holding

    def test_what_is_held_is_seen_so_until_it_is_let_go_and_then_gone(
        self, storage: Storage
    ) -> None:
        if not isinstance(storage, CanHold):
            pytest.skip("this storage cannot hold objects")
        other = self.second(storage)
        assert isinstance(other, CanHold)
        with storage.hold("a.lock"), storage.hold("b.lock"):
            assert other.is_held("a.lock")
            assert not other.delete_unless_held("a.lock")
            assert storage.is_held("a.lock")
            assert [entry.key for entry in other.list()] == ["a.lock", "b.lock"]
            held_twice = pytest.raises(ConflictError, match=r"a\.lock is (already )?there")
            with held_twice, other.hold("a.lock"):
                raise AssertionError("it is held twice")
        assert storage.list() == []
        assert not other.is_held("a.lock")
        assert other.delete_unless_held("a.lock")

    def test_what_nobody_holds_may_be_deleted(self, storage: Storage) -> None:
        if not isinstance(storage, CanHold):
            pytest.skip("this storage cannot hold objects")
        write_object(storage, "a.lock", b"")

        assert not storage.is_held("a.lock")
        assert storage.delete_unless_held("a.lock")
        assert storage.list() == []

    # Mapping

    def test_a_mapping_shows_the_content_and_outlives_the_object(self, storage: Storage) -> None:
        if not isinstance(storage, CanMap):
            pytest.skip("this storage cannot map objects")
        content = distinct_bytes(10_000)
        write_object(storage, "a", content)
        write_object(storage, "empty", b"")

        view, empty = storage.map("a"), storage.map("empty")
        part = view[100:200]
        storage.delete("a")
        storage.close()

        assert (view.readonly, view.nbytes, empty.nbytes) == (True, len(content), 0)
        assert bytes(view) == content
        del view
        assert bytes(part) == content[100:200]

    @pytest.mark.parametrize(("key", "error"), [("a", NotFoundError), ("../a", InvalidError)])
    def test_what_is_not_there_cannot_be_mapped(
        self, storage: Storage, key: str, error: type[Exception]
    ) -> None:
        if not isinstance(storage, CanMap):
            pytest.skip("this storage cannot map objects")
        with pytest.raises(error, match=r"'a' is not in|cannot be a key"):
            storage.map(key)

    # Bad reads and writes

    @pytest.mark.parametrize(("offset", "nbytes", "found"), [(0, 11, 10), (8, 3, 2), (50, 1, 0)])
    def test_an_object_that_ends_early_is_corrupt(
        self, storage: Storage, offset: int, nbytes: int, found: int
    ) -> None:
        write_object(storage, "cut", b"0123456789")

        message = rf"cut: wanted {nbytes} bytes at offset {offset}, found {found}"
        with pytest.raises(CorruptError, match=message):
            storage.read("cut", offset, nbytes)
        with pytest.raises(CorruptError, match=message):
            storage.read_into("cut", offset, [bytearray(1), bytearray(nbytes - 1)])

    def test_no_memory_is_taken_for_bytes_that_are_not_there(self, storage: Storage) -> None:
        write_object(storage, "a", b"0123456789")

        with pytest.raises(CorruptError, match=f"wanted {2**62} bytes at offset 1, found 9"):
            storage.read("a", 1, 2**62)

    def test_a_value_larger_than_allowed_is_corrupt(self, storage: Storage) -> None:
        write_object(storage, "a", b"0123456789")

        assert storage.get("a", max_nbytes=10) == b"0123456789"
        with pytest.raises(CorruptError, match="a has 10 bytes; expected at most 9"):
            storage.get("a", max_nbytes=9)

    def test_no_bytes_can_be_read_anywhere(self, storage: Storage) -> None:
        write_object(storage, "a", b"0123456789")

        assert storage.read("a", 10, 0) == storage.read("a", 999, 0) == b""
        storage.read_into("a", 999, [bytearray(0)])

    @pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (2**63, 1), (2**63 - 1, 1)])
    def test_an_offset_that_no_file_has_is_refused(
        self, storage: Storage, offset: int, nbytes: int
    ) -> None:
        write_object(storage, "a", b"0123456789")

        with pytest.raises(InvalidError, match=f"at offset {offset}"):
            storage.read("a", offset, nbytes)
        with pytest.raises(InvalidError, match=f"at offset {offset}"):
            storage.read_into("a", offset, [bytearray(nbytes)])
        with (
            pytest.raises(InvalidError, match=f"at offset {offset}"),
            storage.create("b") as sink,
        ):
            sink.write(offset, [bytes(nbytes)])
        with pytest.raises(InvalidError, match="-3 bytes at offset 0"):
            storage.read("a", 0, -3)

    def test_memory_with_gaps_or_read_only_is_refused(self, storage: Storage) -> None:
        write_object(storage, "a", b"0123456789")
        gaps, fixed = memoryview(bytearray(10))[::2], memoryview(bytes(3))

        with pytest.raises(InvalidError, match="read-only"):
            storage.read_into("a", 0, [fixed])
        with pytest.raises(InvalidError, match="contiguous"):
            storage.read_into("a", 0, [gaps])
        with pytest.raises(InvalidError, match="contiguous"), storage.create("b") as sink:
            sink.write(0, [gaps])

    @pytest.mark.parametrize("verb", FINDING_VERBS)
    def test_what_is_not_there_is_not_found(self, storage: Storage, verb: str) -> None:
        with pytest.raises(NotFoundError, match=r"'absent\.json' is not in"):
            VERBS[verb](storage, "absent.json")

    # Sinks

    def test_a_taken_key_is_a_conflict_and_keeps_its_value(self, storage: Storage) -> None:
        write_object(storage, "a", b"first")
        assert storage.put_if_absent("b", b"first")

        for key in ("a", "b"):
            with pytest.raises(ConflictError, match=f"{key} is already there"):
                write_object(storage, key, b"second")

        assert read_all(storage, "a") == read_all(storage, "b") == b"first"

    def test_one_of_many_creators_gets_the_key(self, storage: Storage) -> None:
        def create(index: int) -> bool:
            try:
                write_object(storage, "a", b"%d" % index)
            except ConflictError:
                return False
            return True

        won = at_once(create)

        assert sum(won) == 1
        assert read_all(storage, "a") == b"%d" % won.index(True)

    def test_an_aborted_object_is_not_there(self, storage: Storage) -> None:
        sink = storage.create("a")
        sink.write(0, [b"half"])
        sink.abort()
        sink.abort()

        assert storage.list() == []
        write_object(storage, "a", b"whole")
        assert read_all(storage, "a") == b"whole"

    def test_an_error_in_the_block_aborts(self, storage: Storage) -> None:
        def write_half() -> None:
            with storage.create("a") as sink:
                sink.write(0, [b"half"])
                raise ZeroDivisionError("in the middle")

        with pytest.raises(ZeroDivisionError, match="in the middle"):
            write_half()
        assert storage.list() == []

    def test_a_finished_sink_takes_and_loses_nothing(self, storage: Storage) -> None:
        with storage.create("a") as sink:
            sink.write(0, [b"whole"])
            sink.finish()
            sink.finish()

        sink.abort()
        with pytest.raises(InvalidError, match="'a' is closed"):
            sink.write(0, [b"x"])
        assert read_all(storage, "a") == b"whole"

    def test_an_aborted_sink_cannot_be_finished(self, storage: Storage) -> None:
        sink = storage.create("a")
        sink.abort()

        with pytest.raises(InvalidError, match="'a' is closed"):
            sink.write(0, [b"x"])
        with pytest.raises(InvalidError, match="'a' is closed"):
            sink.finish()
        assert storage.list() == []

    # Commits

    def test_a_value_is_put_once(self, storage: Storage) -> None:
        data = bytearray(b"first")
        assert storage.put_if_absent("manifest.json", data)
        data[:] = b"other"
        assert not storage.put_if_absent("manifest.json", memoryview(data))

        assert read_all(self.second(storage), "manifest.json") == b"first"
        assert storage.list() == [("manifest.json", 5)]

    def test_a_value_is_replaced_only_if_it_is_the_expected_one(self, storage: Storage) -> None:
        storage.put_if_absent("a", b"old")

        assert not storage.replace("a", b"new", expected=b"odd")
        assert not storage.replace("a", b"new", expected=b"older")
        assert not storage.replace("a", b"new", expected=b"")
        assert read_all(storage, "a") == b"old"
        assert storage.replace("a", b"the new one", expected=b"old")
        assert not storage.replace("a", b"new", expected=b"old")
        assert read_all(self.second(storage), "a") == b"the new one"
        assert storage.list() == [("a", 11)]

    def test_what_is_absent_is_not_replaced_yet_what_is_empty_is(self, storage: Storage) -> None:
        assert not storage.replace("a", b"new", expected=b"")
        assert storage.list() == []

        storage.put_if_absent("a", b"")
        assert storage.replace("a", b"x", expected=b"")
        assert storage.replace("a", b"", expected=b"x")
        assert storage.size("a") == 0

    def test_one_of_many_puts_wins(self, storage: Storage) -> None:
        handles = [storage, self.second(storage)]
        for turn in range(5):
            won = at_once(lambda i, t=turn: handles[i % 2].put_if_absent(f"{t}", b"%d" % i))

            assert sum(won) == 1
            assert read_all(storage, f"{turn}") == b"%d" % won.index(True)
        assert len(storage.list()) == 5

    def test_one_of_many_replaces_wins(self, storage: Storage) -> None:
        handles, value = [storage, self.second(storage)], b"start"
        storage.put_if_absent("a", value)
        for turn in range(5):
            new = [b"%d-%d" % (turn, i) for i in range(THREADS)]
            won = at_once(lambda i, v=value, n=new: handles[i % 2].replace("a", n[i], expected=v))

            assert sum(won) == 1
            value = new[won.index(True)]
            assert read_all(storage, "a") == value

    def test_no_replacement_is_lost(self, storage: Storage) -> None:
        storage.put_if_absent("a", b"")

        def append(index: int) -> int:
            handle, turns = self.second(storage), 0
            for _ in range(20):
                seen = handle.get("a", max_nbytes=10**6)
                turns += handle.replace("a", seen + b"%d," % index, expected=seen)
            return turns

        counts = at_once(append, threads=4)

        assert read_all(storage, "a").count(b",") == sum(counts) > 0

    def test_a_reader_sees_the_old_value_or_the_new_one(self, storage: Storage) -> None:
        values = [bytes([65 + i]) * (10 + 1000 * i) for i in range(20)]
        storage.put_if_absent("a", values[0])
        handle, seen, done = self.second(storage), set[bytes](), threading.Event()

        def watch() -> None:
            while not done.is_set():
                seen.add(handle.get("a", max_nbytes=10**6))

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            for old, new in pairwise(values):
                assert storage.replace("a", new, expected=old)
            done.set()
            watching.result(30)

        assert seen <= set(values)

    def test_a_reader_follows_replacements_and_new_objects(self, storage: Storage) -> None:
        reader, buffer = self.second(storage), bytearray(3)
        storage.put_if_absent("a", b"old")
        reader.read_into("a", 0, [buffer])
        storage.replace("a", b"new", expected=b"old")
        reader.read_into("a", 0, [buffer])
        assert buffer == b"new"

        storage.delete("a")
        with pytest.raises(NotFoundError, match="'a' is not in"):
            reader.read_into("a", 0, [buffer])
        write_object(storage, "a", b"3rd")
        reader.read_into("a", 0, [buffer])
        assert buffer == b"3rd"

    # Listing, deleting, keys

    def test_objects_are_listed_by_key_with_their_size(self, storage: Storage) -> None:
        for key, nbytes in (("b", 2), ("manifest.json", 300), ("a", 0), ("B", 1), ("größe", 4)):
            write_object(storage, key, bytes(nbytes))
        storage.sync()

        assert storage.list() == [
            ("B", 1),
            ("a", 0),
            ("b", 2),
            ("größe", 4),
            ("manifest.json", 300),
        ]
        assert not any(entry.is_temporary for entry in storage.list())
        assert all(type(entry) is Entry for entry in storage.list())

    def test_a_deleted_object_is_gone(self, storage: Storage) -> None:
        write_object(storage, "a", b"1")
        write_object(storage, "b", b"2")

        storage.delete("a")

        assert storage.list() == [("b", 1)]
        storage.delete("a", missing_ok=True)
        with pytest.raises(NotFoundError, match="'a' is not in"):
            storage.delete("a")
        write_object(storage, "a", b"again")
        assert read_all(storage, "a") == b"again"

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("key", BAD_NAMES + TOO_LONG_NAMES, ids=ascii)
    def test_a_key_that_could_leave_the_folder_is_refused(
        self, storage: Storage, verb: str, key: str
    ) -> None:
        with pytest.raises(InvalidError, match="cannot be a key: it "):
            VERBS[verb](storage, key)
        assert storage.list() == []

    @pytest.mark.parametrize("verb", MAKING_VERBS)
    def test_temporary_names_are_the_storages_own(self, storage: Storage, verb: str) -> None:
        with pytest.raises(InvalidError, match=r"start with '\.tmp-' are temporary"):
            VERBS[verb](storage, ".tmp-mine")

    @pytest.mark.parametrize("key", ["x" * 255, "a b", ".hidden", "...", "a:b", "ü" * 127, "-rf"])
    def test_any_other_name_is_a_key(self, storage: Storage, key: str) -> None:
        write_object(storage, key, b"value")

        assert read_all(storage, key) == b"value"
        assert storage.list() == [(key, 5)]

    def test_a_storage_says_where_it_is(self, storage: Storage) -> None:
        assert isinstance(storage, Storage)
        with storage as same:
            assert same is storage
            with pytest.raises(NotFoundError, match="'a' is not in") as caught:
                storage.size("a")
        assert storage.location in str(caught.value)
