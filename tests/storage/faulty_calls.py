"""File calls that are real until a test says otherwise: fail, stop short, be delayed."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from shardkeep.storage.file_calls import FileCalls

KINDS = [name for name in vars(FileCalls) if not name.startswith("_")]


class FaultyCalls(FileCalls):
    """Counts and logs the calls by kind; `fail`, `before` and `max_nbytes` change them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.counts: Counter[str] = Counter()
        self.max_nbytes: int | None = None
        self._failures: dict[tuple[str, int], tuple[int, bool]] = {}
        self._always: dict[str, int] = {}
        self._hooks: dict[str, Callable[..., object]] = {}

    def fail(self, kind: str, number: int, *, nth: int = 1, done: bool = False) -> None:
        """The nth call of `kind` from now on fails with `number`; if `done`, after its work."""
        self._failures[kind, self.counts[kind] + nth] = (number, done)

    def always_fail(self, kind: str, number: int) -> None:
        """Each call of `kind` fails with errno `number`."""
        self._always[kind] = number

    def before(self, kind: str, hook: Callable[..., object]) -> None:
        """`hook` is called with the arguments of each call of `kind`, before it."""
        self._hooks[kind] = hook

    def run(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.counts[kind] += 1
        names = [arg for arg in args if isinstance(arg, str)]
        self.log.append(" ".join([kind, *names]))
        if kind in self._hooks:
            self._hooks[kind](*args)
        if kind in self._always:
            raise OSError(self._always[kind], os.strerror(self._always[kind]))
        number, done = self._failures.get((kind, self.counts[kind]), (0, False))
        result = None if number and not done else getattr(super(), kind)(*args, **kwargs)
        if number:
            raise OSError(number, os.strerror(number))
        return result

    def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
        return self.run("pread", (fd, min(nbytes, self.max_nbytes or nbytes), offset), {})

    def preadv(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        return self.run("preadv", (fd, self._shortened(views), offset), {})

    def pwritev(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        return self.run("pwritev", (fd, self._shortened(views), offset), {})

    def _shortened(self, views: Sequence[memoryview]) -> Sequence[memoryview]:
        if self.max_nbytes is None:
            return views
        left, kept = self.max_nbytes, list[memoryview]()
        for view in views:
            kept.append(view[:left])
            left -= kept[-1].nbytes
        return kept


def _through_run(kind: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: self.run(kind, args, kwargs)


for _kind in KINDS:
    if _kind not in vars(FaultyCalls):
        setattr(FaultyCalls, _kind, _through_run(_kind))
