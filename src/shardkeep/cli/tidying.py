"""`shardkeep prune`."""

from __future__ import annotations

from pathlib import Path

from shardkeep.cli.printing import print_json, print_lines
from shardkeep.view.words import count_text, size_text


def prune(
    run: Path,
    /,
    *,
    keep_last: int | None = None,
    keep_every: int | None = None,
    leftovers: bool = False,
    damaged: bool = False,
    yes: bool = False,
    json: bool = False,
) -> int:
    """Remove checkpoints of a run that no rule keeps.

    Says what would go, and removes it with --yes.

    Example:

      shardkeep prune runs/a --keep-last 3 --keep-every 1000

    Parameters
    ----------
    run
        The run's folder or URL.
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
    json
        Print JSON, for programs.
    """
    from shardkeep.plan.retention import Retention
    from shardkeep.view.tidying import prune_steps

    rule = Retention(keep_last, keep_every)
    found = prune_steps(run, rule, leftovers=leftovers, damaged=damaged, dry_run=not yes)
    going = [*found.steps, *found.leftovers, *found.damaged]
    if json:
        fields = {name: getattr(found, name) for name in found.__struct_fields__}
        return print_json({**fields, "removed": yes})
    verb = "removed" if yes else "would be removed"
    names = f": steps {', '.join(map(str, sorted(going)))}" if going else ""
    print_lines([f"{count_text(len(going), 'checkpoint')} {verb}{names}"])
    if found.spare_nbytes:
        print_lines([f"{size_text(found.spare_nbytes)} of spare files {verb}"])
    if going and not yes:
        print_lines([f"{size_text(found.nbytes)} in all; --yes does it"])
    return 0
