"""How fast is shardkeep, beside other libraries and the raw limit?

    python -m benchmarks [W1 W6 ...] [--quick] [--repetitions N] [--contenders NAME ...]
                         [--profile]

A workload alone takes a minute or a few; `W1:tmpfs` is one setting of it. Everything is printed;
whole workloads are also kept in benchmarks/kept.json, from which `python -m benchmarks.page` makes
the page. With --profile nothing is: perf, which says where the CPU time goes, slows everyone down.
"""

import argparse
import logging
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.asked import Asked
from benchmarks.claims import claims_of
from benchmarks.figures import Figure
from benchmarks.kept import FULL, QUICK, kept_now, read, write
from benchmarks.profiles import Profile, profiled, tables_of
from benchmarks.tables import claims_table, console, figures_table, notes
from benchmarks.workloads.every import WORKLOADS, Workload
from torture.kept import present_commit


def main() -> None:
    """Run what was asked for."""
    options = _options()
    # What is under way is undone: processes end, folders go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    asked = Asked(options.quick, options.repetitions, options.contenders, profiled=options.profile)
    figures: list[Figure] = []
    for workload, setting in _chosen(options.workloads):
        figures += _run(workload, replace(asked, setting=setting))
    measured = [claim for claim in claims_of(figures) if claim.reached is not None]
    console().print(claims_table(measured))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("workloads", nargs="*", help="such as W1, or W1:tmpfs; all if none")
    parser.add_argument("--quick", action="store_true", help="small states, few repetitions")
    parser.add_argument("--repetitions", type=int, help="of each contender")
    parser.add_argument("--contenders", nargs="*", default=(), help="starts of their names")
    parser.add_argument("--profile", action="store_true", help="where CPU time goes, by perf")
    return parser.parse_args()


def _chosen(words: Sequence[str]) -> list[tuple[Workload, str]]:
    """Each with the part of a setting's name that was asked for."""
    chosen: list[tuple[Workload, str]] = []
    for word in words or WORKLOADS:
        name, _, setting = word.partition(":")
        if name not in WORKLOADS:
            raise SystemExit(f"there is no workload {name}: name some of {', '.join(WORKLOADS)}")
        chosen.append((WORKLOADS[name], setting))
    return chosen


def _run(workload: Workload, asked: Asked) -> list[Figure]:
    commit, start = present_commit(), time.perf_counter()
    screen = console()
    with screen.status(f"{workload.name}: {workload.title}"):
        figures, profiles = _measured(workload, asked)
    seconds = time.perf_counter() - start
    title = f"{workload.name}: {workload.title}" + (" (quick: less)" if asked.quick else "")
    screen.print(figures_table(f"{title}, measured in {seconds:.0f} s", figures))
    for note in notes(figures):
        screen.print(note, highlight=False)
    if asked.profiled:
        none = "there is no profile: no turns are timed here"
        screen.print(*tables_of(profiles) if profiles else [none])
    elif not asked.contenders:
        _keep(workload, asked, commit, seconds, figures)
    return figures


def _measured(workload: Workload, asked: Asked) -> tuple[list[Figure], list[Profile]]:
    """Profiles if they were asked for."""
    if asked.profiled:
        return profiled(lambda: workload.run(asked))
    return workload.run(asked), []


def _keep(
    workload: Workload, asked: Asked, commit: str, seconds: float, figures: Sequence[Figure]
) -> None:
    """At once: a run that is broken off keeps what it has. Other settings stay as they were."""
    path = QUICK if asked.quick else FULL
    several = read(path)
    fresh = {one.setting for one in figures}
    before = several[workload.name].figures if workload.name in several else ()
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    stale = [one for one in before if asked.setting and one.setting not in fresh]
    kept = kept_now(workload.title, command, commit, seconds, [*stale, *figures])
    write(path, {**several, workload.name: kept})


if __name__ == "__main__":
    main()
