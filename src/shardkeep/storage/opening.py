"""Which storage does a path or URL mean?"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from shardkeep.errors import InvalidError
from shardkeep.storage.local import LocalStorage
from shardkeep.storage.memory import MemoryStorage
from shardkeep.storage.protocols import Storage
from shardkeep.storage.urls import OBJECT_SCHEMES, split_url

# `Path("s3://bucket")` is s3:/bucket, a folder named "s3:".
URL_THROUGH_PATHLIB = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")

_SUPPORTED = (
    "a local path, file:///path, memory://name, object stores (s3://, gs://, az://, https:// to be "
    "read) and what fsspec knows"
)


def open_storage(
    path: str | os.PathLike[str] | Storage,
    *,
    create: bool,
    durable: bool,
    recycled_from: str | None = None,
) -> Storage:
    """The storage at a path or URL; a storage itself is handed back: it stays its owner's to close.

    With `create` the folder is made if it is not there; else that is a NotFoundError. Spare files
    of the run at `recycled_from` are written again, if `path` is one.
    """
    if isinstance(path, os.PathLike):
        path = _path_of(path)
    elif isinstance(path, str):
        found = split_url(path)
        if found is not None:
            return _open_url(*found, path, create=create, durable=durable)
    elif isinstance(path, Storage):  # pyright: ignore[reportUnnecessaryIsInstance]
        return path
    else:
        raise InvalidError(f"{path!r} is neither a path nor a storage; expected {_SUPPORTED}")
    return LocalStorage(path, create=create, durable=durable, recycled_from=recycled_from)


def _path_of(path: os.PathLike[str]) -> str:
    text = os.fspath(path)
    if URL_THROUGH_PATHLIB.match(text):
        raise InvalidError(f"{path!r} was a URL before pathlib took a slash from it: pass a string")
    return text


def _open_url(scheme: str, rest: str, url: str, *, create: bool, durable: bool) -> Storage:
    match scheme:
        case "file":
            return LocalStorage(path_in_url(rest, url), create=create, durable=durable)
        case "memory":
            return MemoryStorage(rest.rstrip("/"), create=create)
        case _ if scheme in OBJECT_SCHEMES:
            from shardkeep.storage.objects import ObjectStorage

            return ObjectStorage(url)
        case _:
            from shardkeep.storage.fsspec_files import FsspecStorage

            return FsspecStorage(url)


def path_in_url(rest: str, url: str) -> str:
    """The path that a file URL means; InvalidError if it names a host."""
    path = rest.removeprefix("localhost")
    if not path.startswith("/"):
        raise InvalidError(f"{url!r} names a host; write file:///path, with an absolute path")
    return unquote(path)
