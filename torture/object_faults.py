"""Is anything lost on the way to an object store, or an answer misjudged?

Between a client and a real S3 server stands a proxy that refuses, delays, resets, cuts answers
short, and swallows answers of requests that were carried out. Operations run through it, against a
plain dict that says what must come of each: a put that says that it won has won, one that says that
it lost has lost, and nothing is ever unknown. Beside them two clients add to one value by turns:
no addition may be lost.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch

import shardkeep as sk
from shardkeep.errors import ConflictError, NotFoundError
from shardkeep.storage.objects import ObjectStorage
from torture.campaign import Say, Scale, Tally, count_rounds
from torture.fault_proxy import FAULTS, Fault, FaultProxy
from torture.object_servers import S3Server, cannot_serve, seaweedfs

_ROUNDS = {"short": 4, "long": 200}
_OPERATIONS = 50
_FAULTY = 0.2
_PART = 5 * 2**20
_KEYS = ("a", "b", "manifest.json", "größe")


class ObjectFaults:
    """The campaign."""

    name = "object-faults"
    promise = "Through a network that fails, nothing in an object store is lost or misjudged."

    def __init__(self, server: S3Server | None = None) -> None:
        self._server = server

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        if self._server is None and (reason := cannot_serve()):
            tally.skipped = reason
            return tally
        numbers = range(_ROUNDS[scale]) if case is None else [int(case)]
        if self._server is not None:
            _rounds(self._server, tally, numbers, say)
        else:
            with seaweedfs() as server:
                _rounds(server, tally, numbers, say)
        return tally


def _rounds(server: S3Server, tally: Tally, numbers: Any, say: Say) -> None:
    count_rounds(
        tally, numbers, lambda number: _Round(server, tally.seed, number).run(), lambda: None, say
    )


class _Round:
    """Some operations of one client, with a model beside."""

    def __init__(self, server: S3Server, seed: int, number: int) -> None:
        self._dice = random.Random(f"{seed}/{number}")
        weather = random.Random(f"{seed}/{number}/weather")

        def choose(_method: str, _target: str) -> Fault | None:
            return weather.choice(FAULTS) if weather.random() < _FAULTY else None

        self._proxy = FaultProxy(server.endpoint, choose, slow_seconds=0.02)
        self._server = server
        self._url = server.url(f"faults/{uuid4().hex}")
        self._model: dict[str, bytes] = {}
        self._saved: int | None = None

    def run(self) -> Iterator[str]:
        acts: list[Callable[[], str]] = [
            self._put, self._put, self._replace, self._replace, self._write, self._write_large,
            self._read, self._get, self._list, self._delete, self._save, self._load,
        ]  # fmt: skip
        with self._proxy.serving() as endpoint:
            self._storage = self._client(endpoint, "")
            self._checkpoint = self._client(endpoint, "/checkpoint")
            yield from self._count_together(endpoint)
            for _ in range(_OPERATIONS):
                yield "operations"
                yield self._dice.choice(acts)()
        self._judge()
        for asked in self._proxy.log:
            yield "requests"
            if asked.fault:
                yield f"fault: {asked.fault}"

    def _client(self, endpoint: str, below: str) -> ObjectStorage:
        options = self._server.by_way_of(endpoint).options
        quick = {
            "max_retries": 2,
            "backoff": {
                "init_backoff": timedelta(seconds=0.002),
                "max_backoff": timedelta(0, 0.05),
            },
        }
        return ObjectStorage(self._url + below, part_nbytes=_PART, retry_config=quick, **options)

    def _some(self) -> tuple[str, bytes]:
        return self._dice.choice(_KEYS), self._dice.randbytes(self._dice.randrange(2000))

    def _put(self) -> str:
        key, data = self._some()
        won = self._storage.put_if_absent(key, data)
        _require(won == (key not in self._model), f"put of {key!r} said {won}")
        self._model.setdefault(key, data)
        return "puts"

    def _replace(self) -> str:
        key, data = self._some()
        seen = self._model.get(key)
        expected = b"another" if seen is None or self._dice.random() < 0.2 else seen
        won = self._storage.replace(key, data, expected=expected)
        _require(won == (seen == expected), f"replace of {key!r} said {won}")
        if won:
            self._model[key] = data
        return "replacements"

    def _write(self) -> str:
        key, data = self._some()
        return self._create(key, data)

    def _write_large(self) -> str:
        if self._dice.random() < 0.7:
            return self._write()
        return self._create("large", self._dice.randbytes(_PART) * 2 + b"end")

    def _create(self, key: str, data: bytes) -> str:
        try:
            with self._storage.create(key) as sink:
                sink.write(0, [data])
            won = True
        except ConflictError:
            won = False
        _require(won == (key not in self._model), f"create of {key!r} said {won}")
        self._model.setdefault(key, data)
        return "objects made"

    def _read(self) -> str:
        for key, data in self._model.items():
            start = self._dice.randrange(len(data) + 1)
            found = self._storage.read(key, start, len(data) - start)
            _require(found == data[start:], f"{key!r} was read otherwise")
        return "reads"

    def _get(self) -> str:
        key = self._dice.choice(_KEYS)
        try:
            found = self._storage.get(key, max_nbytes=2**20)
        except NotFoundError:
            found = None
        _require(found == self._model.get(key), f"{key!r} has another value")
        return "gets"

    def _list(self) -> str:
        found = [(entry.key, entry.nbytes) for entry in self._storage.list()]
        wanted = sorted((key, len(data)) for key, data in self._model.items())
        known = [one for one in found if not one[0].startswith((".tmp-", "counter"))]
        _require(known == wanted, f"listed are {known} instead of {wanted}")
        return "lists"

    def _delete(self) -> str:
        key = self._dice.choice(_KEYS)
        self._storage.delete(key, missing_ok=True)
        self._model.pop(key, None)
        return "deletions"

    def _save(self) -> str:
        version = self._dice.randrange(10**6)
        state = {"w": torch.arange(version, version + 5000), "n": version}
        sk.save(state, self._checkpoint, overwrite=True)
        self._saved = version
        return "saves"

    def _load(self) -> str:
        if self._saved is None:
            return self._save()
        state = sk.load(self._checkpoint)
        wanted = torch.arange(self._saved, self._saved + 5000)
        is_same = state["n"] == self._saved and torch.equal(state["w"], wanted)
        _require(is_same, f"the checkpoint is not that of {self._saved}")
        return "loads"

    def _count_together(self, endpoint: str) -> Iterator[str]:
        """Two clients add to one value; each says how often it was told that it won."""
        self._storage.put_if_absent("counter", b"")
        told: list[int] = []
        errors: list[BaseException] = []

        def add(name: bytes) -> None:
            client, won = self._client(endpoint, ""), 0
            try:
                for _ in range(4):
                    seen = client.get("counter", max_nbytes=2**20)
                    won += client.replace("counter", seen + name, expected=seen)
            except BaseException as error:
                errors.append(error)
            told.append(won)

        threads = [threading.Thread(target=add, args=(name,)) for name in (b"x", b"y")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        found = self._storage.get("counter", max_nbytes=2**20)
        _require(len(found) == sum(told), f"{sum(told)} additions were won, {found!r} is there")
        yield "contests"

    def _judge(self) -> None:
        """Without the proxy everything is as the model says."""
        direct = ObjectStorage(self._url, **self._server.options)
        for key, data in self._model.items():
            found = direct.get(key, max_nbytes=2**30)
            _require(found == data, f"{key!r} is not what was put last")
        left = {entry.key for entry in direct.list() if not entry.is_temporary}
        _require(left == {*self._model, "counter"}, f"{left} are there")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
