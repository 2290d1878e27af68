"""Which object store does a URL mean, and with which credentials?

Credentials and endpoints come from the environment as the vendors' own tools read it, for S3 also
from the files of the AWS command line; options given by the caller come first.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from shardkeep.errors import InvalidError, UnsupportedError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

S3_SCHEMES = frozenset({"s3", "s3a"})
OBJECT_SCHEMES = S3_SCHEMES | {"gs", "az", "azure", "abfs", "abfss", "http", "https"}
_READ_ONLY_SCHEMES = frozenset({"http", "https"})

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
# How long one request may take; then it is sent again.
_REQUEST_SECONDS = 60
_MAX_CLIENTS = 16
_MAX_CLIENT_SECONDS = 300.0
_CLIENT_VARIABLES = (
    *("AWS_", "GOOGLE_", "AZURE_", "MSI_", "IDENTITY_"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_"),
)
# Where S3's keys may come from besides the files.
_AWS_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_AWS_OPTIONS = frozenset({"access_key_id", "aws_access_key_id", "skip_signature"})
_AWS_NAMES = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}


@dataclass(frozen=True, slots=True)
class Address:
    """A place in an object store.

    >>> parse_address("s3://bucket/runs/a/")
    Address(scheme='s3', host='bucket', prefix='runs/a')
    """

    scheme: str
    host: str
    """The bucket or container, for http the host."""
    prefix: str

    @property
    def root(self) -> str:
        """The whole bucket."""
        return f"{self.scheme}://{self.host}"

    @property
    def url(self) -> str:
        return f"{self.root}/{self.prefix}" if self.prefix else self.root

    @property
    def is_read_only(self) -> bool:
        return self.scheme in _READ_ONLY_SCHEMES

    def below(self, name: str) -> Address:
        """The place of this name below."""
        prefix = f"{self.prefix}/{name}" if self.prefix else name
        return Address(self.scheme, self.host, prefix)


def split_url(text: str) -> tuple[str, str] | None:
    """The scheme, in small letters, and the rest; None for what is no URL.

    >>> split_url("S3://bucket/a"), split_url("runs/a"), split_url("C:/a")
    (('s3', 'bucket/a'), None, None)
    """
    found = _URL.match(text)
    return (found[1].lower(), found[2]) if found else None


def parse_address(url: str) -> Address:
    """What a URL names; InvalidError if that is no bucket, or has dots for steps."""
    scheme = urlsplit(url).scheme.lower()
    host, _, path = url[len(scheme) + 3 :].partition("/")
    if not host:
        raise InvalidError(f"{url!r} names no bucket; write {scheme}://bucket/path")
    if scheme in _READ_ONLY_SCHEMES:
        path = unquote(path)
    parts = [part for part in path.split("/") if part]
    if {".", ".."} & set(parts) or not path.isprintable():
        raise InvalidError(f"{url!r} has a part that is no name: remove '.' and '..'")
    return Address(scheme, host, "/".join(parts))


def connect(address: Address, options: Mapping[str, Any], *, deadline: float) -> ObjectStore:
    """A client of the whole bucket; nothing is sent yet. `options` are those of obstore.

    One that was made before from the same is used again, with its connections.
    """
    from datetime import timedelta

    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise UnsupportedError(
            f"{address.url}: object stores need obstore: pip install 'shardkeep[objects]'"
        ) from error
    require_not_forked(address.url)
    made: dict[str, Any] = dict(options)
    if address.scheme in S3_SCHEMES:
        made = {**_aws_profile(made), **made}
    client: dict[str, Any] = {"timeout": timedelta(seconds=_REQUEST_SECONDS)}
    if _is_plain_http(address, made):
        client["allow_http"] = True
    client |= made.pop("client_options", {})
    retry: Any = {
        "max_retries": 8,
        "backoff": {
            "init_backoff": timedelta(milliseconds=50),
            "max_backoff": timedelta(seconds=5),
        },
        "retry_timeout": timedelta(seconds=min(deadline, 60.0)),
    }
    retry |= made.pop("retry_config", {})
    made |= {"client_options": client, "retry_config": retry}
    try:
        return _clients.get(
            (address.root, _frozen(made), _environment()), lambda: from_url(address.root, **made)
        )
    except (BaseError, ValueError, TypeError) as error:
        raise InvalidError(f"{address.url} cannot be opened: {first_line(error)}") from error


def _frozen(value: Any) -> object:
    """The same as something that can be compared and looked up, if it can."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return tuple(sorted((name, _frozen(one)) for name, one in items))
    # With its type: to a client, True is not 1.
    kind: object = type(cast("object", value))
    return kind, value


def _environment() -> tuple[tuple[str, str], ...]:
    """What clients read when they are made: who has other keys by now gets another client."""
    return tuple(
        sorted(one for one in os.environ.items() if one[0].upper().startswith(_CLIENT_VARIABLES))
    )


class _Clients:
    """The clients that were made last: each has connections, and knows whom to trust.

    Files with keys are read as a client is made. They may change, so none serves for long.
    """

    def __init__(self) -> None:
        self._made: OrderedDict[object, tuple[float, ObjectStore]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], ObjectStore]) -> ObjectStore:
        """The client of this key; what cannot be looked up is made anew each time."""
        with self._lock:
            try:
                since, client = self._made.pop(key, (-math.inf, None))
            except TypeError:
                return make()
            now = time.monotonic()
            if client is None or now - since > _MAX_CLIENT_SECONDS:
                since, client = now, make()
            self._made[key] = since, client
            if len(self._made) > _MAX_CLIENTS:
                self._made.popitem(last=False)
            return client


_clients = _Clients()


_processes: set[int] = set()


def require_not_forked(url: str) -> None:
    """UnsupportedError after a fork: obstore's threads are not there, and nothing would answer."""
    _processes.add(os.getpid())
    if len(_processes) > 1:
        raise UnsupportedError(
            f"{url}: this process was forked from one that had used an object store; "
            "start it by spawn or forkserver, or fork before the first use"
        )


@dataclass(frozen=True, slots=True)
class AwsAccess:
    """Keys for S3 and where they are good."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    region: str
    endpoint: str


def aws_access(address: Address, options: Mapping[str, Any]) -> AwsAccess | None:
    """The keys that are given as such; None if a service of the cloud hands them out."""
    if address.scheme not in S3_SCHEMES:
        return None
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    known = {**_aws_profile(options), **given}

    def find(name: str) -> str:
        return str(known.get(name) or os.environ.get(f"AWS_{name.upper()}") or "")

    if not find("access_key_id") or not find("secret_access_key"):
        return None
    region = find("region") or find("default_region") or "us-east-1"
    endpoint = endpoint_of(options) or str(known.get("endpoint") or "")
    keys = find("access_key_id"), find("secret_access_key"), find("session_token")
    return AwsAccess(*keys, region, endpoint)


def _is_plain_http(address: Address, options: Mapping[str, Any]) -> bool:
    """Whether somebody asked for a server without TLS, by name."""
    return address.scheme == "http" or endpoint_of(options).startswith("http://")


def endpoint_of(options: Mapping[str, Any]) -> str:
    """The server that was named; empty for the vendor's own."""
    named = [options.get("endpoint"), options.get("aws_endpoint_url_s3")]
    named += [os.environ.get(f"AWS_ENDPOINT{end}") for end in ("_URL_S3", "_URL", "")]
    return next((str(one) for one in named if one), "")


def _aws_profile(options: Mapping[str, Any]) -> dict[str, str]:
    """What the files of the AWS command line say, if nothing else gives keys."""
    given = {name.lower() for name in options}
    if given & _AWS_OPTIONS or "credential_provider" in given:
        return {}
    if any(os.environ.get(name) for name in _AWS_SOURCES):
        return {}
    name = os.environ.get("AWS_PROFILE", "default")
    found = {
        _AWS_NAMES[key]: value
        for key, value in _aws_settings(name).items()
        if key in _AWS_NAMES and not os.environ.get(f"AWS_{_AWS_NAMES[key].upper()}")
    }
    if "AWS_PROFILE" in os.environ and "access_key_id" not in found:
        raise InvalidError(
            f"the AWS profile {name!r} has no keys of its own, as with SSO or a role; put them "
            "into the environment: eval $(aws configure export-credentials --format env)"
        )
    return found


def _aws_settings(profile: str) -> dict[str, str]:
    """The settings of one profile; keys of the credentials file come first."""
    import configparser

    section = "default" if profile == "default" else f"profile {profile}"
    places = (
        ("AWS_CONFIG_FILE", "config", section),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile),
    )
    found: dict[str, str] = {}
    for variable, name, wanted in places:
        path = Path(os.environ.get(variable) or Path.home() / ".aws" / name)
        parser = configparser.RawConfigParser()
        try:
            parser.read(path)
        except configparser.Error as error:
            raise InvalidError(f"{path} cannot be read: {first_line(error)}") from error
        if parser.has_section(wanted):
            found |= dict(parser.items(wanted))
    return found


def first_line(error: BaseException) -> str:
    """What an error says, without the answer's body and what obstore prints below it."""
    said = str(error).strip().partition("\n")[0].partition("<?xml")[0]
    return said.rstrip(": ") or type(error).__name__
