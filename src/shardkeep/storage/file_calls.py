"""Which system calls does the local storage make? All go through here.

So a test can make the Nth call of a kind fail or stop short, and record what a save does.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import sys
from collections.abc import Sequence


class FileCalls:
    """The calls as the operating system offers them. Names are relative to `dir_fd`.

    Python repeats a call that a signal interrupts (PEP 475); short reads and writes are left to
    the caller.
    """

    def open(self, name: str, flags: int, *, dir_fd: int | None = None) -> int:
        return os.open(name, flags | os.O_CLOEXEC, 0o666, dir_fd=dir_fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
        return os.pread(fd, nbytes, offset)

    def preadv(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        return os.preadv(fd, views, offset)

    def pwritev(self, fd: int, views: Sequence[memoryview], offset: int) -> int:
        return os.pwritev(fd, views, offset)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def link(self, name: str, new_name: str, *, dir_fd: int) -> None:
        os.link(name, new_name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)

    def rename(self, name: str, new_name: str, *, dir_fd: int) -> None:
        os.rename(name, new_name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def move(self, name: str, new_name: str, *, dir_fd: int, new_dir_fd: int) -> None:
        os.rename(name, new_name, src_dir_fd=dir_fd, dst_dir_fd=new_dir_fd)

    def truncate(self, fd: int, nbytes: int) -> None:
        os.ftruncate(fd, nbytes)

    def unlink(self, name: str, *, dir_fd: int) -> None:
        os.unlink(name, dir_fd=dir_fd)

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def lstat(self, name: str, *, dir_fd: int) -> os.stat_result:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def flock(self, fd: int, operation: int) -> None:
        fcntl.flock(fd, operation)

    def is_mine_alone(self, fd: int) -> bool:
        """Whether no other descriptor and no mapping of this host is of the same file."""
        try:
            # Whoever opens it in this moment has a signal sent to us: one that nobody dies of.
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            return False
        return True

    def file_system(self, fd: int) -> int:
        """The number by which Linux knows the kind of file system; 0 if it is not to be learnt."""
        if not sys.platform.startswith("linux"):
            return 0
        import ctypes

        # The number comes first, as long as a word; the rest of the struct is not read.
        found = (ctypes.c_long * 64)()
        if ctypes.CDLL(None).fstatfs(fd, ctypes.byref(found)) != 0:
            return 0
        return found[0] & 0xFFFFFFFF

    def listdir(self, fd: int) -> list[str]:
        return os.listdir(fd)

    def fstatvfs(self, fd: int) -> os.statvfs_result:
        return os.fstatvfs(fd)

    def map(self, fd: int, nbytes: int) -> mmap.mmap:
        if sys.version_info >= (3, 13):
            # Else each mapping keeps a file descriptor of its own.
            return mmap.mmap(fd, nbytes, prot=mmap.PROT_READ, trackfd=False)
        return mmap.mmap(fd, nbytes, prot=mmap.PROT_READ)
