"""Is this a manifest, whole, and of a version that is read here? Answered before it is parsed."""

from __future__ import annotations

import re

from shardkeep.errors import CorruptError, VersionError
from shardkeep.manifest.digests import manifest_digest
from shardkeep.manifest.limits import MAX_MANIFEST_NBYTES

VERSION = 1
"""The version that is written, and the newest that is read."""

AT_MOST = f"at most {MAX_MANIFEST_NBYTES}"
TAIL_NBYTES = 45
_TAIL = re.compile(rb',"digest":"([0-9a-f]{32})"\}')
_HEAD = re.compile(rb'\{"format":"([^"\\]{1,40})","version":([0-9]{1,9}),')


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
        raise CorruptError(f"a manifest of {len(data)} bytes; expected {AT_MOST}")
    match = _TAIL.fullmatch(data, max(0, len(data) - TAIL_NBYTES))
    if match is None:
        raise CorruptError("the manifest does not end in its digest: it was cut off, or damaged")
    found = manifest_digest(memoryview(data)[:-TAIL_NBYTES])
    if found.encode() != match[1]:
        raise CorruptError(
            f"the digest does not match: expected {match[1].decode()}, found {found}; "
            "the manifest is damaged"
        )
