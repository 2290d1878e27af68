"""Does a run whose processes are killed, and that is resumed, end with the bits of one left alone?

    python -m examples.resume_proof

For each parallelism, `train_gpt.py` runs twice on four processes, with dropout. One run is left
alone. Of the other, some processes get SIGKILL, once when a checkpoint is complete and once in the
middle of a save, and each time the same command is given again. Then the last checkpoints of both
are compared: every tensor of the model and the optimizer, all values, and what each rank keeps for
itself, its random states and its position in the data.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

import shardkeep as sk
from examples.launch import torchrun

WAYS = ("ddp", "fsdp", "hsdp", "tp", "fsdp-tp")
RANKS, STEPS, SAVE_EVERY = 4, 20, 5
OF_EACH_RANK = ("rng", "data.taken")
# What a kill may hit after a save has begun, on a machine that is busy: write, commit, removal.
SAVE_SECONDS = 0.2
MAX_SECONDS = 240.0


class Job(Protocol):
    """Processes that train together."""

    returncode: int | None

    def poll(self) -> int | None:
        """The exit code, once all processes are gone; those of a job with a dead one are ended."""
        ...

    def workers(self) -> Mapping[int, int]:
        """The process of each rank."""
        ...


Start = Callable[..., AbstractContextManager[Job]]


class UnexpectedError(Exception):
    """A run did not end as it should have."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Who gets SIGKILL, and when: so long after a save has begun, or is complete."""

    ranks: tuple[int, ...]
    saves: int
    """Which save from the start of the processes on."""
    is_complete: bool
    seconds: float = 0.0

    @classmethod
    def in_a_save(cls, dice: random.Random) -> Kill:
        """At any moment of a save: any rank, or two of them."""
        ranks = dice.choice(([0], dice.sample(range(RANKS), 1), dice.sample(range(RANKS), 2)))
        seconds = dice.choice((0.0, dice.uniform(0, SAVE_SECONDS)))
        return cls(tuple(sorted(ranks)), 1, False, seconds)


@dataclass(frozen=True, slots=True)
class Broken:
    """A run after a kill."""

    kill: Kill
    step: int
    """The step that the kill waited for."""
    newest: int
    """The run's newest checkpoint when all processes were gone; 0 if there was none."""

    @property
    def when(self) -> str:
        if self.kill.is_complete:
            return f"after step {self.step}"
        how = "saving" if self.newest < self.step else "ending the save of"
        return f"{how} step {self.step}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two checkpoints have in common, and what differs."""

    tensors: int
    nbytes: int
    differing: tuple[str, ...]
    """Names of tensors and of values."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A run that was left alone, and one that was killed several times."""

    way: str
    broken: tuple[Broken, ...]
    compared: Comparison

    @property
    def verdict(self) -> str:
        if self.compared.differing:
            return f"[red]{len(self.compared.differing)} values differ"
        return f"[green]same bits[/] ({self.compared.tensors} tensors)"


def prove(way: str, kills: Sequence[Kill], folder: Path, start: Start = torchrun) -> Proof:
    """Train both runs below `folder`, which must be empty, and compare how they end."""
    folder.mkdir(parents=True, exist_ok=True)
    alone, killed = folder / "alone", folder / "killed"
    with start(alone, *options(way), processes=RANKS, log=folder / "alone.log") as job:
        broken = [break_off(killed, way, kill, start) for kill in kills]
        finish(killed, way, start)
        require_success(job, folder / "alone.log")
    return Proof(way, tuple(broken), compare(last_of(alone), last_of(killed)))


def options(way: str, *, pause: float = 0.0) -> list[object]:
    return [
        *("--parallel", way, "--steps", STEPS, "--save-every", SAVE_EVERY),
        *("--dropout", 0.1, "--pause", pause),
    ]


def break_off(run: Path, way: str, kill: Kill, start: Start) -> Broken:
    """Start the run's processes, kill some at the moment that is meant, wait for all to be gone."""
    before = newest_of(run)
    step = before + SAVE_EVERY * kill.saves
    folder, log = path_of(run, step), run.with_suffix(".log")
    known = names_in(folder)
    # Time to hit the moment that is meant, however fast the machine is.
    with start(run, *options(way, pause=0.1), processes=RANKS, log=log) as job:
        for _ in until_over(job):
            names = names_in(folder) - known
            has_begun = any(name.endswith(".safetensors") for name in names)
            if "manifest.json" in names or (has_begun and not kill.is_complete):
                break
        time.sleep(kill.seconds)
        workers = job.workers()
        if job.poll() is not None or len(workers) < RANKS:
            raise UnexpectedError(f"{run} was over before the kill{end_of(log)}")
        for rank in kill.ranks:
            os.kill(workers[rank], signal.SIGKILL)
        for _ in until_over(job):
            continue
        if job.returncode == 0:
            raise UnexpectedError(f"nobody noticed that ranks of {run} were killed")
    return Broken(kill, step, newest_of(run))


def finish(run: Path, way: str, start: Start) -> None:
    """Start the run's processes once more, and let them come to the last step."""
    log = run.with_suffix(".log")
    with start(run, *options(way), processes=RANKS, log=log) as job:
        require_success(job, log)


def until_over(job: Job) -> Iterator[None]:
    """Again and again, as long as one of the processes is there."""
    deadline = time.monotonic() + MAX_SECONDS
    while job.poll() is None:
        if time.monotonic() > deadline:
            raise UnexpectedError(f"a job was not over within {MAX_SECONDS:g} s")
        yield
        time.sleep(0.002)


def require_success(job: Job, log: Path) -> None:
    for _ in until_over(job):
        continue
    if job.returncode != 0:
        raise UnexpectedError(f"exit code {job.returncode}{end_of(log)}")


def end_of(log: Path) -> str:
    return f"; its output, from {log}:\n\n{log.read_text()[-4000:]}"


# What lies on the disk


def path_of(run: Path, step: int) -> Path:
    return run / f"step-{step:08d}"


def names_in(folder: Path) -> set[str]:
    return set(os.listdir(folder)) if folder.is_dir() else set()


def newest_of(run: Path) -> int:
    return sk.Checkpointer(run).latest() or 0 if run.is_dir() else 0


def last_of(run: Path) -> Path:
    path = path_of(run, STEPS)
    if newest_of(run) != STEPS:
        raise UnexpectedError(f"{run} has no checkpoint of step {STEPS}")
    return path


def compare(one: Path, other: Path) -> Comparison:
    """Two checkpoints, bit by bit; every byte is checked against its digest, too."""
    with sk.open(one) as a, sk.open(other) as b:
        values_a, values_b = values_of(a), values_of(b)
        found = sorted(values_a.keys() ^ values_b.keys())
        found += [key for key in values_a if key in values_b and not same(values_a, values_b, key)]
        if a.manifest.tree != b.manifest.tree and not found:
            found.append("the structure")
        return Comparison(len(a), sum(a[key].nbytes for key in a), tuple(found))


def values_of(checkpoint: sk.Checkpoint) -> dict[str, Any]:
    """Tensors and other values by their keys; those that each rank has, for each rank."""
    found, _ = sk.flatten_state_dict(checkpoint.tree())
    for key in OF_EACH_RANK:
        for rank in range(checkpoint.manifest.world):
            found[f"{key} of rank {rank}"] = checkpoint.per_rank(key, rank)
    return found


def same(values_a: Mapping[str, Any], values_b: Mapping[str, Any], key: str) -> bool:
    one, other = values_a[key], values_b[key]
    if not (isinstance(one, sk.StoredTensor) and isinstance(other, sk.StoredTensor)):
        return type(one) is type(other) and one == other
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return one.numpy().tobytes() == other.numpy().tobytes()


# For people


def main(console: Console) -> int:
    """The exit code: 0 if all runs end with the same bits."""
    args = parse_args()
    shutil.rmtree(args.folder, ignore_errors=True)
    proofs: list[Proof] = []
    for number, way in enumerate(args.parallel or WAYS):
        dice = random.Random(f"{args.seed}/{way}")
        kills = [Kill((number % RANKS,), 2, True), Kill.in_a_save(dice)]
        with console.status(f"{way}: two runs, one is killed twice"):
            proofs.append(prove(way, kills, args.folder / way))
    console.print(table(proofs))
    is_same = not any(proof.compared.differing for proof in proofs)
    for proof in proofs:
        for key in proof.compared.differing:
            console.print(f"{proof.way}: {key} differs", style="red", markup=False)
    return 0 if is_same else 1


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill runs, resume them, compare the last bits.")
    parser.add_argument("parallel", nargs="*", help=f"of {WAYS}; all if none is named")
    parser.add_argument("--folder", type=Path, default=Path("build/resume-proof"))
    parser.add_argument("--seed", type=int, default=1, help="of the moments in a save")
    return parser.parse_args()


def table(proofs: Sequence[Proof]) -> Table:
    """A line for each kill, and the outcome in the last of a run."""
    found = Table(box=None, padding=(0, 2, 0, 0), header_style="italic", pad_edge=False)
    for name in ("parallel", "SIGKILL to", "when", "goes on after", "step 20, both runs"):
        found.add_column(name)
    for proof in proofs:
        for broken in proof.broken:
            is_last = broken is proof.broken[-1]
            found.add_row(
                proof.way if broken is proof.broken[0] else "",
                f"{'ranks' if len(broken.kill.ranks) > 1 else 'rank'} "
                + " and ".join(map(str, broken.kill.ranks)),
                broken.when,
                f"step {broken.newest}" if broken.newest else "the start",
                proof.verdict if is_last else "",
            )
    return found


if __name__ == "__main__":
    raise SystemExit(main(Console(highlight=False)))
