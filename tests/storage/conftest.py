import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardkeep.storage import LocalStorage
from tests.storage.faulty_calls import FaultyCalls


@pytest.fixture
def calls() -> FaultyCalls:
    return FaultyCalls()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ckpt"


@pytest.fixture
def storage(folder: Path, calls: FaultyCalls) -> Iterator[LocalStorage]:
    """A durable local storage at `folder`, through `calls`, whose log starts here."""
    with LocalStorage(folder, create=True, calls=calls) as storage:
        calls.log.clear()
        yield storage


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs with the given options, or skips the test where that is not allowed."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def open_fds() -> Callable[[], int]:
    """How many file descriptors this process has open."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system does not list open files under /proc")
    return lambda: len(os.listdir("/proc/self/fd"))
