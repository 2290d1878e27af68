"""How does a test run many ranks without starting processes? As threads over real gloo groups."""

from __future__ import annotations

import datetime
import itertools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


class ThreadRanks:
    """A world of threads, each with a gloo group of its own; made once, used for many calls.

    Pass the group that a function receives as `process_group=`: these ranks have no default
    group. Thread i is rank i.
    """

    def __init__(self, size: int, *, timeout: float = 30.0) -> None:
        self.size = size
        self._store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        self._timeout = datetime.timedelta(seconds=timeout)
        self._numbers = itertools.count()
        self._groups = self._connect()

    def _connect(self) -> list[Any]:
        store = dist.PrefixStore(  # pyright: ignore[reportPrivateImportUsage]
            f"world-{next(self._numbers)}", self._store
        )
        return _in_threads(
            [
                lambda rank=rank: dist.ProcessGroupGloo(store, rank, self.size, self._timeout)
                for rank in range(self.size)
            ]
        )

    def run(self, act: Callable[[int, Any], T]) -> list[T]:
        """The results of `act(rank, group)` by rank; the lowest rank's error if any raised."""
        try:
            return _in_threads(
                [lambda rank=rank: act(rank, self._groups[rank]) for rank in range(self.size)]
            )
        except BaseException:
            # Messages of a broken-off act may still be on their way: later acts need new groups.
            self._groups = self._connect()
            raise

    def errors(self, act: Callable[[int, Any], object]) -> list[BaseException | None]:
        """What each rank raised, by rank."""

        def attempt(rank: int, group: Any) -> BaseException | None:
            try:
                act(rank, group)
            except Exception as error:
                return error
            return None

        found = self.run(attempt)
        self._groups = self._connect()
        return found


def _in_threads(acts: list[Callable[[], T]]) -> list[T]:
    results: list[Any] = [None] * len(acts)
    errors: list[BaseException | None] = [None] * len(acts)

    def work(index: int) -> None:
        try:
            results[index] = acts[index]()
        except BaseException as error:
            errors[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error
    return results
