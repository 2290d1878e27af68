"""How does a manifest become bytes, and bytes a manifest that can be trusted?

Cheap doubts come first: the size, then the digest, then the version, and only then is anything
parsed. What was parsed must be the one way to write it.
"""

from __future__ import annotations

import re

import msgspec

from shardkeep.errors import CorruptError, InvalidError, VersionError
from shardkeep.manifest.canonical import (
    brief,
    check_density,
    decode_json,
    encode_json,
    with_fresh_stack,
)
from shardkeep.manifest.checks import check_manifest
from shardkeep.manifest.digests import manifest_digest
from shardkeep.manifest.limits import MAX_MANIFEST_NBYTES
from shardkeep.manifest.model import Manifest
from shardkeep.manifest.wire import WireManifest, manifest_of, wire_of

VERSION = 1
"""The version that is written, and the newest that is read."""

_AT_MOST = f"at most {MAX_MANIFEST_NBYTES}"
_TAIL = re.compile(rb',"digest":"([0-9a-f]{32})"\}')
_TAIL_NBYTES = 45
_HEAD = re.compile(rb'\{"format":"([^"\\]{1,40})","version":([0-9]{1,9}),')

_decoder = msgspec.json.Decoder(WireManifest)


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as it is stored; raises InvalidError for one that no reader would accept."""
    return with_fresh_stack(lambda: _encode(manifest))


def decode_manifest(data: bytes, *, where: str) -> Manifest:
    """The manifest that was stored in `where`.

    Raises CorruptError with the reason if it is damaged or breaks a rule of the format, and
    VersionError if it was written by a newer shardkeep.
    """
    try:
        check_head(data, where)
        return with_fresh_stack(lambda: _decode(data))
    except (CorruptError, InvalidError) as error:
        raise CorruptError(f"{where}: {brief(error)}") from error


def check_head(data: bytes, where: str) -> None:
    """Raise unless `data` has its digest and is of a version that is read here."""
    _check_digest(data)
    check_version(_HEAD, data, where)


def check_version(head: re.Pattern[bytes], data: bytes, where: str) -> None:
    """Raise unless `data` starts as `head` says, with a version that is read here."""
    match = head.match(data)
    if match is None or match[1] != b"shardkeep":
        raise CorruptError("this is not a file of the format 'shardkeep'")
    version = int(match[2])
    if version != VERSION:
        raise VersionError(
            f"{where}: written in format version {version}; this shardkeep reads version "
            f"{VERSION} only. Use a newer shardkeep"
        )


def _check_digest(data: bytes) -> None:
    if len(data) > MAX_MANIFEST_NBYTES:
        raise CorruptError(f"a manifest of {len(data)} bytes; expected {_AT_MOST}")
    match = _TAIL.fullmatch(data, max(0, len(data) - _TAIL_NBYTES))
    if match is None:
        raise CorruptError("the manifest does not end in its digest: it was cut off, or damaged")
    found = manifest_digest(memoryview(data)[:-_TAIL_NBYTES])
    if found.encode() != match[1]:
        raise CorruptError(
            f"the digest does not match: expected {match[1].decode()}, found {found}; "
            "the manifest is damaged"
        )


def _encode(manifest: Manifest) -> bytes:
    check_manifest(manifest)
    data = encode_json(wire_of(manifest, version=VERSION))
    if len(data) > MAX_MANIFEST_NBYTES:
        raise InvalidError(
            f"a manifest of {len(data)} bytes; the format allows {_AT_MOST}. Large values can be "
            "kept as tensors of bytes"
        )
    check_density(data)
    body = memoryview(data)[:-_TAIL_NBYTES]
    return b'%b,"digest":"%b"}' % (body, manifest_digest(body).encode())


def _decode(data: bytes) -> Manifest:
    check_density(data)
    manifest = manifest_of(decode_json(data, _decoder))
    check_manifest(manifest)
    return manifest
