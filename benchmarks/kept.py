"""Where do figures stay between a run and the page that shows them?"""

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.places import BUILD

# Tracked: some workloads can be measured anew, and the page still has all.
FULL = Path(__file__).with_name("kept.json")
QUICK = BUILD / "bench-quick.json"
PACKAGES = (
    "torch",
    "safetensors",
    "orbax-checkpoint",
    "megatron-core",
    "tensorstore",
    "torchsnapshot",
    "torch_checkpointing",
)


@dataclass(frozen=True)
class Kept:
    """What one workload's last whole run left."""

    title: str
    command: str
    date: str
    commit: str
    seconds: float
    machine: Mapping[str, str]
    figures: Sequence[Figure]


def read(path: Path) -> dict[str, Kept]:
    """By workload; empty if nothing was kept yet."""
    if not path.exists():
        return {}
    return {name: _from_json(one) for name, one in json.loads(path.read_text()).items()}


def _from_json(found: dict[str, Any]) -> Kept:
    figures = [Figure.from_json(one) for one in found["figures"]]
    return Kept(**{**found, "figures": figures})


def write(path: Path, several: Mapping[str, Kept]) -> None:
    """All or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    made = {name: _as_json(several[name]) for name in sorted(several)}
    fresh.write_text(json.dumps(made, indent=1) + "\n")
    fresh.replace(path)


def _as_json(kept: Kept) -> dict[str, Any]:
    return {**asdict(kept), "figures": [one.as_json() for one in kept.figures]}


def kept_now(
    title: str, command: str, commit: str, seconds: float, figures: Sequence[Figure]
) -> Kept:
    """A run that ended just now, of the code that was there when it began."""
    date = time.strftime("%Y-%m-%d")
    return Kept(title, command, date, commit, seconds, _machine(), figures)


def _machine() -> dict[str, str]:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": str(cores),
        "processor": _processor(),
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"Linux {platform.release()}",
        "Python": platform.python_version(),
        **{name: one for name in PACKAGES if (one := _version(name))},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
