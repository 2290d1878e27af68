"""Which lies can a data file of a checkpoint tell, and what may stand in its place?"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torture.attacks.attack import HARMLESS, Attack, Row, attacks_of
from torture.attacks.forging import Forgery, altered, canonical, forged
from torture.attacks.pickles import SYSTEM
from torture.attacks.special_files import SPECIAL

CORRUPT = "CorruptError"


def _entry(name: str = "w", **fields: Any) -> Callable[[Path], None]:
    return forged(lambda made: made.entries[name].update(fields))


def _notes(**fields: Any) -> Callable[[Path], None]:
    return forged(lambda made: made.notes.update(fields))


def _length(length: int) -> Callable[[Path], None]:
    def change(made: Forgery) -> None:
        made.header_bytes = lambda raw: length.to_bytes(8, "little") + raw[8:]

    return forged(change)


def _header(old: str, new: str) -> Callable[[Path], None]:
    def change(made: Forgery) -> None:
        def replace(text: str) -> str:
            if old not in text:
                raise AssertionError(f"{old} is not in the header")
            return text.replace(old, new, 1)

        made.header_text = replace

    return forged(change)


def _raw(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def alter(folder: Path, name: str) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return altered(alter)


def _flipped(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


def _without(name: str) -> Callable[[Path], None]:
    def change(made: Forgery) -> None:
        """Take an entry and its bytes away; those behind move up."""
        start, stop = made.entries.pop(name)["data_offsets"]
        made.data = made.data[:start] + made.data[stop:]
        for entry in made.entries.values():
            if entry["data_offsets"][0] >= stop:
                entry["data_offsets"] = [at - stop + start for at in entry["data_offsets"]]

    return forged(change)


def _exchanged(made: Forgery) -> None:
    entries = made.entries
    made.entries = {{"w": "s.values", "s.values": "w"}.get(k, k): v for k, v in entries.items()}


def _for_terminals(made: Forgery) -> None:
    """A tensor whose name would set the title of a terminal, and clear it."""
    key = "\x1b]0;owned\x07\x1b[2J\r\n\x9b0m"
    made.entries = {key if name == "w" else name: one for name, one in made.entries.items()}
    made.tensor("w")[0] = key


def _padded(made: Forgery) -> None:
    made.header_bytes = lambda raw: (
        (len(raw) - 8 + 4096).to_bytes(8, "little") + raw[8:] + b" " * 4096
    )


def _metadata(metadata: Any) -> Callable[[Path], None]:
    def change(made: Forgery) -> None:
        made.header_text = lambda text: canonical({"__metadata__": metadata, **made.entries})

    return forged(change)


def _dense(made: Forgery) -> None:
    more = ",".join(f'"{at:x}":{{}}' for at in range(3 * 10**5))
    made.header_text = lambda text: f"{text[:-1]},{more}}}"


def _nested_own(depth: int) -> Callable[[Path], None]:
    def change(made: Forgery) -> None:
        node: Any = {"value": 1}
        for _ in range(depth):
            node = {"list": [node]}
        made.notes["per_rank"] = {"own": node}

    return forged(change)


def _report(data: bytes) -> Callable[[Path], None]:
    def alter(folder: Path, name: str) -> None:
        (folder / f"{name.partition('-')[0]}-report.json").write_bytes(data)

    return altered(alter)


def _beside(name: str, data: bytes) -> Callable[[Path], None]:
    return altered(lambda folder, _: (folder / name).write_bytes(data))


_BYTES: list[Row] = [
    ("data-missing", "NotFoundError", "safetensors", altered(lambda f, name: os.unlink(f / name))),
    ("data-empty", CORRUPT, "0 bytes; the manifest says", _raw(lambda _: b"")),
    ("data-cut-off", CORRUPT, "bytes; the manifest says", _raw(lambda raw: raw[:-1])),
    ("data-extended", CORRUPT, "bytes; the manifest says", _raw(lambda raw: raw + b"\0")),
    ("data-flipped", CORRUPT, "not what was written", _raw(_flipped)),
    (
        "data-pickle",
        CORRUPT,
        "a header of 8751349991817282176 bytes",
        _raw(lambda raw: SYSTEM.ljust(len(raw))),
    ),
    ("data-zeros", CORRUPT, "the data start at byte 8", _raw(lambda raw: bytes(len(raw)))),
    ("length-2**63", CORRUPT, "a header of 9223372036854775808 bytes", _length(2**63)),
    ("length-2**64-1", CORRUPT, "a header of", _length(2**64 - 1)),
    ("length-beyond-limit", CORRUPT, "at most 100000000", _length(100_000_001)),
    ("length-beyond-file", CORRUPT, "in a file of", _length(10**6)),
    ("length-0", CORRUPT, "no multiple of 4096", _length(0)),
    ("length-odd", CORRUPT, "no multiple of 4096", _length(4000)),
    ("header-padded-twice", CORRUPT, "padded with 4096 spaces", forged(_padded)),
    ("header-white-space", CORRUPT, "not canonical", _header('"w":', '"w": ')),
    ("header-no-json", CORRUPT, "not as the format says", _header('"w":', "w:")),
    ("header-key-twice", CORRUPT, "not canonical", _header('"w":', '"m":')),
    ("header-dense", CORRUPT, "more entries than", forged(_dense)),
    ("header-without-notes", CORRUPT, "not a file of the format", _metadata({})),
    ("header-other-notes", CORRUPT, "not a file of the format", _metadata({"format": "pt"})),
    (
        "header-more-notes",
        CORRUPT,
        "not a file of the format",
        _header('{"shardkeep":', '{"other":"x","shardkeep":'),
    ),
    ("header-pickled-notes", CORRUPT, "not a file of the format", _metadata({"shardkeep": "gASV"})),
    ("header-newer-version", "VersionError", "format version 2", _notes(version=2)),
    ("header-unknown-note", CORRUPT, "not as the format says", _notes(code="import os")),
]

_ENTRIES: list[Row] = [
    ("entry-unknown-dtype", CORRUPT, "unknown dtype 'OBJECT'", _entry(dtype="OBJECT")),
    ("entry-other-dtype", CORRUPT, "the manifest says F32", _entry(dtype="I32")),
    ("entry-other-shape", CORRUPT, "the manifest says F32", _entry(shape=[10, 10])),
    ("entry-larger-shape", CORRUPT, "does not fit", _entry(shape=[2**40])),
    ("entry-huge-shape", CORRUPT, "does not fit", _entry(shape=[2**63, 2**63])),
    ("entry-negative-shape", CORRUPT, "does not fit", _entry(shape=[-10, -10])),
    ("entry-of-10**5-dims", CORRUPT, "100000 dims", _entry(shape=[1] * 10**5)),
    ("entry-overlap", CORRUPT, "no holes and do not overlap", _entry(data_offsets=[0, 400])),
    ("entry-hole", CORRUPT, "no holes and do not overlap", _entry(data_offsets=[52, 452])),
    ("entry-reversed", CORRUPT, "does not fit", _entry(data_offsets=[448, 48])),
    ("entry-negative", CORRUPT, "no multiple|overlap", _entry(data_offsets=[-352, 48])),
    ("entry-beyond-file", CORRUPT, "no holes", _entry(data_offsets=[10**6, 10**6 + 400])),
    ("entry-beyond-2**63", CORRUPT, "no multiple", _entry(data_offsets=[2**63, 2**63 + 400])),
    ("entry-bare", CORRUPT, "lacks dtype", _header('"w":', '"x":{},"w":')),
    ("entry-of-notes", CORRUPT, "field of __metadata__", _header('"w":{', '"w":{"shardkeep":"x",')),
    ("entry-missing", CORRUPT, "holds no chunk 'w'", _without("w")),
    ("entry-of-another", CORRUPT, "the manifest says", forged(_exchanged)),
]

_NOTES: list[Row] = [
    ("notes-other-save", CORRUPT, "save id, rank", _notes(save_id="f" * 16)),
    ("notes-other-rank", CORRUPT, "save id, rank", _notes(rank=3)),
    ("notes-huge-rank", CORRUPT, "no file has rank", _notes(rank=2**40)),
    ("notes-other-number", CORRUPT, "per_rank values|save id, rank", _notes(number=1)),
    ("notes-odd-block", CORRUPT, "expected a power of two", _notes(block=5000)),
    ("notes-block-0", CORRUPT, "expected a power of two", _notes(block=0)),
    ("notes-block-2**60", CORRUPT, "expected a power of two", _notes(block=2**60)),
    ("notes-no-digests", CORRUPT, "0 digests for 1 blocks", _notes(digests="")),
    ("notes-more-digests", CORRUPT, "2 digests for 1 blocks", _notes(digests="0" * 32)),
    ("notes-wrong-digests", CORRUPT, "not what was written", _notes(digests="0" * 16)),
    ("notes-odd-digests", CORRUPT, "16 lower-case hex", _notes(digests="xyz")),
    ("own-values-with-tensor", CORRUPT, "0 is not one of 0 tensors", _notes(per_rank={"own": 0})),
    ("own-values-code", CORRUPT, "unknown kind of node", _notes(per_rank={"own": {"exec": "1"}})),
    ("own-values-missing", "NotFoundError", "rank 0 saved none", _notes(per_rank={})),
    (
        "own-values-unsorted",
        CORRUPT,
        "not sorted",
        _notes(per_rank={"own": {"value": 1}, "a": {"value": 1}}),
    ),
    ("own-values-deep", CORRUPT, "nested deeper than 200", _nested_own(201)),
]

_PLACES: list[Row] = [
    *(
        (
            f"data-{name}",
            CORRUPT,
            "a checkpoint has regular files only",
            altered(lambda folder, file, put=put: put(folder / file)),
        )
        for name, put in SPECIAL.items()
    ),
    ("key-for-terminals", HARMLESS, "", forged(_for_terminals)),
    ("report-pickle", HARMLESS, "", _report(SYSTEM)),
    ("report-deep", HARMLESS, "", _report(b"[" * 10**5)),
    ("report-deep-field", HARMLESS, "", _report(b'{"x":' + b"[" * 10**5)),
    ("report-not-utf8", HARMLESS, "", _report(b'{"save_id":"\xff"}')),
    ("beside-pickle", HARMLESS, "", _beside("extra.pt", SYSTEM)),
    ("beside-dcp", HARMLESS, "", _beside(".metadata", SYSTEM)),
    ("beside-module", HARMLESS, "", _beside("torch.py", b"import os; os.system('touch hacked')")),
]

DATA: list[Attack] = attacks_of("own", [*_BYTES, *_ENTRIES, *_NOTES, *_PLACES])
