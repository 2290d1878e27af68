"""What does a failed system call mean, and what can its reader do about it?"""

import errno
import os

from shardkeep.errors import CorruptError, StorageError


class OutcomeUnknownError(StorageError):
    """Raised when a value may or may not have been put under its key.

    Read the key before you remove anything that the new value refers to.
    """

    kind = "outcome_unknown"


# What it means, and the way out.
_MEANINGS = {
    errno.ENOSPC: ("no space left", "make room or choose another place"),
    errno.EDQUOT: ("the quota is used up", "make room, ask for a larger quota"),
    errno.EFBIG: ("the file is too large for this file system or limit", "see `ulimit -f`"),
    errno.EIO: ("an I/O error of the device or network", "check its health and the kernel's log"),
    errno.EACCES: ("permission denied", "check the owner and mode of the folder"),
    errno.EPERM: ("not permitted", "check owner, mode and attributes of the folder"),
    errno.EROFS: ("the file system is read-only", "remount it or choose another place"),
    errno.EMFILE: ("too many open files", "raise the limit, see `ulimit -n`"),
    errno.ENOENT: ("it or its folder was removed meanwhile", "does a clean-up run here?"),
    errno.ESTALE: ("the file server forgot the file", "open the folder anew"),
}

# The errors for which the free space is worth knowing.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def storage_error(error: OSError, act: str, path: str, *, free: str = "") -> StorageError:
    """`error` as a StorageError that says what was being done and what helps.

    >>> storage_error(OSError(errno.EMFILE, ""), "opening it", "/mnt/a").strerror
    'opening it: too many open files; raise the limit, see `ulimit -n`'
    """
    number = error.errno or errno.EIO
    return StorageError(number, f"{act}: {explain(error, free)}", path)


def explain(error: OSError, free: str = "") -> str:
    """What `error` means, how much space is free, and the way out, in half a sentence."""
    number = error.errno or errno.EIO
    meaning, way_out = _MEANINGS.get(number, (os.strerror(number), ""))
    found = f"{meaning}, {free}" if free else meaning
    return f"{found}; {way_out}" if way_out else found


def describe_free_space(found: os.statvfs_result) -> str:
    """How much an ordinary user may still write."""
    nbytes = f"{found.f_bavail * found.f_frsize} bytes are free"
    # A file system without a table of files has 0 of 0.
    return f"{nbytes} but no inode is" if found.f_files and not found.f_favail else nbytes


def too_large(path: str, nbytes: int, max_nbytes: int) -> CorruptError:
    """The error for an object with more bytes than it could have."""
    return CorruptError(f"{path} has {nbytes} bytes; expected at most {max_nbytes}")


def too_short(path: str, offset: int, wanted: int, found: int) -> CorruptError:
    """The error for an object that ends before the bytes that were asked for."""
    return CorruptError(
        f"{path}: wanted {wanted} bytes at offset {offset}, found {found}: the object ends early; "
        "it was cut off or never completed"
    )
