"""Objects in S3, GCS, Azure, or, to be read only, on a web server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from shardkeep.errors import InvalidError, StorageError, UnsupportedError
from shardkeep.storage import object_commit
from shardkeep.storage.buffers import check_range, total_nbytes, writable_views
from shardkeep.storage.closing import ClosedAtEnd
from shardkeep.storage.failures import too_large, too_short
from shardkeep.storage.keys import check_key, check_new_key, is_key
from shardkeep.storage.object_leases import Leases
from shardkeep.storage.object_requests import Requests
from shardkeep.storage.object_sink import ObjectSink
from shardkeep.storage.protocols import Entries, Entry, ReadCosts, Upload
from shardkeep.storage.s3_uploads import S3Uploads
from shardkeep.storage.urls import (
    OBJECT_SCHEMES,
    aws_access,
    connect,
    endpoint_of,
    parse_address,
    split_url,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

# The smallest part that S3 allows.
_MIN_PART_NBYTES = 5 * 2**20


class ObjectStorage(ClosedAtEnd):
    """The objects below a URL: `s3://bucket/path`, `gs://`, `az://`, `https://` (to be read).

    `options` are obstore's (`region`, `endpoint`, `access_key_id`, `client_options`, ...); what is
    not given comes from the environment. An upload has `parts_in_flight` parts of `part_nbytes` on
    their way at once. A request is repeated for at most `deadline` seconds. `conditional=False`
    takes a store that cannot put conditionally: then never let two jobs save to one path. What a
    save holds counts as left behind when it was not renewed for `lease_seconds`.
    """

    def __init__(
        self,
        url: str,
        *,
        part_nbytes: int = 16 * 2**20,
        parts_in_flight: int = 8,
        deadline: float = 300.0,
        conditional: bool = True,
        lease_seconds: float = 180.0,
        **options: Any,
    ) -> None:
        found = split_url(url)
        if found is None or found[0] not in OBJECT_SCHEMES:
            raise InvalidError(f"{url!r} is no URL of an object store, such as s3://bucket/path")
        if part_nbytes < _MIN_PART_NBYTES:
            raise InvalidError(f"part_nbytes is at least {_MIN_PART_NBYTES}, got {part_nbytes}")
        address = parse_address(url)
        store = connect(address, options, deadline=deadline)
        bucket = f"{address.root} {endpoint_of(options)}"
        self._requests = Requests(store, address, bucket=bucket, deadline=deadline)
        self._access = aws_access(address, options)
        self._part_nbytes = part_nbytes
        self._parts_in_flight = parts_in_flight
        self._conditional = conditional
        self._lease_seconds = lease_seconds
        self._leases = Leases(self._requests, seconds=lease_seconds)

    def below(self, name: str) -> ObjectStorage:
        """The storage of what is below a name, by the same client."""
        check_key(name)
        made = object.__new__(ObjectStorage)
        made.__dict__.update(self.__dict__)
        made._requests = self._requests.below(name)
        made._leases = Leases(made._requests, seconds=self._lease_seconds)
        return made

    @property
    def location(self) -> str:
        return self._requests.location

    def costs(self) -> ReadCosts:
        """What a read costs, as far as it was measured."""
        return self._requests.costs.now()

    # Reading

    def read_into(self, key: str, offset: int, buffers: Sequence[WriteableBuffer]) -> None:
        check_key(key)
        views = writable_views(buffers)
        nbytes = total_nbytes(views)
        check_range(offset, nbytes)
        data, at = self._range(key, offset, nbytes), 0
        for view in views:
            view[:] = data[at : at + len(view)]
            at += len(view)

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        return bytes(self.fetch(key, offset, nbytes))

    def fetch(self, key: str, offset: int, nbytes: int) -> memoryview:
        """The same bytes in memory that they came in, without a copy."""
        check_key(key)
        check_range(offset, nbytes)
        return self._range(key, offset, nbytes)

    def _range(self, key: str, offset: int, nbytes: int) -> memoryview:
        if not nbytes:
            return memoryview(b"")
        try:
            found = self._requests.range(key, offset, nbytes)
        except StorageError:
            # A range that starts behind the end is an error of the request.
            self._require_range(key, offset, nbytes, self.size(key))
            raise
        self._require_range(key, offset, nbytes, offset + found.nbytes)
        return found

    def _require_range(self, key: str, offset: int, nbytes: int, size: int) -> None:
        if offset + nbytes > size:
            raise too_short(self._requests.place(key), offset, nbytes, max(0, size - offset))

    def read_start(self, key: str, nbytes: int) -> tuple[bytes, int]:
        """The first bytes, at most `nbytes`, and the object's size, by one request."""
        check_key(key)
        check_range(0, nbytes)
        try:
            return self._requests.start(key, nbytes)
        except StorageError:
            # Of an object without bytes no range can be asked for.
            if self.size(key):
                raise
            return b"", 0

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        check_key(key)

        def check(nbytes: int) -> None:
            if nbytes > max_nbytes:
                raise too_large(self._requests.place(key), nbytes, max_nbytes)

        return self._requests.whole(key, check)[0]

    def size(self, key: str) -> int:
        check_key(key)
        return self._requests.head(key)["size"]

    def list(self) -> Entries:
        found = [
            Entry(one["path"].rpartition("/")[2], one["size"]) for one in self._requests.list()[0]
        ]
        return sorted(entry for entry in found if is_key(entry.key))

    def list_below(self) -> Sequence[str]:
        """The names below which there are objects."""
        return sorted(name.rstrip("/").rpartition("/")[2] for name in self._requests.list()[1])

    def changed_at(self) -> float:
        """When an object right below last changed, in seconds since 1970; 0 if there is none."""
        times = [one["last_modified"].timestamp() for one in self._requests.list()[0]]
        return max(times, default=0.0)

    # Writing

    def create(self, key: str) -> ObjectSink:
        self._require_writable()
        check_new_key(key)
        return ObjectSink(
            self._requests,
            key,
            part_nbytes=self._part_nbytes,
            parts_in_flight=self._parts_in_flight,
        )

    def put_if_absent(self, key: str, data: ReadableBuffer) -> bool:
        self._prepare_commit(key)
        value = bytes(data)
        if not self._conditional:
            return self._put_unconditionally(key, value, self._requests.version(key) is None)
        return object_commit.put_if_absent(self._requests, key, value) is not None

    def replace(self, key: str, data: ReadableBuffer, *, expected: bytes) -> bool:
        self._prepare_commit(key)
        value = bytes(data)
        if not self._conditional:
            is_there = self._requests.version(key) is not None
            is_expected = is_there and self.get(key, max_nbytes=2**40) == expected
            return self._put_unconditionally(key, value, is_expected)
        return object_commit.replace(self._requests, key, value, expected)

    def _put_unconditionally(self, key: str, value: bytes, holds: bool) -> bool:
        if holds:
            self._requests.put(key, value, attempt="", mode="overwrite", once=False)
        return holds

    def _prepare_commit(self, key: str) -> None:
        self._require_writable()
        check_new_key(key)
        if self._conditional:
            object_commit.require_conditions(self._requests)
        self._leases.require_fresh()

    def sync(self) -> None:
        """Nothing to do: what an object store has confirmed is durable."""

    def delete(self, key: str, *, missing_ok: bool = False) -> None:
        self._require_writable()
        check_key(key)
        if not missing_ok:
            self._requests.head(key)
        self._requests.delete(key)

    def hold(self, key: str) -> AbstractContextManager[None]:
        self._require_writable()
        check_new_key(key)
        if self._conditional:
            # A commit will follow: then it need not wait for the answers.
            object_commit.ask_for_conditions(self._requests)
        return self._leases.hold(key)

    def is_held(self, key: str) -> bool:
        check_key(key)
        return self._leases.is_held(key)

    def delete_unless_held(self, key: str) -> bool:
        self._require_writable()
        check_key(key)
        return self._leases.delete_unless_held(key)

    def _require_writable(self) -> None:
        if self._requests.address.is_read_only:
            raise UnsupportedError(
                f"{self.location} can only be read: nothing is written over http; save to an "
                "object store, such as s3://bucket/path"
            )

    def unfinished(self) -> Sequence[Upload]:
        """Uploads in parts that were begun and never finished.

        Only S3 lists them, and only keys that were given as such can ask.
        """
        if self._access is None:
            return []
        return S3Uploads(self._requests.address, self._access).list()

    def abort_unfinished(self, upload: Upload) -> None:
        """Free the parts of an upload."""
        if self._access is not None:
            S3Uploads(self._requests.address, self._access).abort(upload)

    def close(self) -> None:
        """Nothing to do: connections end by themselves."""
