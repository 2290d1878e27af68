import uuid
from collections.abc import Iterator

import pytest

from shardkeep.errors import InvalidError, NotFoundError
from shardkeep.storage import MemoryStorage, Storage, forget_memory
from shardkeep.testing.storage_suite import StorageSuite, read_all, write_object


@pytest.fixture
def name() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    forget_memory(name)


class TestMemoryStorage(StorageSuite):
    @pytest.fixture
    def storage(self, name: str) -> Storage:
        return MemoryStorage(name)

    def second(self, storage: Storage) -> Storage:
        return MemoryStorage(storage.location.removeprefix("memory://"), create=False)


def test_a_name_stands_for_the_same_objects_everywhere(name: str):
    write_object(MemoryStorage(name), "a", b"1")

    assert read_all(MemoryStorage(name, create=False), "a") == b"1"
    assert MemoryStorage(name + "-other").list() == []


def test_a_name_that_nobody_made_is_not_found(name: str):
    with pytest.raises(NotFoundError, match=f"there is no memory://{name} in this process"):
        MemoryStorage(name, create=False)


def test_a_forgotten_name_starts_empty_while_old_handles_keep_theirs(name: str):
    old = MemoryStorage(name)
    write_object(old, "a", b"1")

    forget_memory(name)

    assert MemoryStorage(name).list() == []
    assert read_all(old, "a") == b"1"


def test_a_name_is_needed():
    with pytest.raises(InvalidError, match="needs a name"):
        MemoryStorage("")


def test_an_unfinished_object_is_invisible_yet_takes_its_key(name: str):
    storage = MemoryStorage(name)
    with storage.create("a") as sink:
        sink.write(0, [b"1"])

        assert storage.list() == []
        assert not storage.put_if_absent("a", b"2")
    assert read_all(storage, "a") == b"1"
