"""What may stand in a folder in place of a regular file?"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

Replace = Callable[[Path], None]
"""Puts something else in place of a file."""


def linked_outside(file: Path) -> None:
    """A link to a file with the same content, outside of the folder."""
    target = file.parent.parent / f"outside-{file.parent.name}-{file.name}"
    target.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(target)


def linked_to_passwords(file: Path) -> None:
    """A link to a file of the system."""
    file.unlink()
    file.symlink_to("/etc/passwd")


def linked_inside(file: Path) -> None:
    """A link to a file of the same folder."""
    file.rename(file.with_name("real"))
    file.symlink_to("real")


def linked_to_itself(file: Path) -> None:
    """A link that never ends."""
    file.unlink()
    file.symlink_to(file.name)


def pipe(file: Path) -> None:
    """A pipe: who opens it waits for a writer, for ever."""
    file.unlink()
    os.mkfifo(file)


def endless_device(file: Path) -> None:
    """The device of endless zeros."""
    file.unlink()
    os.mknod(file, 0o666 | stat.S_IFCHR, os.makedev(1, 5))


def folder(file: Path) -> None:
    """A folder."""
    file.unlink()
    file.mkdir()


def socket_file(file: Path) -> None:
    """A socket."""
    file.unlink()
    # A socket's path is short: it is made where we are, and put into place.
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        try:
            os.chdir(file.parent)
            made.bind(file.name)
        finally:
            os.chdir(here)


def hole(nbytes: int) -> Replace:
    """A file that claims `nbytes` bytes and takes next to none on disk."""

    def replace(file: Path) -> None:
        os.truncate(file, nbytes)

    return replace


SPECIAL: dict[str, Replace] = {
    "link-outside": linked_outside,
    "link-to-passwords": linked_to_passwords,
    "link-inside": linked_inside,
    "link-to-itself": linked_to_itself,
    "pipe": pipe,
    "device": endless_device,
    "folder": folder,
    "socket": socket_file,
}
