"""Which tensors does somebody mean?"""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase

from shardkeep.errors import NotFoundError
from shardkeep.manifest import Manifest

_NAMED = 4


def keys_of(manifest: Manifest, pattern: str | None) -> list[str]:
    """The keys of tensors that equal the pattern, lie below it, or match it as a glob."""
    keys = [record.key for record in manifest.tensors]
    if pattern is None:
        return keys
    found = [
        key
        for key in keys
        if key == pattern or key.startswith(f"{pattern}.") or fnmatchcase(key, pattern)
    ]
    if not found:
        near = [key for key in keys if pattern.lower() in key.lower()][:_NAMED]
        near = near or get_close_matches(pattern, keys, _NAMED)
        hint = f"; there are {', '.join(near)}" if near else "; `shardkeep show` lists them"
        raise NotFoundError(f"no tensor is called {pattern!r}{hint}")
    return found
