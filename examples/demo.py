"""Does a run that is killed, and resumed on other processes, learn what it would have learned?

Run it with `make demo`. One run is left alone. Another loses a worker to SIGKILL, goes on with
tensor parallelism on two processes, is stopped by SIGTERM, and ends on three. Their losses must be
the same, up to rounding: `build/demo/report.html` shows them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from demo_picture import Outcome, Phase, Step, largest_difference, page, picture
from launch import Torchrun, torchrun
from rich.console import Console
from rich.table import Table

FOLDER = Path("build/demo")
STEPS = 100
# Sums of float32 in another order differ in their last bits, and training spreads that.
TOLERANCE = 1e-4
PHASE_SECONDS = 300
DEADLY, POLITE = signal.SIGKILL, signal.SIGTERM

PHASES = (
    Phase("alone", "left alone", 4, "fsdp", run="whole", save_every=0),
    Phase("killed", "killed", 4, "fsdp", signal=DEADLY, at_step=36),
    Phase("stopped", "resumed on 2", 2, "tp", signal=POLITE, at_step=63),
    Phase("ended", "resumed on 3", 3, "fsdp"),
)


class UnexpectedError(Exception):
    """A phase did not go as the demo says."""


def main(console: Console) -> int:
    """The exit code: 0 if both runs have the same losses."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    story = Story(console)
    try:
        whole, *parts = [story.play(phase) for phase in PHASES]
    except UnexpectedError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    difference = largest_difference(whole, parts)
    console.print("", table([whole, *parts]), "", sep="\n")
    FOLDER.joinpath("losses.svg").write_text(picture(whole, parts))
    FOLDER.joinpath("report.html").write_text(page(whole, parts, tolerance=TOLERANCE))
    is_same = difference <= TOLERANCE
    console.print(
        f"Largest difference between the two runs' losses: {difference:.1e} "
        + ("[bold green](rounding)" if is_same else f"[bold red](more than {TOLERANCE:g})")
    )
    console.print(f"In pictures: {FOLDER / 'report.html'}   {story.seconds:.0f} s in all")
    return 0 if is_same else 1


class Story:
    """Plays phases, one after the other, and says what happens."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.begun = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def tell(self, text: str) -> None:
        self.console.print(f"[dim]{self.seconds:5.1f} s[/]  {text}")

    def play(self, phase: Phase) -> Outcome:
        """Run a phase to its end; raises if that is not the end that it should have."""
        self.tell(f"[bold]{phase.title}[/]: {phase.processes} processes, {phase.way}")
        newest = max(saved_steps(phase), default=0)
        with start(phase) as process:
            steps = self._watch(phase, process)
        outcome = Outcome(phase, tuple(steps), tuple(saved_steps(phase)))
        problem = problem_of(outcome, newest, process.returncode)
        if problem:
            log = log_of(phase).read_text()[-8000:]
            raise UnexpectedError(f"{problem}\nIts output, from {log_of(phase)}:\n\n{log}")
        self.tell(f"  {outcome.ending}")
        return outcome

    def _watch(self, phase: Phase, process: Torchrun) -> list[Step]:
        """Tell of some steps, send the signal after the right one; all steps when it is over."""
        told, sent, deadline = 0, False, time.monotonic() + PHASE_SECONDS
        while process.poll() is None:
            steps = steps_of(phase)
            last = steps[-1] if steps else None
            if last is not None and (not told or last.number >= told + 20):
                if not told and steps[0].number > 1:
                    self.tell(f"  goes on after step {steps[0].number - 1}")
                told = last.number
                self.tell(f"  step {told}, loss {last.loss:.3f}")
            if phase.signal and not sent and last is not None and last.number >= phase.at_step:
                self._send(phase.signal, process)
                sent = True
            if time.monotonic() > deadline:
                raise UnexpectedError(f"{phase.title}: not over within {PHASE_SECONDS} s")
            time.sleep(0.01)
        return steps_of(phase)

    def _send(self, number: signal.Signals, process: Torchrun) -> None:
        if number == DEADLY:
            rank, victim = max(process.workers().items())
            self.tell(f"  [red]SIGKILL[/] to rank {rank}, process {victim}")
            os.kill(victim, number)
        else:
            self.tell("  [yellow]SIGTERM[/] to torchrun, as a scheduler sends it")
            process.send_signal(number)


def start(phase: Phase) -> AbstractContextManager[Torchrun]:
    """The processes of a phase; none is left afterwards."""
    return torchrun(
        FOLDER / phase.run,
        *("--parallel", phase.parallel, "--steps", STEPS),
        *("--save-every", phase.save_every, "--losses", losses_of(phase)),
        # Time to hit the step that is meant, however fast the machine is.
        *("--pause", 0.03 if phase.signal else 0),
        processes=phase.processes,
        log=log_of(phase),
    )


def losses_of(phase: Phase) -> Path:
    return FOLDER / f"{phase.name}.jsonl"


def log_of(phase: Phase) -> Path:
    return FOLDER / f"{phase.name}.log"


def steps_of(phase: Phase) -> list[Step]:
    """What the phase has written down so far; a line that is not complete yet does not count."""
    try:
        lines = losses_of(phase).read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    values = [json.loads(line) for line in lines if line.endswith("\n")]
    return [Step(it["step"], it["loss"], it["seconds"], it["blocked"]) for it in values]


def saved_steps(phase: Phase) -> list[int]:
    """The run's complete checkpoints, as they lie on the disk after the phase."""
    manifests = (FOLDER / phase.run).glob("step-*/manifest.json")
    return sorted(int(it.parent.name.removeprefix("step-")) for it in manifests)


def problem_of(outcome: Outcome, newest: int, code: int) -> str:
    """What is wrong with a phase that found a checkpoint of step `newest`; empty if nothing is."""
    phase, steps = outcome.phase, outcome.steps
    if not steps:
        return f"{phase.title}: it made no step (exit code {code})"
    first, last = steps[0], steps[-1]
    if first.number != newest + 1:
        return f"{phase.title}: it began with step {first.number}, its checkpoint is of {newest}"
    if phase.signal == DEADLY:
        return "" if code != 0 else f"{phase.title}: torchrun did not notice"
    if phase.signal == POLITE:
        is_kept = last.blocked is not None and last.number in outcome.kept
        return "" if is_kept else f"{phase.title}: step {last.number} has no checkpoint"
    if code != 0 or last.number != STEPS:
        return f"{phase.title}: exit code {code} after step {last.number} of {STEPS}"
    return ""


def table(outcomes: Sequence[Outcome]) -> Table:
    """One line for each phase."""
    found = Table(box=None, padding=(0, 2, 0, 0), header_style="italic", pad_edge=False)
    for name in Outcome.COLUMNS:
        found.add_column(name, justify="right" if name in Outcome.NUMBERS else "left")
    for outcome in outcomes:
        found.add_row(*outcome.cells)
    return found


if __name__ == "__main__":
    raise SystemExit(main(Console(highlight=False)))
