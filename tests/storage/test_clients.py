"""Is a client of an object store used again, by those alone who would make the same one?"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from shardkeep.storage import urls
from shardkeep.storage.urls import connect, parse_address

OPTIONS = {"access_key_id": "a", "secret_access_key": "b", "region": "eu-central-1"}


@pytest.fixture(autouse=True)
def no_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_clients", urls._Clients())


def client(url: str = "s3://bucket/a", deadline: float = 300.0, **options: Any) -> Any:
    return connect(parse_address(url), OPTIONS | options, deadline=deadline)


def test_the_same_options_have_the_same_client_wherever_in_the_bucket():
    assert client() is client("s3://bucket/b/c")
    timeout = {"timeout": timedelta(seconds=7)}
    assert client(client_options=timeout) is client(client_options=dict(timeout))


@pytest.mark.parametrize(
    "other",
    [
        {"url": "s3://another/a"},
        {"region": "us-east-1"},
        {"secret_access_key": "c"},
        {"client_options": {"timeout": timedelta(seconds=7)}},
        {"retry_config": {"max_retries": 1}},
        {"deadline": 5.0},
    ],
)
def test_whatever_else_is_asked_for_makes_another_one(other: dict[str, Any]):
    assert client() is not client(**other)


def test_other_keys_in_the_environment_make_another_one(monkeypatch: pytest.MonkeyPatch):
    before = client()
    monkeypatch.setenv("AWS_SESSION_TOKEN", "new")
    assert client() is not before
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    assert client() is before


def test_what_cannot_be_compared_is_made_each_time():
    odd = {"default_headers": {"x": bytearray(b"y")}}
    made: list[Any] = []
    clients = urls._Clients()
    for _ in range(2):
        key: Any = ("s3://bucket", urls._frozen(odd))
        clients.get(key, lambda: made.append(0) or client())
    assert len(made) == 2


def test_no_client_serves_for_long_and_only_the_last_ones_are_kept(
    monkeypatch: pytest.MonkeyPatch,
):
    now = [0.0]
    monkeypatch.setattr(urls.time, "monotonic", lambda: now[0])
    first = client()
    now[0] += 299
    assert client() is first
    now[0] += 2
    second = client()
    assert second is not first
    for number in range(urls._MAX_CLIENTS):
        assert client() is second
        client(f"s3://bucket-{number}")
    for number in range(urls._MAX_CLIENTS):
        client(f"s3://bucket-{number}")
    assert client() is not second
