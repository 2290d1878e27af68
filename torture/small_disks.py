"""How is a file system made whose space can be set to the byte? As a tmpfs of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOMY = 512 * 2**20


@dataclass(frozen=True)
class SmallDisk:
    """A mounted file system."""

    place: Path

    def used(self) -> int:
        """How many bytes are taken."""
        found = os.statvfs(self.place)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def resize(self, nbytes: int = _ROOMY) -> None:
        """Let it have so many bytes in all; it rounds to pages."""
        _run("mount", "-o", f"remount,size={nbytes}", str(self.place))


@contextmanager
def small_disk() -> Generator[SmallDisk]:
    """A roomy one, to be made smaller."""
    place = Path(tempfile.mkdtemp(prefix="shardkeep-small-"))
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={_ROOMY}", "shardkeep", str(place))
        try:
            yield SmallDisk(place)
        finally:
            _run("umount", "-l", str(place))
    finally:
        place.rmdir()


def cannot_mount() -> str:
    """Why there can be none here; empty if there can."""
    if os.geteuid() != 0:
        return "it takes root to mount a file system"
    if shutil.which("mount") is None:
        return "mount is not installed"
    try:
        with small_disk():
            return ""
    except subprocess.CalledProcessError as error:
        return f"a tmpfs cannot be mounted here ({error.stderr.decode().strip()})"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
