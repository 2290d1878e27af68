import fsspec
import pytest

from shardkeep.errors import CorruptError, NotFoundError, UnsupportedError
from shardkeep.storage import Storage
from shardkeep.storage.fsspec_files import FsspecStorage

URL = "memory://tests/fsspec"


@pytest.fixture
def storage() -> FsspecStorage:
    files = fsspec.filesystem("memory")
    files.pipe(
        {"/tests/fsspec/a": b"0123456789", "/tests/fsspec/b": b"", "/tests/fsspec/c/d": b"x"}
    )
    return FsspecStorage(URL)


def test_what_fsspec_reaches_is_read(storage: FsspecStorage):
    assert isinstance(storage, Storage)
    assert storage.list() == [("a", 10), ("b", 0)]
    assert storage.size("a") == 10
    assert storage.get("a", max_nbytes=10) == b"0123456789"
    assert storage.read("a", 3, 4) == bytes(storage.fetch("a", 3, 4)) == b"3456"
    assert storage.read_start("a", 99) == (b"0123456789", 10)
    buffers = [bytearray(2), bytearray(3)]
    storage.read_into("a", 5, buffers)
    assert buffers == [b"56", b"789"]
    assert storage.read("a", 99, 0) == b""


def test_what_is_not_there_or_too_short_is_named(storage: FsspecStorage):
    with pytest.raises(NotFoundError, match=f"'z' is not in {URL}"):
        storage.get("z", max_nbytes=9)
    with pytest.raises(CorruptError, match="a: wanted 5 bytes at offset 8, found 2"):
        storage.read("a", 8, 5)
    with pytest.raises(CorruptError, match="a has 10 bytes; expected at most 9"):
        storage.get("a", max_nbytes=9)


def test_nothing_is_written_through_fsspec(storage: FsspecStorage):
    acts = [
        lambda: storage.create("n"),
        lambda: storage.put_if_absent("n", b"1"),
        lambda: storage.replace("a", b"1", expected=b"0123456789"),
        lambda: storage.delete("a"),
    ]
    for act in acts:
        with pytest.raises(UnsupportedError, match="can only be read: fsspec cannot promise"):
            act()
    assert storage.list() == [("a", 10), ("b", 0)]
