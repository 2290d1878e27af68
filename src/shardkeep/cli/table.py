"""Which commands are there, what does each do, and where does it live?

The overview is printed from this table alone: the parser takes longer to import than anybody
wants to wait for a page of help.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command; `where` is imported when it is called."""

    name: str
    usage: str
    where: str
    does: str


LOOK, MOVE, TIDY = "Look", "Move", "Keep in order"

COMMANDS: dict[str, tuple[Command, ...]] = {
    LOOK: (
        Command("ls", "RUN", "listing:ls", "list the checkpoints of a run, with their metrics"),
        Command(
            "show",
            "CKPT [KEY]",
            "looking:show",
            "tensors, sizes, who holds what; --stats of values",
        ),
        Command("diff", "A B [KEY]", "looking:diff", "how two checkpoints differ, largest first"),
        Command(
            "explain",
            "CKPT --mesh dp=8",
            "looking:explain",
            "what loading it on other ranks would cost",
        ),
        Command("serve", "RUN_OR_CKPT...", "viewing:serve", "all of this in a browser"),
        Command("report", "RUN... -o X.html", "viewing:report", "the same as one HTML file"),
    ),
    MOVE: (
        Command(
            "export",
            "CKPT DEST --to hf",
            "moving:export_",
            "write safetensors, Hugging Face, DCP or torch.save",
        ),
        Command("import", "SRC DEST", "moving:import_", "make a checkpoint of one of these"),
        Command("copy", "CKPT DEST", "moving:copy", "copy a checkpoint, every block checked"),
    ),
    TIDY: (
        Command("verify", "CKPT...", "looking:verify", "read every byte and check its digest"),
        Command(
            "prune",
            "RUN --keep-last 3",
            "tidying:prune",
            "say what no rule keeps; --yes does it",
        ),
        Command("bench", "[PATH]", "measuring:bench", "how fast a place saves and loads"),
    ),
}

NAMES = [one.name for commands in COMMANDS.values() for one in commands]

_HEAD = """\
shardkeep looks into checkpoints, checks, compares, translates and prunes them.
CKPT is a checkpoint's folder; show, diff, verify and explain also take folders
of Hugging Face and DCP, and safetensors files."""

_FOOT = """\
  shardkeep COMMAND --help       all about a command, with examples
  shardkeep --install-completion teach your shell the commands
  shardkeep --version

Commands that print take --json for programs, all take --debug for a traceback.
Exit code 1: damage or a difference was found; 2: a mistake, told in one line.
Large checkpoints: torchrun --nproc-per-node 8 -m shardkeep verify CKPT"""


def overview(*, colour: bool) -> str:
    """The page that `shardkeep --help` prints."""
    bold, plain = ("\x1b[1m", "\x1b[0m") if colour else ("", "")
    lines = [_HEAD, ""]
    for title, commands in COMMANDS.items():
        lines.append(f"{bold}{title}{plain}")
        for one in commands:
            words = f"{one.name} {one.usage}"
            lines.append(f"  {words:<25} {one.does}")
        lines.append("")
    return "\n".join([*lines, f"{bold}More{plain}", _FOOT])
