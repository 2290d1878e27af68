"""How does the viewer fit into one file? With the answers to what a reader is likely to ask.

The page is the same; its questions are answered from what the file holds. Nothing is fetched,
and no script runs but the one whose digest the file's own policy names.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from shardkeep.errors import InvalidError, StorageError
from shardkeep.view.places import Place
from shardkeep.view.web.answers import Answers
from shardkeep.view.web.library import Library
from shardkeep.view.web.report_questions import Question, questions_of

_STATIC = Path(__file__).parent / "static"
# Values hardly get smaller when they are packed.
_SLICE_SIDE = 64


def write_report(paths: Sequence[Place], target: Path) -> int:
    """Write the report; its size. The file is there as a whole or not at all."""
    if target.is_dir():
        raise InvalidError(f"{target} is a folder: name the file, such as {target / 'run.html'}")
    library = Library(paths)
    try:
        said = answer_all(Answers(library, slice_side=_SLICE_SIDE), library)
    finally:
        library.close()
    page = report_page(" and ".join(one.name for one in library.places), said)
    _put(target, page.encode())
    return len(page)


def answer_all(answers: Answers, library: Library) -> dict[str, bytes]:
    """The answers, by question."""
    found: dict[str, bytes] = {}

    def ask(question: Question) -> bytes:
        if question.key not in found:
            found[question.key] = answers.answer(question.page, dict(question.query))
        return found[question.key]

    questions_of(library, ask)
    return found


def report_page(title: str, said: Mapping[str, bytes]) -> str:
    """The page with all that it says."""
    script = _asset("viewer.js")
    style = _asset("viewer.css")
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)} · shardkeep</title>\n"
        f"<style>{style}</style>\n</head>\n<body>\n"
        f'<script type="application/gzip" id="shardkeep-data">{_packed(said)}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def _asset(name: str) -> str:
    text = (_STATIC / "assets" / name).read_text()
    if "</script" in text or "</style" in text:
        raise InvalidError(f"{name} cannot stand in a page; build the viewer anew")
    return text


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _packed(said: Mapping[str, bytes]) -> str:
    """JSON of all answers, as text that has no meaning in HTML whatever names are in it."""
    parts = [_encoded(key) + b":" + answer for key, answer in said.items()]
    return base64.b64encode(gzip.compress(b"{" + b",".join(parts) + b"}", 6, mtime=0)).decode()


def _encoded(text: str) -> bytes:
    import msgspec

    return msgspec.json.encode(text)


def _put(target: Path, data: bytes) -> None:
    half = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        half.write_bytes(data)
        half.replace(target)
    except OSError as error:
        with suppress(OSError):
            half.unlink()
        raise StorageError(
            error.errno, f"writing the report: {error.strerror}", str(target)
        ) from error
