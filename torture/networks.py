"""How are two hosts made on one machine, and cut off from each other?

Each is a network namespace; a pair of virtual cables joins them. When the cable is cut, nothing is
refused and nothing answers, as when a switch fails.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

_NEW_NETWORK = 0x40000000
_numbers = itertools.count()


@dataclass(frozen=True)
class Hosts:
    """Two hosts, by the names of their namespaces; the Store's address on the first."""

    names: tuple[str, str]
    address: str

    def enter(self, host: int) -> None:
        """Move this process, which has no other thread, to a host."""
        fd = os.open(f"/run/netns/{self.names[host]}", os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(fd)

    def cut(self) -> None:
        """No packet passes any more."""
        _in(self.names[0], "link", "set", "cable", "down")


@contextmanager
def two_hosts() -> Generator[Hosts]:
    """Two hosts that reach each other."""
    number = next(_numbers)
    names = f"sk{os.getpid()}-{number}a", f"sk{os.getpid()}-{number}b"
    try:
        for name in names:
            _ip("netns", "add", name)
            _in(name, "link", "set", "lo", "up")
        _ip("link", "add", "cable", "netns", names[0], "type", "veth",
            "peer", "name", "cable", "netns", names[1])  # fmt: skip
        for host, name in enumerate(names):
            _in(name, "addr", "add", f"10.99.0.{host + 1}/24", "dev", "cable")
            _in(name, "link", "set", "cable", "up")
        yield Hosts(names, "10.99.0.1")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def cannot_network() -> str:
    """Why there can be no such hosts here; empty if there can."""
    if os.geteuid() != 0:
        return "it takes root to make network namespaces"
    if shutil.which("ip") is None:
        return "ip (iproute2) is not installed"
    try:
        with two_hosts():
            return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here ({error.stderr.decode().strip()})"


def _in(name: str, *command: str) -> None:
    _ip("-n", name, *command)


def _ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, capture_output=True)
