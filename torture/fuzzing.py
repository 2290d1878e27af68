"""Does any input make a reader fail in a way that it does not declare, or take time or memory?

The short run changes seeds at random by itself. The long run leaves that to atheris (libFuzzer with
the coverage of Python code), one process for each target; where atheris is not installed, it goes
on as the short one does.
"""

from __future__ import annotations

import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

from torture.campaign import Say, Scale, Tally, replay
from torture.fuzz_targets import CORPUS, TARGETS, undeclared
from torture.mutations import mutated

_RUNS = {"short": 12_000, "long": 10_500_000}
_BATCH = 2_000
_MAX_SECONDS = 1.0
_MAX_NBYTES = 256 * 2**20
_MAX_FINDS = 5
"""How often a target is taken up again after an input that was answered wrongly."""

_STATUS = Path("/proc/self/statm")
FINDS = Path(__file__).parents[1] / "build" / "fuzz"
_DONE = re.compile(r"Done (\d+) runs|stat::number_of_executed_units:\s*(\d+)|^#(\d+)", re.MULTILINE)

Target = Callable[[bytes], None]


class Fuzzing:
    """The campaign. Other targets are for tests."""

    name = "fuzzing"
    promise = "Whatever the bytes, a reader takes them or raises its own error, in 1 s and 256 MB."

    def __init__(self, targets: Mapping[str, Target] = TARGETS) -> None:
        self._targets = targets

    def run(self, scale: Scale, seed: int, say: Say, case: str | None = None) -> Tally:
        tally = Tally(self.name, seed)
        if case is not None:
            name, _, which = case.partition(":")
            self._take(tally, name, [(which, input_of(name, seed, which))])
            return tally
        for name in self._targets:
            finds = sorted((CORPUS / name / "finds").glob("*"))
            self._take(tally, name, [(f"@{one}", one.read_bytes()) for one in finds])
        tally.facts["past finds"] = tally.cases
        by_atheris = scale == "long" and find_spec("atheris") is not None
        tally.facts["engine"] = "atheris" if by_atheris else "own mutations"
        if by_atheris:
            self._run_atheris(tally, _RUNS[scale], say)
        else:
            self._run_mutations(tally, _RUNS[scale], say)
        return tally

    def _take(self, tally: Tally, name: str, inputs: Sequence[tuple[str, bytes]]) -> None:
        for which, data in inputs:
            tally.cases += 1
            wrong = misbehaviour(self._targets[name], data)
            if wrong is not None:
                self._note(tally, name, which, wrong)

    def _note(self, tally: Tally, name: str, which: str, wrong: str) -> None:
        case = f"{name}:{which}"
        tally.violations.append(f"{case} {wrong}  {replay(self.name, tally.seed, case)}")

    def _run_mutations(self, tally: Tally, runs: int, say: Say) -> None:
        each = runs // len(self._targets)
        jobs = [
            _Batch(name, target, tally.seed, start, min(start + _BATCH, each))
            for name, target in self._targets.items()
            for start in range(0, each, _BATCH)
        ]
        for count, (job, found) in enumerate(self._results(jobs)):
            tally.cases += job.stop - job.start
            for which, wrong in found:
                self._note(tally, job.name, which, wrong)
            if count % 100 == 99:
                say(f"{tally.cases} inputs, {len(tally.violations)} violations")

    def _results(self, jobs: Sequence[_Batch]) -> Iterator[tuple[_Batch, list[tuple[str, str]]]]:
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
            yield from zip(jobs, pool.map(_Batch.run, jobs), strict=True)

    def _run_atheris(self, tally: Tally, runs: int, say: Say) -> None:
        each = runs // len(self._targets) + 1
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            act = partial(_fuzz, runs=each, seed=tally.seed)
            for name, result in zip(self._targets, pool.map(act, self._targets), strict=True):
                tally.cases += result.runs
                for path in result.finds:
                    wrong = misbehaviour(self._targets[name], path.read_bytes())
                    # libFuzzer's clock goes on while others have the processor; ours does not.
                    if wrong is not None:
                        self._note(tally, name, f"@{path}", wrong)
                say(f"{name}: {result.runs} runs, {len(result.finds)} inputs written down")


@dataclass(frozen=True)
class _Batch:
    """Changed inputs from `start` to `stop` for one target."""

    name: str
    target: Target
    seed: int
    start: int
    stop: int

    def run(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        forget_peak()
        for number in range(self.start, self.stop):
            wrong = misbehaviour(self.target, input_of(self.name, self.seed, str(number)))
            if wrong is not None:
                found.append((str(number), wrong))
        return found


def input_of(name: str, seed: int, which: str) -> bytes:
    """The input with this number, or that of a file: `@path`."""
    if which.startswith("@"):
        return Path(which[1:]).read_bytes()
    return mutated(_seeds(name), random.Random(f"{seed}/{name}/{which}"))


@cache
def _seeds(name: str) -> tuple[bytes, ...]:
    return tuple(one.read_bytes() for one in sorted((CORPUS / name / "seeds").iterdir()))


def misbehaviour(target: Target, data: bytes) -> str | None:
    """What is wrong with how a target answers an input."""
    here, peak, start = _resident_nbytes(), _peak_nbytes(), time.thread_time()
    wrong = undeclared(target, data)
    seconds, new_peak = time.thread_time() - start, _peak_nbytes()
    grown = new_peak - here if new_peak > peak else 0
    if grown > _MAX_NBYTES:
        forget_peak()
    if wrong is not None:
        return f"raised {wrong}"
    if grown > _MAX_NBYTES:
        return f"took {grown} bytes of memory for {len(data)} bytes"
    if seconds > _MAX_SECONDS:
        return f"took {seconds:.1f} s for {len(data)} bytes"
    return None


def _peak_nbytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident_nbytes() -> int:
    return int(_STATUS.read_text().split()[1]) * resource.getpagesize()


def forget_peak() -> None:
    """The most memory of the process is what it has now: what was before would hide what comes."""
    Path("/proc/self/clear_refs").write_text("5")


@dataclass(frozen=True)
class _Fuzzed:
    runs: int
    finds: Sequence[Path]


def _fuzz(name: str, *, runs: int, seed: int) -> _Fuzzed:
    """So many runs of atheris, which is started again after each input that it stops at."""
    finds = FINDS / name
    finds.mkdir(parents=True, exist_ok=True)
    done, written = 0, list[Path]()
    with tempfile.TemporaryDirectory(prefix="shardkeep-fuzz-") as corpus:
        while done < runs and len(written) < _MAX_FINDS:
            before = set(finds.iterdir())
            ended = subprocess.run(
                [
                    *(sys.executable, "-m", "torture.fuzz_process", name, corpus),
                    str(CORPUS / name / "seeds"),
                    f"-runs={runs - done}",
                    f"-seed={seed + done + 1}",
                    *("-max_len=16384", "-timeout=10", "-rss_limit_mb=512", "-len_control=20"),
                    f"-artifact_prefix={finds}/",
                    *("-print_final_stats=1", "-verbosity=1"),
                ],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                cwd=Path(__file__).parents[1],
            )
            counted = _counted(ended.stderr)
            done += counted
            fresh = sorted(set(finds.iterdir()) - before)
            written += fresh
            # Whoever ends a process of this run only makes it start again.
            if not counted:
                raise RuntimeError(f"atheris did nothing: {ended.stderr[-2000:]}")
    return _Fuzzed(done, written)


def _counted(text: str) -> int:
    return max((int(next(filter(None, match))) for match in _DONE.findall(text)), default=0)
