"""What happens when somebody types `shardkeep ...`?

Whatever goes wrong is one line on stderr and exit code 2; what was looked for and found wanting
(damage, a difference) is exit code 1; Ctrl-C is 130. Among several processes rank 0 alone
speaks and has the exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from shardkeep.cli.ranks import SHARED, launch
from shardkeep.errors import ShardkeepError

_HELP: tuple[list[str], ...] = ([], ["--help"], ["-h"], ["help"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; exits with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    words = [word for word in given if word != "--debug"]
    try:
        code = _run(words)
        sys.stdout.flush()
    except ShardkeepError as error:
        if debug:
            raise
        code = _complain(str(error))
    except BrokenPipeError:
        # Whoever read our output has seen enough. What is left must not be written at the end.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        if debug:
            raise
        code = 130
    # If another rank ended with a code first, torchrun would stop rank 0 before it speaks.
    sys.exit(code if launch().rank == 0 else 0)


def _run(words: list[str]) -> int:
    if launch().rank and words[:1] and words[0] not in SHARED:
        return 0
    # Importing the parser takes longer than these two take by themselves.
    if words in _HELP:
        from shardkeep.cli.printing import has_colour
        from shardkeep.cli.table import overview

        print(overview(colour=has_colour()))
        return 0
    if len(words) == 2 and words[0] == "ls" and not words[1].startswith("-"):
        from pathlib import Path

        from shardkeep.cli.listing import ls

        return ls(Path(words[1]))
    return _parse_and_run(words)


def _parse_and_run(words: list[str]) -> int:
    from cyclopts.exceptions import CycloptsError

    from shardkeep.cli.app import make_app
    from shardkeep.cli.table import NAMES

    try:
        found = make_app()(
            words,
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except CycloptsError as error:
        known = [word for word in words[:1] if word in NAMES]
        more = " ".join(["shardkeep", *known, "--help"])
        return _complain(f"{' '.join(str(error).split())} `{more}` tells more.")
    return found if isinstance(found, int) else 0


def _complain(text: str) -> int:
    from shardkeep.view.words import clean_text

    if launch().rank == 0:
        lines = [clean_text(line) for line in text.splitlines()]
        print("shardkeep: " + "\n".join(lines), file=sys.stderr)
    return 2
