"""How are words on the command line parsed? Commands are imported when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cyclopts import App, Parameter

import shardkeep
from shardkeep.cli.table import COMMANDS


def make_app() -> App:
    """The parser."""
    app = App(
        name="shardkeep",
        version=shardkeep.__version__,
        help="Look into checkpoints, check, compare, translate and tidy them up.",
        help_format="plaintext",
        default_parameter=Parameter(negative=(), show_default=False),
    )
    for one in (command for commands in COMMANDS.values() for command in commands):
        app.command(f"shardkeep.cli.{one.where}", name=one.name)
    app.command(_completion(app), name="--install-completion", show=False)
    return app


def _completion(app: App) -> Any:
    def install(*, shell: str | None = None, output: Path | None = None) -> int:
        """Teach a shell to complete commands and options.

        Parameters
        ----------
        shell
            bash, zsh or fish; by default the one that you are in.
        output
            The file that the script goes to; by default where the shell looks for it.
        """
        chosen: Any = shell
        path = app.install_completion(shell=chosen, output=output, add_to_startup=output is None)
        print(f"written to {path}; start a new shell to use it")
        return 0

    return install
