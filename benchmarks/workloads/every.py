"""Which workloads are there?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from benchmarks.asked import Asked
from benchmarks.figures import Figure
from benchmarks.workloads import (
    background,
    four_processes,
    memory,
    one_process,
    planning,
    resharding,
    small_tensors,
    start,
)

_MODULES = (
    one_process,
    four_processes,
    small_tensors,
    resharding,
    planning,
    background,
    memory,
    start,
)


@dataclass(frozen=True)
class Workload:
    """A question, and the measurement that answers it."""

    name: str
    title: str
    run: Callable[[Asked], list[Figure]]


def _workload(module: ModuleType) -> Workload:
    return Workload(module.NAME, module.TITLE, module.run)


WORKLOADS: Mapping[str, Workload] = {one.name: one for one in map(_workload, _MODULES)}
