"""The command line: `shardkeep ls | show | verify | diff | prune | copy`.

Torch is never imported here. Whatever goes wrong is one line on stderr and exit code 2; what was
looked for and found wanting (damage, a difference) is exit code 1.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from shardkeep.errors import InvalidError, ShardkeepError

if TYPE_CHECKING:
    from rich.console import Console

app = App(
    name="shardkeep",
    help=(
        "Look into checkpoints, check, compare, copy and tidy them up.\n\n"
        "Every command prints JSON with --json, and a traceback of what went wrong with --debug."
    ),
    help_format="markdown",
    default_parameter=Parameter(negative=()),
)
app.register_install_completion_command()  # pyright: ignore[reportUnknownMemberType]

Json = Annotated[bool, Parameter(name="--json", help="Print JSON, for programs.")]


@app.command
def ls(run: Path, /, *, json: Json = False) -> int:
    """List the checkpoints of a run: step, state, size, age, metrics.

    Parameters
    ----------
    run
        The run's folder, as given to `Checkpointer`.
    """
    from shardkeep.view.commands import steps_of
    from shardkeep.view.tables import steps_table

    records = steps_of(run)
    if json:
        return _print_json([asdict(record) for record in records])
    _console().print(steps_table(records))
    return 0


@app.command
def show(
    checkpoint: Path,
    key: str | None = None,
    /,
    *,
    stats: bool = False,
    depth: int | None = None,
    json: Json = False,
) -> int:
    """Show what is in a checkpoint, or one tensor and who holds which part of it.

    Parameters
    ----------
    checkpoint
        The checkpoint's folder.
    key
        A tensor, a module, or a pattern such as `model.*.weight`.
    stats
        Read the values: minimum, maximum, mean, deviation, nan and inf.
    depth
        Add up below names of so many parts; a large checkpoint is shown so unless told otherwise.
    """
    from shardkeep.view.commands import all_stats, keys_of, open_checkpoint
    from shardkeep.view.tables import checkpoint_facts, tensor_picture

    with open_checkpoint(checkpoint) as opened:
        keys = keys_of(opened.manifest, key)
        found = all_stats(opened, keys) if stats else None
        if json:
            return _print_json(_described(opened, keys, found))
        console = _console()
        if key is None:
            console.print(checkpoint_facts(opened))
            console.print()
        console.print(_tensors(opened, keys, found, depth))
        if len(keys) == 1 and key is not None:
            console.print()
            console.print(tensor_picture(opened.info(keys[0])))
    return 0


_SHOWN = 200


def _tensors(opened: Any, keys: list[str], stats: Any, depth: int | None) -> Any:
    from shardkeep.view.tables import rows_of, tensors_table

    wanted = set(keys)
    if depth is None and len(keys) > _SHOWN and stats is None:
        depth = 2
    if depth is not None and stats is not None:
        raise InvalidError("--stats are of tensors, --depth adds tensors up: take one of them")
    rows = [row for row in rows_of(opened.manifest, depth) if depth or row.name in wanted]
    if depth is not None:
        rows = [row for row in rows if any(k == row.name or k.startswith(row.name) for k in keys)]
    return tensors_table(rows, stats)


def _described(opened: Any, keys: list[str], stats: Any) -> dict[str, Any]:
    tensors = [asdict(opened.info(key)) for key in keys]
    for tensor in tensors:
        tensor["chunks"] = [{"box": str(box), "file": file} for box, file in tensor["chunks"]]
        if stats is not None:
            one = stats[tensor["key"]]
            tensor["stats"] = {
                "min": one.least,
                "max": one.most,
                "mean": one.mean,
                "std": one.deviation,
                "nan": one.nans,
                "inf": one.infs,
            }
    return {
        "path": opened.path,
        "save_id": opened.save_id,
        "world": opened.manifest.world,
        "metadata": dict(opened.metadata),
        "tensors": tensors,
    }


@app.command
def verify(*checkpoints: Path, json: Json = False) -> int:
    """Read every byte of checkpoints and compare it with its digest. Exit code 1 on damage.

    Parameters
    ----------
    checkpoints
        Folders of checkpoints; a run's folder stands for all of its committed ones.
    """
    from shardkeep.view.commands import committed, open_checkpoint
    from shardkeep.view.words import size_text

    if not checkpoints:
        raise InvalidError("name at least one checkpoint")
    console, outcome = _console(), dict[str, Any]()
    for path in committed(checkpoints):
        with open_checkpoint(path) as opened:
            report = opened.verify()
        outcome[str(path)] = {"nbytes": report.nbytes, "problems": list(report.problems)}
        if not json:
            said = f"{len(report.problems)} problems" if report.problems else "good"
            console.print(f"{path}: {said}, {size_text(report.nbytes)} read", highlight=False)
            for problem in report.problems:
                console.print(f"  {problem}", highlight=False, markup=False)
    if json:
        _print_json(outcome)
    return int(any(one["problems"] for one in outcome.values()))


@app.command
def diff(a: Path, b: Path, key: str | None = None, /, *, json: Json = False) -> int:
    """Compare two checkpoints: names, shapes, dtypes, values. Exit code 1 if they differ.

    Parameters
    ----------
    a
        A checkpoint's folder.
    b
        Another one's.
    key
        Only this tensor, module, or pattern.
    """
    from shardkeep.view.commands import difference, open_checkpoint
    from shardkeep.view.tables import changes_table

    with open_checkpoint(a) as one, open_checkpoint(b) as other:
        found = difference(one, other, key)
    if json:
        _print_json(asdict(found))
        return int(bool(found))
    console = _console()
    for name, keys in ((a, found.only_a), (b, found.only_b)):
        for only in keys:
            console.print(f"only in {name}: {only}", highlight=False, markup=False)
    for text in found.other_kind:
        console.print(text, highlight=False, markup=False)
    if found.changes:
        console.print(changes_table(found.changes))
    console.print(f"{len(found.changes)} tensors differ, {found.equal} are equal", highlight=False)
    return int(bool(found))


@app.command
def prune(
    run: Path,
    /,
    *,
    keep_last: int | None = None,
    keep_every: int | None = None,
    leftovers: bool = False,
    damaged: bool = False,
    yes: bool = False,
    json: Json = False,
) -> int:
    """Remove checkpoints of a run that no rule keeps. Says what would go, and goes on with --yes.

    Parameters
    ----------
    run
        The run's folder.
    keep_last
        Keep so many of the newest.
    keep_every
        Keep steps that this number divides.
    leftovers
        Remove half-written ones, too. Not while a job saves here.
    damaged
        Remove those that cannot be read, too.
    yes
        Do it.
    """
    from shardkeep.plan.retention import Retention
    from shardkeep.view.commands import prune_steps
    from shardkeep.view.words import size_text

    rule = Retention(keep_last, keep_every)
    found = prune_steps(run, rule, leftovers=leftovers, damaged=damaged, dry_run=not yes)
    going = [*found.steps, *found.leftovers, *found.damaged]
    if json:
        return _print_json({**_fields(found), "removed": yes})
    verb = "removed" if yes else "would be removed"
    names = f": steps {', '.join(map(str, sorted(going)))}" if going else ""
    _console().print(f"{len(going)} checkpoints {verb}{names}", highlight=False)
    if going and not yes:
        _console().print(f"{size_text(found.nbytes)} in all; --yes does it", highlight=False)
    return 0


@app.command
def copy(source: Path, target: Path, /, *, json: Json = False) -> int:
    """Copy a checkpoint, every block checked on its way; an existing one is never replaced.

    Parameters
    ----------
    source
        The checkpoint's folder.
    target
        Where it goes.
    """
    from shardkeep.view.commands import copy_to
    from shardkeep.view.words import size_text

    nbytes = copy_to(source, target)
    if json:
        return _print_json({"source": str(source), "target": str(target), "nbytes": nbytes})
    _console().print(f"{size_text(nbytes)} copied and checked", highlight=False)
    return 0


def _fields(found: Any) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__struct_fields__}


def _console() -> Console:
    from rich.console import Console

    # What is piped must not be folded to the width of a window that nobody sees.
    return Console(width=None if sys.stdout.isatty() else 200)


def _print_json(value: Any) -> int:
    import json

    print(json.dumps(value, indent=2, default=str))
    return 0


def main(arguments: list[str] | None = None) -> None:
    """Run a command; exits with its code."""
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    try:
        code = app(
            [argument for argument in given if argument != "--debug"], result_action="return_value"
        )
    except ShardkeepError as error:
        if debug:
            raise
        print(f"shardkeep: {error}", file=sys.stderr)
        code = 2
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        sys.stderr.close()
        code = 0
    except KeyboardInterrupt:
        code = 130
    sys.exit(code if isinstance(code, int) else 0)
