"""Which names may an object have, and which are temporary?

A key is one component of a path: joined to a folder it can never lead out of it.
"""

import secrets

from shardkeep.errors import InvalidError

# What common file systems allow; object stores allow more.
MAX_KEY_NBYTES = 255

_TEMPORARY_PREFIX = ".tmp-"


def new_temporary_key() -> str:
    """A fresh name for a value on its way to its key; a crash may leave it behind."""
    return f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}"


def is_temporary(key: str) -> bool:
    """True for names that `new_temporary_key` makes."""
    return key.startswith(_TEMPORARY_PREFIX)


def is_key(name: str) -> bool:
    """True for names that `check_key` lets pass."""
    return _objection(name) is None


def check_key(key: str) -> None:
    """InvalidError, with the reason, unless `key` is a name that an object may have.

    >>> check_key("../secret")
    Traceback (most recent call last):
    shardkeep.errors.InvalidError: '../secret' cannot be a key: it has a path separator
    """
    if objection := _objection(key):
        raise InvalidError(f"{_shorten(key)} cannot be a key: {objection}")


def check_new_key(key: str) -> None:
    """The same for an object to be made: temporary names are the storage's own."""
    check_key(key)
    if is_temporary(key):
        raise InvalidError(
            f"{key!r} cannot be written: names that start with {_TEMPORARY_PREFIX!r} are temporary"
        )


def _objection(key: str) -> str | None:
    if key in ("", ".", ".."):
        return "it names no object"
    if "/" in key or "\\" in key:
        return "it has a path separator"
    if "\0" in key:
        return "it has a NUL character"
    try:
        nbytes = len(key.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if nbytes > MAX_KEY_NBYTES:
        return f"it has {nbytes} bytes, more than {MAX_KEY_NBYTES}"
    return None


def _shorten(key: str) -> str:
    return repr(key) if len(key) <= 80 else f"{key[:60]!r}..."
