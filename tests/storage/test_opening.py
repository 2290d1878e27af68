from pathlib import Path

import pytest

from shardkeep.errors import InvalidError, NotFoundError, UnsupportedError
from shardkeep.storage import LocalStorage, MemoryStorage, Storage, forget_memory, open_storage
from shardkeep.storage.objects import ObjectStorage
from shardkeep.testing.storage_suite import read_all, write_object


def opened(path: str | Path | Storage, *, create: bool = True) -> Storage:
    return open_storage(path, create=create, durable=False)


def test_a_path_is_a_local_folder_however_it_is_written(tmp_path: Path):
    folder = tmp_path / "run 1" / "ü"
    with opened(folder) as storage:
        write_object(storage, "a", b"1")

    for path in (str(folder), f"{folder}/", f"file://{folder}", f"FILE://localhost{folder}"):
        with opened(path, create=False) as storage:
            assert isinstance(storage, LocalStorage)
            assert storage.location == str(folder)
            assert read_all(storage, "a") == b"1"


def test_a_file_url_may_be_quoted(tmp_path: Path):
    with opened(f"file://{tmp_path}/100%25%20sure") as storage:
        assert storage.location == f"{tmp_path}/100% sure"


def test_a_memory_url_names_objects_of_this_process():
    with opened("memory://tests/opening") as storage:
        write_object(storage, "a", b"1")
        assert isinstance(storage, MemoryStorage)

    assert read_all(opened("memory://tests/opening/", create=False), "a") == b"1"
    forget_memory("tests/opening")
    with pytest.raises(NotFoundError, match="no memory://tests/opening in this process"):
        opened("memory://tests/opening", create=False)


def test_a_storage_is_handed_back(tmp_path: Path):
    with LocalStorage(tmp_path) as storage:
        assert opened(storage) is storage


def test_a_missing_folder_is_not_found_and_not_made(tmp_path: Path):
    with pytest.raises(NotFoundError, match=f"there is no folder {tmp_path}/none"):
        opened(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


def test_durable_is_passed_on(tmp_path: Path):
    for durable in (True, False):
        with open_storage(tmp_path, create=False, durable=durable) as storage:
            assert isinstance(storage, LocalStorage)
            assert storage.durable is durable


@pytest.mark.parametrize("url", ["s3://bucket/run", "gs://b", "az://c/d", "https://example.org/x"])
def test_a_url_of_an_object_store_is_opened_without_a_request(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "nobody")
    with opened(f"{url}/") as storage:
        assert isinstance(storage, ObjectStorage)
        assert storage.location == url


def test_what_is_read_over_https_is_not_written():
    storage = opened("https://example.org/x")
    for act in (lambda: storage.create("a"), lambda: storage.put_if_absent("a", b"1")):
        with pytest.raises(UnsupportedError, match=r"https://example.org/x can only be read"):
            act()


def test_a_scheme_that_nobody_knows_is_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"nobody://x/y cannot be opened by fsspec"):
        opened("nobody://x/y")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://", "names no bucket; write s3://bucket/path"),
        ("s3:///a", "names no bucket"),
        ("gs://b/../c", "has a part that is no name"),
        ("s3://b/a\nb", "has a part that is no name"),
    ],
)
def test_urls_that_name_nothing_are_refused(url: str, said: str):
    with pytest.raises(InvalidError, match=said):
        opened(url)


def test_a_file_url_with_a_host_is_refused():
    with pytest.raises(InvalidError, match="names a host; write file:///path"):
        opened("file://server/share")


def test_a_url_that_went_through_pathlib_is_refused():
    with pytest.raises(InvalidError, match=r"was a URL before pathlib took a slash"):
        opened(Path("s3://bucket/run"))


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_is_no_path_is_refused(path: str):
    with pytest.raises(InvalidError, match="is no path of a folder"):
        opened(path)


def test_what_is_neither_path_nor_storage_is_refused():
    with pytest.raises(InvalidError, match="42 is neither a path nor a storage"):
        opened(42)  # pyright: ignore[reportArgumentType]


def test_an_empty_memory_name_is_refused():
    with pytest.raises(InvalidError, match="needs a name"):
        opened("memory://")
