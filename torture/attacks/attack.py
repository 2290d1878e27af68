"""What is an attack, and how does a refusal of it look?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Make = Callable[[Path], None]
"""Puts the hostile files into an empty folder."""

HARMLESS = ""
"""In place of an error: what is planted stays data, nothing refuses it and nothing runs it."""

MARK = "hacked"
"""What code that is run by mistake would leave behind, wherever it runs."""


@dataclass(frozen=True)
class Attack:
    """A folder or file, and the error that must come of reading it."""

    name: str
    """Its format, then what is done: `own/escape`."""
    error: str
    """The class that refuses it, or several as `A|B`; HARMLESS if it is to be read as it is."""
    words: str
    """A pattern that the error's text holds: the right reason."""
    make: Make
    file: str = ""
    """The file of the folder that is opened, in place of the folder."""

    @property
    def format(self) -> str:
        return self.name.partition("/")[0]


Row = tuple[str, str, str, Make]
"""Name, error, words and how it is made, as the modules of attacks list them."""


def attacks_of(format: str, rows: list[Row], *, file: str = "") -> list[Attack]:
    """The attacks of one format."""
    return [
        Attack(f"{format}/{name}", error, words, make, file) for name, error, words, make in rows
    ]
