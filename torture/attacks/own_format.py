"""Which lies can the manifest of a checkpoint tell?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torture.attacks.attack import HARMLESS, Attack, Row, attacks_of
from torture.attacks.forging import Forgery, altered, forged, write_manifest
from torture.attacks.pickles import COMMAND, SYSTEM
from torture.attacks.special_files import SPECIAL, hole

CORRUPT = "CorruptError"


def _manifest(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def alter(folder: Path, data_name: str) -> None:
        file = folder / "manifest.json"
        file.write_bytes(change(file.read_bytes()))

    return altered(alter)


def _text(old: str, new: str) -> Callable[[Path], None]:
    def change(made: Forgery) -> None:
        def replace(text: str) -> str:
            if old not in text:
                raise AssertionError(f"{old} is not in the manifest")
            return text.replace(old, new, 1)

        made.manifest_text = replace

    return forged(change)


def _body(body: bytes) -> Callable[[Path], None]:
    return altered(lambda folder, name: write_manifest(folder, body))


def _set(**fields: Any) -> Callable[[Path], None]:
    return forged(lambda made: made.manifest.update(fields))


def _value(data: Any) -> Callable[[Path], None]:
    return forged(lambda made: made.value(data))


def _node(node: Any) -> Callable[[Path], None]:
    return forged(lambda made: made.node(node))


def _tensor(key: str = "w", **fields: Any) -> Callable[[Path], None]:
    def change(made: Forgery) -> None:
        row = made.tensor(key)
        for place, name in enumerate(("name", "dtype", "shape", "grid")):
            row[place] = fields.get(name, row[place])

    return forged(change)


def _grid(grid: Any, number: int = 0) -> Callable[[Path], None]:
    def change(made: Forgery) -> None:
        made.manifest["grids"][number] = grid

    return forged(change)


def _boxes(*boxes: tuple[list[int], list[int]], files: Any = None) -> Callable[[Path], None]:
    listed = files or ([[0, 0, len(boxes)]] if boxes else [])
    return _grid({"boxes": [list(box) for box in boxes], "files": listed}, 1)


def _files(**columns: Any) -> Callable[[Path], None]:
    return forged(lambda made: made.manifest["files"].update(columns))


def _split(splits: Any, files: Any) -> dict[str, Any]:
    return {"splits": splits, "files": files}


_BOTH = {"splits": [[]], "boxes": [[[0], [100]]], "files": [[0, 0, 1]]}


def _latin(made: Forgery) -> None:
    made.manifest["metadata"] = {"note": "\u00ff"}
    made.encoding = "latin-1"


def _out_of_order(made: Forgery) -> None:
    world = made.manifest.pop("world")
    made.manifest["world"] = world


def _nested(depth: int, left: str, right: str, inner: str) -> str:
    return left * depth + inner + right * depth


_SPARSE: dict[str, Any] = {"layout": "sparse_coo", "shape": [3, 3], "coalesced": True}


def _sparse(**fields: Any) -> Callable[[Path], None]:
    def change(made: Forgery) -> None:
        node = {**_SPARSE, "parts": {"indices": 3, "values": 4}, **fields}
        made.manifest["tree"]["dict"][-1][1] = {"sparse": node}

    return forged(change)


_BYTES: list[Row] = [
    ("sound", HARMLESS, "", forged(lambda made: None)),
    ("manifest-empty", CORRUPT, "does not end in its digest", _manifest(lambda _: b"")),
    ("manifest-cut-off", CORRUPT, "does not end in its digest", _manifest(lambda raw: raw[:-9])),
    ("manifest-extended", CORRUPT, "does not end in its digest", _manifest(lambda raw: raw + b" ")),
    (
        "manifest-wrong-digest",
        CORRUPT,
        "digest does not match",
        _manifest(lambda raw: raw.replace(b'"step"', b'"stop"')),
    ),
    ("manifest-pickle", CORRUPT, "does not end in its digest", _manifest(lambda _: SYSTEM)),
    ("manifest-pickle-with-digest", CORRUPT, "not a file of the format", _body(SYSTEM)),
    ("manifest-zeros", CORRUPT, "does not end in its digest", _manifest(lambda _: bytes(10**6))),
    (
        "manifest-of-a-terabyte",
        CORRUPT,
        "manifest.json has 1099511627776 bytes; expected at most",
        altered(lambda folder, _: hole(2**40)(folder / "manifest.json")),
    ),
    ("other-format", CORRUPT, "not a file of the format", _set(format="other")),
    ("newer-version", "VersionError", "format version 2", _set(version=2)),
    ("version-0", "VersionError", "format version 0", _set(version=0)),
    ("huge-version", CORRUPT, "not a file of the format", _set(version=10**30)),
    ("not-utf8", CORRUPT, "not as the format says", forged(_latin)),
    ("lone-surrogate", CORRUPT, "not as the format says", _text("sound", "\\ud800")),
    ("white-space", CORRUPT, "not canonical", _text('"world":', '"world": ')),
    ("odd-escape", CORRUPT, "not canonical", _text("sound", "s\\/")),
    ("leading-zero", CORRUPT, "not as the format says", _text('"world":1', '"world":01')),
    ("duplicate-field", CORRUPT, "not canonical", _text('"world":1', '"world":2,"world":1')),
    ("duplicate-key", CORRUPT, "not canonical", _text('"note":', '"note":1,"note":')),
    ("fields-out-of-order", CORRUPT, "not canonical", forged(_out_of_order)),
    ("unknown-field", CORRUPT, "not as the format says", _set(code="import os")),
    ("missing-field", CORRUPT, "not as the format says", _text('"per_rank":["own"],', "")),
    ("nan", CORRUPT, "not as the format says", _text('"sound"', "NaN")),
    ("endless-number", CORRUPT, "not as the format says", _text('"sound"', "1e999")),
    ("huge-number", CORRUPT, "beyond 2\\*\\*53", _set(metadata={"n": 2**63})),
    ("million-digits", CORRUPT, "not as the format says", _text('"sound"', "1" * 10**6)),
    (
        "deep-metadata",
        CORRUPT,
        "nested deeper than 100",
        _text('"sound"', _nested(101, "[", "]", "")),
    ),
    (
        "bottomless-metadata",
        CORRUPT,
        "nested too deeply",
        _text('"sound"', _nested(5 * 10**4, "[", "]", "")),
    ),
    (
        "bottomless-tree",
        CORRUPT,
        "nested too deeply",
        _text('{"value":7}', _nested(3 * 10**4, '{"list":[', "]}", "")),
    ),
    (
        "deep-tree",
        CORRUPT,
        "nested deeper than 200",
        _text('{"value":7}', _nested(201, '{"list":[', "]}", "")),
    ),
    ("dense-lists", CORRUPT, "more lists and objects", _text('"sound"', f"[{'[],' * 10**6}[]]")),
    ("dense-objects", CORRUPT, "more lists and objects", _text('"sound"', f"[{'{},' * 10**6}0]")),
    (
        "dense-tree",
        CORRUPT,
        "more lists and objects",
        _text('{"value":7}', f'{{"list":[{"[]," * 10**6}0]}}'),
    ),
    ("save-id-escapes", CORRUPT, "16 lower-case hex", _set(save_id="../../../../x")),
    ("save-id-absolute", CORRUPT, "16 lower-case hex", _set(save_id="/etc/passwd")),
    ("save-id-nul", CORRUPT, "16 lower-case hex", _set(save_id="0123456789abcde\0")),
    ("save-id-upper-case", CORRUPT, "16 lower-case hex", _set(save_id="0123456789ABCDEF")),
    ("save-id-dots", CORRUPT, "16 lower-case hex", _set(save_id="..")),
    ("no-ranks", CORRUPT, "world: 0 ranks", _set(world=0)),
    ("too-many-ranks", CORRUPT, "world: 1099511627776 ranks", _set(world=2**40)),
]

_TREE: list[Row] = [
    ("tree-unknown-tensor", CORRUPT, "99 is not one of 5 tensors", _node(99)),
    ("tree-negative-tensor", CORRUPT, "-1 is not one of 5 tensors", _node(-1)),
    ("tree-true-tensor", CORRUPT, "an object with one key", _node(True)),
    ("tree-huge-tensor", CORRUPT, "is not one of 5 tensors", _node(2**63)),
    ("tree-unknown-node", CORRUPT, "unknown kind of node 'pickle'", _node({"pickle": "gASV"})),
    ("tree-two-kinds", CORRUPT, "an object with one key", _node({"list": [], "dict": []})),
    ("tree-array-of-nothing", CORRUPT, "None is not one of", _node({"array": None})),
    ("tree-dict-of-text", CORRUPT, "expected a list", _node({"dict": "ab"})),
    ("tree-item-of-three", CORRUPT, r"not \[key, node\]", _node({"dict": [["a", 0, 0]]})),
    ("tree-same-key-twice", CORRUPT, "the same key twice", _node({"dict": [["a", 0], ["a", 1]]})),
    ("tree-null-key", CORRUPT, "neither a string nor", _node({"dict": [[None, 0]]})),
    ("tree-list-key", CORRUPT, "neither a string nor", _node({"dict": [[[], 0]]})),
    ("tree-huge-key", CORRUPT, "below 2\\*\\*53", _node({"dict": [[2**53, 0]]})),
    ("tree-unlisted-own", CORRUPT, "not listed in per_rank", _node({"per_rank": "other"})),
    ("own-out-of-order", CORRUPT, "sorted and distinct", _set(per_rank=["own", "a"])),
    ("value-code", CORRUPT, "unknown type of value 'eval'", _value({"eval": "1"})),
    ("value-of-os", "InvalidError", "not known here", _value({"os.system": COMMAND})),
    ("value-of-a-path", CORRUPT, "unknown type of value", _value({"../../x.y": 1})),
    ("value-dunder", "InvalidError", "not known here", _value({"torch.__builtins__": "eval"})),
    ("value-two-types", CORRUPT, "one type", _value({"int": "1", "float": "nan"})),
    ("value-list", CORRUPT, "no list", _value([1])),
    ("value-4301-digits", CORRUPT, "of an int|4300 digits", _value({"int": "1" * 4301})),
    ("value-million-digits", CORRUPT, "digits of an int", _value({"int": "9" * 10**6})),
    ("value-odd-digits", CORRUPT, "digits of an int", _value({"int": "1_0"})),
    ("value-arabic-digits", CORRUPT, "digits of an int", _value({"int": "\u0661" * 20})),
    ("value-float-text", CORRUPT, "nan, inf, -inf", _value({"float": "infinity"})),
    ("value-complex", CORRUPT, "complex number", _value({"complex": ["__import__('os')", "0"]})),
    ("value-base64", CORRUPT, "not base64", _value({"bytes": "eA="})),
    ("value-dtype-is-a-function", CORRUPT, "cannot be read", _value({"dtype": "load"})),
    ("value-dtype-dunder", CORRUPT, "cannot be read", _value({"dtype": "__dict__"})),
    ("value-device-is-a-path", CORRUPT, "cannot be read", _value({"device": "/etc/passwd"})),
    ("value-size-of-text", CORRUPT, "cannot be read", _value({"size": ["os"]})),
    ("value-numpy-object", CORRUPT, "not a NumPy scalar", _value({"numpy": ["object", "x"]})),
    ("value-numpy-void", CORRUPT, "not a NumPy scalar", _value({"numpy": ["V999999999", "x"]})),
    (
        "value-numpy-nested",
        CORRUPT,
        "within a NumPy scalar",
        _value({"numpy": ["int8", {"numpy": ["int8", 1]}]}),
    ),
    ("value-numpy-overflow", CORRUPT, "is no NumPy int8", _value({"numpy": ["int8", 999]})),
    ("sparse-outside", CORRUPT, "sparse", _sparse(shape=[2, 2])),
    ("sparse-huge-shape", CORRUPT, "2\\*\\*63", _sparse(shape=[2**62, 2**62])),
    ("sparse-negative-shape", CORRUPT, "2\\*\\*63", _sparse(shape=[-1, 3])),
    ("sparse-other-dims", CORRUPT, "sparse", _sparse(shape=[3])),
    ("sparse-unknown-layout", CORRUPT, "tensor of 2 parts", _sparse(layout="strided")),
    ("sparse-attribute", CORRUPT, "tensor of 2 parts", _sparse(layout="load")),
    (
        "sparse-parts-exchanged",
        CORRUPT,
        "sparse|not its own",
        _sparse(parts={"indices": 4, "values": 3}),
    ),
    ("sparse-part-missing", CORRUPT, "of 1 parts", _sparse(parts={"indices": 3})),
    (
        "sparse-part-is-a-list",
        CORRUPT,
        "is no tensor",
        _sparse(parts={"indices": 3, "values": {"list": []}}),
    ),
    (
        "sparse-rows-by-columns",
        CORRUPT,
        "sparse",
        _sparse(
            layout="sparse_csr",
            coalesced=False,
            parts={"crow_indices": 3, "col_indices": 3, "values": 4},
        ),
    ),
]

_TENSORS: list[Row] = [
    ("tensor-twice", CORRUPT, "a key is there twice", _tensor("m", name="w")),
    ("tensor-of-objects", CORRUPT, "unknown dtype 'OBJECT'", _tensor(dtype="OBJECT")),
    ("shape-2**63", CORRUPT, "2\\*\\*63", _tensor(shape=[2**63])),
    ("shape-2**63-1", CORRUPT, "2\\*\\*63", _tensor(shape=[2**63 - 1])),
    ("shape-product", CORRUPT, "more than 2\\*\\*63", _tensor(shape=[2**32, 2**32])),
    ("shape-behind-zero", CORRUPT, "more than 2\\*\\*63", _tensor(shape=[0, 2**62, 2**62])),
    ("shape-negative", CORRUPT, "not from 0 to", _tensor(shape=[-100])),
    ("shape-of-65-dims", CORRUPT, "65 dims", _tensor(shape=[1] * 65)),
    ("shape-of-10**5-dims", CORRUPT, "100000 dims", _tensor(shape=[1] * 10**5)),
    ("shape-of-other-dims", CORRUPT, "in a grid of 1 dims", _tensor(shape=[10, 10])),
    ("shape-larger-than-data", CORRUPT, "claims 4398046511212 bytes", _tensor(shape=[2**40])),
    ("dtype-larger-than-data", CORRUPT, "the manifest says", _tensor(dtype="C128")),
    ("dtype-of-same-size", CORRUPT, "the manifest says", _tensor(dtype="I32")),
    ("grid-unknown", CORRUPT, "grid 9 is not one of", _tensor(grid=9)),
    ("grid-none", CORRUPT, "does not go with grid -1", _tensor(grid=-1)),
    ("grid-for-nothing", CORRUPT, "does not go with grid 1", _tensor("e", grid=1)),
    ("grid-huge", CORRUPT, "is not one of 2 grids", _tensor(grid=2**63)),
    ("tensor-not-in-file", CORRUPT, "holds no chunk 'x'", _tensor(name="x")),
    ("grid-of-unknown-file", CORRUPT, "file 7 is not one of", _grid(_split([[]], [[7, 0, 1]]))),
    ("grid-of-too-few-files", CORRUPT, "but files for 1", _grid(_split([[2]], [[0, 0, 1]]))),
    ("grid-split-by-0", CORRUPT, "into 0 pieces", _grid(_split([[0]], []))),
    ("grid-split-by-minus-1", CORRUPT, "into -1 pieces", _grid(_split([[-1]], []))),
    ("grid-of-2**60-cells", CORRUPT, "expected at most", _grid(_split([[2**24, 2**24]], []))),
    (
        "grid-of-2**60-files",
        CORRUPT,
        "runs of 1152921504606846976 numbers",
        _grid(_split([[]], [[0, 0, 2**60]])),
    ),
    ("grid-of-65-splits", CORRUPT, "more than 64", _grid(_split([[1] * 65], [[0, 0, 1]]))),
    ("grid-of-both", CORRUPT, "either splits or boxes", _grid(_BOTH)),
    ("grid-of-neither", CORRUPT, "either splits or boxes", _grid({"files": [[0, 0, 1]]})),
    ("runs-below-0", CORRUPT, "leaves the range", _grid(_split([[2]], [[0, -1, 2]]))),
    ("runs-beyond-2**63", CORRUPT, "leaves the range", _grid(_split([[2]], [[1, 2**63, 2]]))),
    ("runs-of-none", CORRUPT, "is empty", _grid(_split([[]], [[0, 0, 0]]))),
    ("runs-in-pieces", CORRUPT, "does not take", _grid(_split([[2]], [[0, 0, 1], [0, 0, 1]]))),
    ("runs-of-two", CORRUPT, "not as the format says", _grid(_split([[]], [[0, 0]]))),
    ("boxes-overlap", CORRUPT, "does not tile.*share", _boxes(([0, 0], [4, 4]), ([3, 0], [6, 4]))),
    ("boxes-hole", CORRUPT, "does not tile.*no box holds", _boxes(([0, 0], [5, 4]))),
    ("boxes-outside", CORRUPT, "does not tile.*outside", _boxes(([0, 0], [7, 4]))),
    ("boxes-none", CORRUPT, "does not tile", _boxes()),
    ("boxes-empty", CORRUPT, "without cells", _boxes(([0, 0], [6, 4]), ([6, 0], [6, 4]))),
    ("boxes-reversed", CORRUPT, "box", _boxes(([6, 4], [0, 0]))),
    ("boxes-negative", CORRUPT, "box", _boxes(([-1, 0], [6, 4]))),
    ("boxes-of-other-dims", CORRUPT, "does not tile", _boxes(([0], [24]))),
    ("boxes-unequal-corners", CORRUPT, "box|dims", _boxes(([0, 0], [6]))),
    ("boxes-huge", CORRUPT, "does not tile|box", _boxes(([0, 0], [2**63, 4]))),
]

_FILES: list[Row] = [
    ("files-odd-header", CORRUPT, "no multiple of 4096", _files(header_nbytes=[[100, 0, 1]])),
    ("files-no-header", CORRUPT, "header_nbytes from 0", _files(header_nbytes=[[0, 0, 1]])),
    ("files-huge-header", CORRUPT, "header_nbytes from", _files(header_nbytes=[[2**40, 0, 1]])),
    ("files-ends-in-header", CORRUPT, "ends before its data", _files(nbytes=[[100, 0, 1]])),
    ("files-other-size", CORRUPT, "the manifest says 9999", _files(nbytes=[[9999, 0, 1]])),
    ("files-huge-size", CORRUPT, "the manifest says", _files(nbytes=[[2**63 - 1, 0, 1]])),
    ("files-of-other-ranks", CORRUPT, "rank 5 is not one of 1", _files(rank=[[5, 0, 1]])),
    ("files-unequal-columns", CORRUPT, "columns of lengths", _files(rank=[[0, 0, 2]])),
    ("files-2**24", CORRUPT, "columns of lengths", _files(rank=[[0, 0, 2**24]])),
    ("files-2**60", CORRUPT, "numbers; expected at most", _files(rank=[[0, 0, 2**60]])),
    ("files-odd-digest", CORRUPT, "16 lower-case hex", _files(header_digests="abc")),
    ("files-upper-case-digest", CORRUPT, "16 lower-case", _files(header_digests="A" * 16)),
    ("files-wrong-digest", CORRUPT, "header's digest", _files(header_digests="0" * 16)),
    ("files-number-2**40", CORRUPT, "number 1099511627776", _files(number=[[2**40, 0, 1]])),
    *(
        (
            f"manifest-{name}",
            CORRUPT,
            "a checkpoint has regular files only",
            altered(lambda folder, _, put=put: put(folder / "manifest.json")),
        )
        for name, put in SPECIAL.items()
    ),
]

OWN: list[Attack] = attacks_of("own", [*_BYTES, *_TREE, *_TENSORS, *_FILES])
