"""How does a manifest become bytes, and bytes a manifest that can be trusted?

Cheap doubts come first: the size, then the digest, then the version, and only then is anything
parsed. What was parsed must be the one way to write it.
"""

from __future__ import annotations

import msgspec

from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest.canonical import (
    brief,
    check_density,
    decode_json,
    encode_json,
    with_fresh_stack,
)
from shardkeep.manifest.checks import check_manifest
from shardkeep.manifest.digests import manifest_digest
from shardkeep.manifest.head import AT_MOST, TAIL_NBYTES, VERSION, check_head
from shardkeep.manifest.limits import MAX_MANIFEST_NBYTES
from shardkeep.manifest.model import Manifest
from shardkeep.manifest.wire import WireManifest, manifest_of, wire_of

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


def _encode(manifest: Manifest) -> bytes:
    check_manifest(manifest)
    data = encode_json(wire_of(manifest, version=VERSION))
    if len(data) > MAX_MANIFEST_NBYTES:
        raise InvalidError(
            f"a manifest of {len(data)} bytes; the format allows {AT_MOST}. Large values can be "
            "kept as tensors of bytes"
        )
    check_density(data)
    body = memoryview(data)[:-TAIL_NBYTES]
    return b'%b,"digest":"%b"}' % (body, manifest_digest(body).encode())


def _decode(data: bytes) -> Manifest:
    check_density(data)
    manifest = manifest_of(decode_json(data, _decoder))
    check_manifest(manifest)
    return manifest
