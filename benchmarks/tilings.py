"""How long does it take to check that boxes tile a tensor, beside PyTorch's own check?

    python -m benchmarks.tilings

shows more than the comparison: very many boxes, and joins of tilings. PyTorch checks pairs with
a sweep line, then compares volumes. It answers yes or no; so the same boxes, all of them right,
go to both.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec._internals import (
    check_tensor,
    validate_non_overlapping_shards_metadata,
)

from benchmarks.contest import Case
from shardkeep.boxes import Box, check_tiling, find_overlaps, meetings
from shardkeep.testing.box_strategies import random_tiling

REPETITIONS = 5
LARGE = 100_000
# As many as PyTorch checks in a second or so.
BESIDE_TORCH = {
    "irregular 2-D": 4_000,
    "irregular 3-D": 4_000,
    "stripes": 8_000,
    "stripes and a row": 1_000,
}
SHAPES = {
    "irregular 2-D": (2**20, 2**20),
    "irregular 3-D": (2**14, 2**14, 2**14),
    "stripes": (2**20, 4096),
    "stripes and a row": (4096, 2**20),
}


def boxes_for(kind: str, count: int, seed: int = 0) -> list[Box]:
    rng = np.random.default_rng(seed)
    if kind == "stripes":
        length, width = SHAPES[kind]
        return [Box((start, 0), (stop, width)) for start, stop in spans(length, count, rng)]
    if kind == "stripes and a row":
        # A sweep along dim 0 meets all stripes at once.
        height, length = SHAPES[kind]
        stripes = spans(length, count - 1, rng)
        row = Box((height - 1, 0), (height, length))
        return [*(Box((0, start), (height - 1, stop)) for start, stop in stripes), row]
    return random_tiling(SHAPES[kind], count, rng)


def spans(length: int, count: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    cuts = np.sort(rng.choice(np.arange(1, length), count - 1, replace=False)).tolist()
    return list(zip([0, *cuts], [*cuts, length], strict=True))


class CheckTiling(Case):
    ranks = 1

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count = kind, count
        self.task = f"check a tiling: {kind}"
        self.size = f"{count:,} boxes"

    def tiny(self) -> Case:
        return CheckTiling(self.kind, 300)

    def prepare(self) -> None:
        self.shape = SHAPES[self.kind]
        self.boxes = boxes_for(self.kind, self.count)
        self.shards = [
            ShardMetadata(list(box.start), list(box.shape), "rank:0/cpu") for box in self.boxes
        ]

    def theirs(self) -> bool:
        validate_non_overlapping_shards_metadata(self.shards)
        check_tensor(self.shards, self.shape)
        return True

    def ours(self) -> bool:
        return check_tiling(self.shape, self.boxes).is_tiling

    def outcome(self, result: bool) -> Sequence[torch.Tensor]:
        return [torch.tensor(result)]


def cases() -> list[Case]:
    return [CheckTiling(kind, count) for kind, count in BESIDE_TORCH.items()]


def seconds(act: Callable[[], object], repetitions: int = REPETITIONS) -> list[float]:
    """The time of each repetition, fastest first."""
    times: list[float] = []
    for _ in range(repetitions):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return sorted(times)


def spread(times: Sequence[float]) -> str:
    middle, worst = times[len(times) // 2], times[-1]
    return f"{1e3 * middle:9.1f} ms  ({1e3 * times[0]:.1f} to {1e3 * worst:.1f})"


def check_many(kind: str) -> None:
    case = CheckTiling(kind, LARGE)
    case.prepare()
    if not case.ours():
        raise AssertionError("a tiling was not taken for one")
    print(f"{kind:14}{LARGE:8}  shardkeep {spread(seconds(case.ours))}")


def join_many(kind: str) -> None:
    boxes, others = boxes_for(kind, LARGE), boxes_for(kind, LARGE, seed=1)
    found = len(meetings(boxes, others))
    apart = seconds(lambda: find_overlaps(boxes), 2)
    print(f"{kind:14}{LARGE:8}  no overlaps found     {spread(apart)}")
    met = seconds(lambda: meetings(boxes, others), 2)
    print(f"{kind:14}{LARGE:8}  {found:9} meetings    {spread(met)}")


def main() -> None:
    print(f"Median of {REPETITIONS} repetitions (fastest to slowest).\n\nCheck a tiling")
    for kind in SHAPES:
        check_many(kind)
    print("\nJoin two tilings")
    for kind in SHAPES:
        join_many(kind)


if __name__ == "__main__":
    main()
