"""Write the list of attacks: `python -m torture.attacks` to conformance/attacks/README.md."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from torture.attacks.attack import HARMLESS, Attack
from torture.attacks.listing import ATTACKS

README = Path(__file__).parents[2] / "conformance" / "attacks" / "README.md"

_FORMATS = {
    "own": "Checkpoints of shardkeep",
    "safetensors": "Safetensors files",
    "hf": "Hugging Face folders",
    "dcp": "Folders of torch DCP",
    "torch": "Files of torch.save",
}

_HEAD = """# Attacks

Folders and files that were made to do harm, with the error that must refuse each of them and a
pattern of the reason that it gives. They are made anew by `torture/attacks/` for each run: some
hold pipes, devices or holes of a terabyte, which no repository keeps. `python -m torture hostile`
reads all of them, `python -m torture hostile --case NAME` one; `python -m torture.attacks` writes
this list.

Where no error stands, what is planted must stay what it is: a text or a file that nobody runs.
"""


def listing() -> str:
    """The text of the list."""
    parts = [_HEAD]
    for format, rows in groupby(ATTACKS, key=lambda attack: attack.format):
        parts.append(f"## {_FORMATS[format]}\n\n| attack | error | reason |\n|---|---|---|")
        parts[-1] += "".join(f"\n{_row(attack)}" for attack in rows) + "\n"
    return "\n".join(parts)


def _row(attack: Attack) -> str:
    if attack.error == HARMLESS:
        return f"| `{attack.name}` | | |"
    words = f"`{attack.words}`" if attack.words else ""
    errors, reason = attack.error.replace("|", " or "), words.replace("|", "\\|")
    return f"| `{attack.name}` | {errors} | {reason} |"


if __name__ == "__main__":
    README.parent.mkdir(parents=True, exist_ok=True)
    README.write_text(listing())
