"""`shardkeep ls`."""

from __future__ import annotations

from pathlib import Path

from shardkeep.cli.printing import has_colour, print_json, window_width


def ls(run: Path, /, *, json: bool = False) -> int:
    """List the checkpoints of a run: step, state, size, age, ranks, metrics.

    Half-written means that a save was broken off, or is still under way.

    Parameters
    ----------
    run
        The run's folder or URL, as given to `Checkpointer`.
    json
        Print JSON, for programs.
    """
    from shardkeep.view.listing import steps_of

    records = steps_of(run)
    if json:
        from dataclasses import asdict

        return print_json([asdict(record) for record in records])
    from shardkeep.view.step_table import steps_text

    print(steps_text(records, width=window_width(), colour=has_colour()))
    return 0
