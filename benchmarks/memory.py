"""How does the half of shardkeep that lives in memory compare with PyTorch's own functions?

    python -m benchmarks.memory [--quick] [words of a task ...]

Four gloo processes on this machine do each task with both, turn by turn, and check that the
results are equal. Peak memory is taken in fresh processes. The figures go to
build/bench/memory.json, too.
"""

import argparse
from pathlib import Path

from rich.console import Console

from benchmarks import sharded_tensors, state_dicts, tilings
from benchmarks.contest import Case, compare
from benchmarks.report import keep, show

KEPT_AT = Path(__file__).parents[1] / "build" / "bench" / "memory.json"


def chosen(words: list[str], quick: bool) -> list[Case]:
    """The cases whose task or size has one of the words; all if there are none."""
    every = [*state_dicts.cases(quick), *sharded_tensors.cases(quick), *tilings.cases()]
    return [
        case
        for case in every
        if not words or any(word in f"{case.task} {case.size}" for word in words)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--quick", action="store_true", help="smaller, and fewer repetitions")
    parser.add_argument("words", nargs="*", help="only tasks that have one of these words")
    options = parser.parse_args()
    console = Console(width=None if Console().is_terminal else 130)
    contests = []
    for case in chosen(options.words, options.quick):
        with console.status(f"{case.task}, {case.size}"):
            contests.append(compare(case, *((3, 1) if options.quick else (15, 4))))
    show(contests, console)
    keep(contests, KEPT_AT)


if __name__ == "__main__":
    main()
