"""Who saves to an object store and loads from it: shardkeep, DCP by s3fs, and obstore alone."""

# torch lists its public names nowhere that a type checker looks.
# pyright: reportPrivateImportUsage=false

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

import shardkeep as sk
from benchmarks.contenders.raw import shares, views_of
from benchmarks.stored_states import State, locals_of, share_of
from shardkeep.transfer.share import Share
from torture.object_servers import BUCKET, S3Server

_PART = 16 * 2**20
_READ = 8 * 2**20


@dataclass(frozen=True)
class Shardkeep:
    server: S3Server
    name: str = "shardkeep"
    share: Share = "auto"
    saves: bool = True
    """Else it loads what another one has saved."""

    def save(self, state: State, path: str) -> None:
        sk.save(state, sk.ObjectStorage(self.server.url(path), **self.server.options))

    def load(self, state: State, path: str) -> None:
        storage = sk.ObjectStorage(self.server.url(path), **self.server.options)
        sk.load(storage, into=state, share=self.share)


@dataclass(frozen=True)
class DcpFsspec:
    server: S3Server
    name: str = "DCP, s3fs"

    @property
    def _options(self) -> dict[str, Any]:
        given = self.server.options
        return {
            "key": given["access_key_id"],
            "secret": given["secret_access_key"],
            "endpoint_url": self.server.endpoint,
        }

    def save(self, state: State, path: str) -> None:
        writer = FsspecWriter(self.server.url(path), thread_count=2, **self._options)
        dcp.save(state, storage_writer=writer)

    def load(self, state: State, path: str) -> None:
        dcp.load(state, storage_reader=FsspecReader(self.server.url(path), **self._options))


@dataclass(frozen=True)
class Plain:
    """obstore alone, in the way that is fastest here.

    Parts of 5 to 32 MiB, 2 or 8 at once, take the server the same time; so do unsigned ones.
    """

    server: S3Server
    name: str = "plain obstore"

    def _store(self) -> Any:
        from obstore.store import S3Store

        return S3Store(BUCKET, client_options={"allow_http": True}, **self.server.options)

    def save(self, state: State, path: str) -> None:
        from obstore import put

        store, own = self._store(), views_of(share_of(state))
        # Thousands of small ones are joined first.
        parts = shares(own if len(own) <= 1000 else [memoryview(b"".join(own))], 2)

        def upload(number: int) -> None:
            key, views = f"{path}/{dist.get_rank()}-{number}", parts[number]
            if sum(map(len, views)) <= _PART:
                # By one request, which is faster.
                put(store, key, b"".join(views), use_multipart=False)
                return
            pieces = (view[at : at + 2**20] for view in views for at in range(0, len(view), 2**20))
            put(store, key, pieces, chunk_size=_PART, max_concurrency=8)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(upload, range(2)))

    def load(self, state: State, path: str) -> None:
        """As many bytes as the state has, into its memory, from as many objects, whoever wrote."""
        from obstore import get_range, list_with_delimiter

        store = self._store()
        objects = list_with_delimiter(store, path)["objects"]
        own = views_of(locals_of(state))
        mine = objects[dist.get_rank() :: dist.get_world_size()]
        sizes = [(one["path"], one["size"]) for one in [*mine, *objects]]

        def fetch(one: _Range) -> None:
            data, at = memoryview(get_range(store, one.path, start=one.start, length=one.nbytes)), 0
            for view in one.memory:
                view[:] = data[at : at + len(view)]
                at += len(view)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(fetch, _ranges(sizes, own)))


class _Range(NamedTuple):
    """Bytes of an object, and the memory that they go to."""

    path: str
    start: int
    nbytes: int
    memory: list[memoryview]


def _ranges(sizes: Sequence[tuple[str, int]], own: Sequence[memoryview]) -> Iterator[_Range]:
    """What one after the other fills all memory, at most `_READ` at once."""
    missing, left = deque(own), sum(map(len, own))
    for path, size in sizes:
        for start in range(0, size, _READ):
            nbytes = min(_READ, size - start, left)
            if nbytes:
                left -= nbytes
                yield _Range(path, start, nbytes, list(_next_bytes(missing, nbytes)))


def _next_bytes(missing: deque[memoryview], nbytes: int) -> Iterator[memoryview]:
    while nbytes:
        view = missing.popleft()
        if len(view) > nbytes:
            missing.appendleft(view[nbytes:])
            view = view[:nbytes]
        nbytes -= len(view)
        yield view
