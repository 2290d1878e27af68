"""How is a request to an object store repeated until it is answered, and what does a failure mean?

obstore sends again what may be sent again, with pauses that grow and vary. What it gives up or
never repeats, such as an answer that breaks off, is repeated here until the deadline. Only requests
come here that may be carried out twice.
"""

from __future__ import annotations

import errno
import random
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from shardkeep.errors import InvalidError, NotFoundError, StorageError, UnsupportedError
from shardkeep.storage.object_costs import MeasuredCosts
from shardkeep.storage.urls import Address, first_line, require_not_forked

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_T = TypeVar("_T")
Version: TypeAlias = dict[str, str]
# Answers that say the request itself is wrong; these others of the 400s pass.
_STATUS = re.compile(r"\b(4\d\d)\b [A-Z]")
_PASSING_STATUS = frozenset({"408", "409", "425", "429"})
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


class Refused(Exception):  # noqa: N818  an answer, not a failure
    """The store's answer to a conditional request whose condition does not hold."""


class Requests:
    """Requests for the objects below one prefix."""

    def __init__(
        self, store: ObjectStore, address: Address, *, bucket: str, deadline: float
    ) -> None:
        self.store = store
        self.address = address
        self.bucket = bucket
        """The bucket and the server that it is on."""
        self.deadline = deadline
        self.costs = MeasuredCosts()

    def below(self, name: str) -> Requests:
        """Requests for what is below a name, by the same client."""
        made = Requests(
            self.store, self.address.below(name), bucket=self.bucket, deadline=self.deadline
        )
        made.costs = self.costs
        return made

    @property
    def location(self) -> str:
        return self.address.url

    def path(self, key: str) -> str:
        """The object's whole name within the bucket."""
        if not key.isprintable():
            raise InvalidError(f"{key!r} cannot be a key: it has a control character")
        return f"{self.address.prefix}/{key}" if self.address.prefix else key

    def place(self, key: str) -> str:
        """The object's URL, for messages."""
        return f"{self.location}/{key}"

    def run(self, act: str, key: str, call: Callable[[], _T], *, once: bool = False) -> _T:
        """What `call` gives; it is repeated after failures that pass, unless `once`.

        Refused if a condition did not hold, NotFoundError, StorageError.
        """
        require_not_forked(self.location)
        start, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                return call()
            except Exception as error:
                if once or not is_passing(error) or self._is_late(start):
                    raise self.failure(error, act, key, time.monotonic() - start) from error
            time.sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _is_late(self, start: float) -> bool:
        return time.monotonic() - start > self.deadline

    def failure(self, error: Exception, act: str, key: str, seconds: float) -> Exception:
        """obstore's error as one of ours."""
        from obstore import exceptions

        said = first_line(error)
        if isinstance(error, FileNotFoundError):
            return NotFoundError(f"{key!r} is not in {self.location}")
        if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
            return Refused(said)
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            text = f"{act}: permission denied; check the credentials and what they allow ({said})"
            return StorageError(errno.EACCES, text, self.place(key))
        if isinstance(error, exceptions.NotSupportedError):
            return UnsupportedError(f"{act} {self.place(key)}: this store cannot do it ({said})")
        if isinstance(error, exceptions.BaseError):
            after = f", after {seconds:.0f} s" if seconds > 1 else ""
            return StorageError(errno.EIO, f"{act}: {said}{after}", self.place(key))
        return error

    # Requests that may be repeated

    def head(self, key: str) -> ObjectMeta:
        from obstore import head

        path = self.path(key)
        return self.run("looking at it", key, lambda: head(self.store, path))

    def whole(self, key: str, check: Callable[[int], None]) -> tuple[bytes, ObjectMeta, str]:
        """The whole value, what is known of it, and who put it; `check` sees its size first."""
        from obstore import get

        path = self.path(key)

        def call() -> tuple[bytes, ObjectMeta, str]:
            start = time.perf_counter()
            found = get(self.store, path)
            check(found.meta["size"])
            data = found.bytes().to_bytes()
            self.costs.saw(len(data), time.perf_counter() - start)
            return data, found.meta, found.attributes.get(ATTEMPT, "")

        return self.run("reading it", key, call)

    def start(self, key: str, nbytes: int) -> tuple[bytes, int]:
        """The first bytes, at most so many, and the object's size, by one request."""
        from obstore import get

        path = self.path(key)

        def call() -> tuple[bytes, int]:
            found = get(self.store, path, options={"range": (0, nbytes)})
            return found.bytes().to_bytes(), found.meta["size"]

        return self.run("reading it", key, call)

    def range(self, key: str, start: int, nbytes: int) -> memoryview:
        """Up to `nbytes` bytes, fewer at the object's end, in memory of their own."""
        from obstore import get_range

        path = self.path(key)

        def call() -> memoryview:
            began = time.perf_counter()
            found = memoryview(get_range(self.store, path, start=start, length=nbytes))
            self.costs.saw(found.nbytes, time.perf_counter() - began)
            return found

        return self.run("reading it", key, call)

    def attempt(self, key: str) -> tuple[str, Version] | None:
        """Which put the value came by, and its version; None if there is none."""
        from obstore import get

        path = self.path(key)

        def call() -> tuple[str, Version]:
            found = get(self.store, path, options={"head": True})
            return found.attributes.get(ATTEMPT, ""), version_of(found.meta)

        try:
            return self.run("looking at it", key, call)
        except NotFoundError:
            return None

    def version(self, key: str) -> Version | None:
        """The version that is there now."""
        try:
            return version_of(self.head(key))
        except NotFoundError:
            return None

    def put(self, key: str, data: bytes, *, attempt: str, mode: Any, once: bool) -> Version:
        """Put a small value; its version. Refused if the condition in `mode` does not hold."""
        from obstore import put

        path = self.path(key)

        def call() -> Version:
            marks = {ATTEMPT: attempt} if attempt else None
            return version_of(
                put(self.store, path, data, mode=mode, attributes=marks, use_multipart=False)
            )

        return self.run("writing it", key, call, once=once)

    def delete(self, key: str, *, once: bool = False) -> None:
        """Remove the object, which need not be there."""
        from obstore import delete

        path = self.path(key)

        def call() -> None:
            try:
                delete(self.store, path)
            except FileNotFoundError:
                return

        self.run("removing it", key, call, once=once)

    def list(self) -> tuple[list[ObjectMeta], list[str]]:
        """The objects right below the prefix, and the names that go on below it."""
        # Its types speak of arrow, which is not needed here.
        from obstore import list_with_delimiter  # pyright: ignore[reportUnknownVariableType]

        prefix = self.address.prefix or None
        found = self.run("listing it", "", lambda: list_with_delimiter(self.store, prefix))
        start = self.path("")
        # Some stores also list the folder itself.
        objects = [one for one in found["objects"] if one["path"].startswith(start)]
        return objects, [*found["common_prefixes"]]


def version_of(found: Any) -> Version:
    """What tells this version of an object from every other: its ETag, on GCS a number."""
    known = {name: found[name] for name in ("e_tag", "version")}
    return {name: value for name, value in known.items() if value is not None}


# Each put carries a name of its own, by which a lost answer is found out. Azure allows no dash.
ATTEMPT = "shardkeepattempt"


def is_passing(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    from obstore.exceptions import GenericError

    if not isinstance(error, GenericError):
        return False
    found = _STATUS.search(str(error))
    return found is None or found[1] in _PASSING_STATUS
