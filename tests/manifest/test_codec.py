"""A manifest comes back from its bytes, and no other bytes pass for one."""

import json
import sys
from collections.abc import Callable
from itertools import product

import pytest
import xxhash
from hypothesis import given

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError, InvalidError, NotFoundError, VersionError
from shardkeep.manifest import (
    NO_GRID,
    BoxGrid,
    DictNode,
    Digests,
    FileRecord,
    FileTable,
    ListNode,
    Manifest,
    Node,
    Runs,
    SplitGrid,
    TensorNode,
    TensorRecord,
    ValueNode,
    decode_manifest,
    encode_manifest,
)
from tests.manifest.examples import SAVE_ID, manifests, replaced, rewritten, signed, small_manifest

DATA = encode_manifest(small_manifest())


@given(manifests())
def test_a_manifest_comes_back(manifest: Manifest):
    data = encode_manifest(manifest)
    decoded = decode_manifest(data, where="manifest.json")

    assert decoded == manifest
    assert encode_manifest(decoded) == data


def test_the_bytes_are_those_that_the_format_page_describes():
    body, _, tail = DATA.rpartition(b',"digest":"')
    content = json.loads(DATA)

    assert tail == xxhash.xxh3_128_hexdigest(body).encode() + b'"}'
    assert list(content) == [
        *("format", "version", "save_id", "world", "tree"),
        *("tensors", "grids", "files", "per_rank", "metadata", "digest"),
    ]
    assert content["tensors"] == [
        ["w", "F32", [4, 3], 0],
        ["x", "I64", [5], 1],
        ["none", "I8", [0, 3], -1],
    ]
    assert content["grids"] == [
        {"splits": [[2], []], "files": [[0, 1, 2]]},
        {"boxes": [[[0], [2]], [[2], [5]]], "files": [[1, 0, 2]]},
    ]
    assert content["files"] == {
        "rank": [[0, 1, 2]],
        "number": [[0, 0, 2]],
        "nbytes": [[4120, 40, 2]],
        "header_nbytes": [[4096, 0, 2]],
        "header_digests": "ffffffffffffffff0000000000000005",
    }
    assert json.dumps(content, separators=(",", ":")).encode() == DATA


def test_a_manifest_answers_for_its_tensors():
    manifest = decode_manifest(DATA, where="manifest.json")
    w, x, none = manifest.tensors

    assert manifest.tensor("x") is x
    assert (w.numel, w.nbytes, none.nbytes) == (12, 48, 0)
    assert list(manifest.chunks(w)) == [(Box((0, 0), (2, 3)), 0), (Box((2, 0), (4, 3)), 1)]
    assert manifest.chunks_meeting(x, Box((3,), (4,))) == [(Box((2,), (5,)), 1)]
    assert list(manifest.chunks(none)) == manifest.chunks_meeting(none, Box((0, 0), (0, 3))) == []
    assert manifest.file_name(1) == f"{SAVE_ID}-00001-0.safetensors"
    with pytest.raises(NotFoundError, match="no tensor 'y'"):
        manifest.tensor("y")


def test_every_flipped_bit_is_rejected():
    for place, bit in product(range(len(DATA)), range(8)):
        damaged = bytearray(DATA)
        damaged[place] ^= 1 << bit
        with pytest.raises(CorruptError, match=r"manifest\.json: .*digest"):
            decode_manifest(bytes(damaged), where="manifest.json")


def test_every_truncation_is_rejected():
    for size in range(len(DATA)):
        with pytest.raises(CorruptError, match="does not end in its digest: it was cut off"):
            decode_manifest(DATA[:size], where="manifest.json")


def test_another_version_is_told_from_damage():
    newer = replaced(DATA, '"version":1,', '"version":2,')

    with pytest.raises(
        VersionError, match=r"ckpt: written in format version 2.* reads version 1 on"
    ):
        decode_manifest(newer, where="ckpt")
    with pytest.raises(VersionError, match="Use a newer shardkeep"):
        # Fields that are not known here do not matter.
        decode_manifest(replaced(newer, '"world":2', '"planet":"Mars"'), where="ckpt")
    with pytest.raises(CorruptError, match="the digest does not match"):
        decode_manifest(DATA.replace(b'"version":1,', b'"version":2,'), where="ckpt")


def test_another_format_is_rejected():
    with pytest.raises(CorruptError, match="not a file of the format 'shardkeep'"):
        decode_manifest(replaced(DATA, '"shardkeep"', '"orbax"'), where="ckpt")
    with pytest.raises(CorruptError, match="not a file of the format 'shardkeep'"):
        decode_manifest(signed(b'{"weight_map":{}' + DATA[-45:]), where="ckpt")


NOT_CANONICAL = [
    ('"world":2', '"world":2,"world":2', "duplicate keys"),
    ('"step":3', '"step":3,"step":3', "duplicate keys"),
    ('"step":3', '"step":4,"step":3', "duplicate keys"),
    ('"splits":[[2],[]]', '"splits":[[2],[]],"splits":[[2],[]]', "duplicate keys"),
    ('["w",0]', '["w", 0]', "white space"),
    ('{"value":1.5}', '{"value":1.5,"value":1.5}', "duplicate keys"),
    ('"step":3', '"st\\u0065p":3', "written in another way"),
    ('"step":3', '"step":-0', "written in another way"),
    ('"world":2,', '"world":2,"more":1,', "unknown field `more`"),
    ('"number":[[0,0,2]],', '"number":[[0,0,2]],"more":1,', "unknown field `more`"),
    ('"splits":[[2],[]]', '"splits":[[2],[]],"more":1', "unknown field `more`"),
    ('["w","F32",[4,3],0]', '["w","F32",[4,3],0,0]', "of at most length 4|length 4"),
    ('["w","F32",[4,3],0]', '["w","F32",[4,3]]', "length 4"),
    ('["w","F32",[4,3],0]', '["w","F32",[4,3.0],0]', "Expected `int`, got `float`"),
    ('"world":2', '"world":"2"', "Expected `int`, got `str`"),
    ('"world":2', '"world":true', "Expected `int`, got `bool`"),
    ('"world":2,', "", "missing required field `world`"),
    ('"step":3', '"step":NaN', "malformed"),
    ('"step":3', '"step":1e999', "out of range"),
    ('"step":3', '"step":"\\ud800"', "not as the format says"),
    ('"metadata":{"step":3}', '"metadata":[]', "Expected `object`, got `array`"),
]


@pytest.mark.parametrize(("old", "new", "reason"), NOT_CANONICAL)
def test_json_that_is_written_in_another_way_is_rejected(old: str, new: str, reason: str):
    with pytest.raises(CorruptError, match=rf"^ckpt: .*({reason})"):
        decode_manifest(replaced(DATA, old, new), where="ckpt")


def test_text_that_is_no_utf8_is_rejected():
    with pytest.raises(CorruptError, match=r"not as the format says: .*utf-8"):
        decode_manifest(signed(DATA.replace(b'"step"', b'"st\xffp"')), where="ckpt")


def test_fields_out_of_order_are_rejected():
    content = json.loads(DATA)
    content["files"] = dict(reversed(content["files"].items()))

    with pytest.raises(CorruptError, match="not canonical"):
        decode_manifest(rewritten(DATA, files=content["files"]), where="ckpt")


@pytest.mark.parametrize("spelling", ["1.5", "15e-1", "1.50", "0.15E+1"])
def test_the_spelling_of_floats_is_free(spelling: str):
    manifest = decode_manifest(replaced(DATA, '{"value":1.5}', f'{{"value":{spelling}}}'), where="")

    assert manifest == small_manifest()


def test_the_freedom_of_floats_does_not_reach_into_strings():
    text = r"1.5 \" 15e-1"
    data = encode_manifest(small_manifest(metadata={"a": text, "b": 2.5}))

    assert decode_manifest(replaced(data, "2.5}", "25e-1}"), where="").metadata["a"] == text
    with pytest.raises(CorruptError, match="not canonical"):
        decode_manifest(replaced(data, '"b":2.5}', '"b":25e-1,"b":2.5}'), where="")


def w(**changes: object) -> tuple[TensorRecord, ...]:
    fields = {"key": "w", "dtype": "F32", "shape": (4, 3), "grid": 0} | changes
    return (TensorRecord(**fields), *small_manifest().tensors[1:])  # pyright: ignore[reportArgumentType]


def boxes(*spans: tuple[int, int]) -> tuple[object, ...]:
    made = tuple([Box((a,), (b,)) for a, b in spans])
    return (small_manifest().grids[0], BoxGrid(made, Runs.of([0] * len(made))))


def splits(*counts: tuple[int, ...], files: tuple[int, int, int] = (0, 1, 2)) -> tuple[object, ...]:
    return (SplitGrid(counts, Runs((files,))), small_manifest().grids[1])


def files(*rows: tuple[int, int, int, int]) -> FileTable:
    """In the order given, unlike `FileTable.of`."""
    ranks, numbers, nbytes, starts = [Runs.of(column) for column in zip(*rows, strict=True)]
    return FileTable(ranks, numbers, nbytes, starts, Digests.of(range(len(rows))))


SENSELESS = [
    ({"save_id": "0123"}, "save id '0123' is not 16"),
    ({"save_id": "../../../../etc/"}, "is not 16 lower-case hex digits"),
    ({"save_id": "0123456789ABCDEF"}, "is not 16 lower-case hex digits"),
    ({"world": 0}, "world: 0 ranks"),
    ({"world": 2**31 + 1}, "world: 2147483649 ranks"),
    ({"tensors": w(key="x")}, "a key is there twice"),
    ({"tensors": w(dtype="F7")}, "tensors: 'w': unknown dtype 'F7'"),
    ({"tensors": w(shape=(2**63, 1))}, "tensors: 'w': .* not from 0 to"),
    ({"tensors": w(shape=(-1, 3))}, "tensors: 'w': .* not from 0 to"),
    ({"tensors": w(shape=(2**31, 2**31))}, "takes more than"),
    ({"tensors": w(shape=(2**62, 2))}, "takes more than"),
    ({"tensors": w(shape=(1,) * 65)}, "a shape of 65 dims"),
    ({"tensors": w(shape=(0, 3))}, r"\[0, 3\] does not go with grid 0"),
    ({"tensors": w(grid=NO_GRID)}, r"\[4, 3\] does not go with grid -1"),
    ({"tensors": w(grid=-2)}, "grid -2 is not one of 2 grids"),
    ({"tensors": w(grid=2)}, "grid 2 is not one of 2 grids"),
    ({"tensors": w(shape=(4,))}, r"shape \[4\] in a grid of 2 dims"),
    ({"tensors": w(grid=1)}, "grid 1 does not tile it: .* reaches outside"),
    ({"grids": splits((2,), (2,))}, r"grids\[0\]: 4 cells, but files for 2"),
    ({"grids": splits((0,), ())}, "a dim is split into 0 pieces"),
    ({"grids": splits((-2, -1), ())}, "a dim is split into -2 pieces"),
    ({"grids": splits((2**24 + 1,), ())}, "a dim is split into 16777217 pieces"),
    ({"grids": splits((2**20,), (2**20,))}, "1099511627776 cells; expected at most"),
    ({"grids": splits((1,) * 65, (2,))}, "more than 64 dims, or splits"),
    ({"grids": splits((2,), (), files=(1, 1, 2))}, r"grids\[0\]: file 2 is not one of 2 files"),
    (
        {"grids": boxes((0, 2), (3, 5))},
        r"tensors: 'x': grid 1 does not tile it: no box holds \[2:3\]",
    ),
    ({"grids": boxes((0, 3), (2, 5))}, r"box 0 and box 1 share \[2:3\]"),
    ({"grids": boxes((0, 3), (3, 6))}, "box 1 reaches outside"),
    ({"grids": boxes((0, 5), (5, 5))}, "has a box without cells"),
    ({"grids": boxes((0, 5), (0, 5))}, "box 0 and box 1 share"),
    ({"grids": boxes()}, r"no box holds \[0:5\]"),
    ({"files": files((0, 0, 8192, 4096), (0, 0, 8192, 4096))}, "rank 0's number 0 does not stand"),
    ({"files": files((1, 0, 8192, 4096), (0, 0, 8192, 4096))}, "does not stand in order"),
    ({"files": files((0, 1, 8192, 4096), (1, 0, 8192, 4096))}, "does not stand in order"),
    ({"files": files((0, 0, 8192, 4096), (2, 0, 8192, 4096))}, "rank 2 is not one of 2 ranks"),
    ({"files": files((0, 0, 8192, 4096), (0, 2**31, 8192, 4096))}, "number 2147483648; expected"),
    ({"files": files((0, 0, 4095, 4096), (1, 0, 8192, 4096))}, "file 0 of 4095 bytes ends before"),
    ({"files": files((0, 0, 8192, 4097), (1, 0, 8192, 4096))}, "no multiple of 4096"),
    ({"files": files((0, 0, 8192, 0), (1, 0, 8192, 4096))}, "header_nbytes from 0 to 4096"),
    ({"files": files((0, 0, 2**40, 4096), (1, 0, 2**40, 2**28))}, "header_nbytes from 4096 to 268"),
    ({"files": FileTable(Runs.of([0]))}, r"columns of lengths \[1, 0, 0, 0, 0\]"),
    ({"per_rank": ("rng", "a")}, "keys are not sorted and distinct"),
    ({"per_rank": ("rng", "rng")}, "keys are not sorted and distinct"),
    ({"per_rank": ()}, "'rng' is not listed in per_rank"),
    ({"tree": TensorNode(3)}, "3 is not one of 3 tensors"),
    ({"metadata": {"a": 2**53}}, "metadata has an integer beyond"),
]


@pytest.mark.parametrize(("changes", "reason"), SENSELESS)
def test_what_makes_no_sense_is_neither_written_nor_read(
    changes: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
):
    manifest = small_manifest(**changes)
    with pytest.raises(InvalidError, match=reason):
        encode_manifest(manifest)
    data = written_without_checks(manifest, monkeypatch)
    with pytest.raises(CorruptError, match=f"^ckpt: .*{reason}"):
        decode_manifest(data, where="ckpt")


def written_without_checks(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The bytes that a careless or hostile writer would store."""
    with monkeypatch.context() as patched:
        patched.setattr("shardkeep.manifest.codec.check_manifest", lambda _: None)
        for check in ("check_index", "check_per_rank"):
            patched.setattr(f"shardkeep.manifest.tree_rules.TreeRules.{check}", lambda *_: None)
        return encode_manifest(manifest)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"rank":[[0,1,2]]', '"rank":[[0,1,3]]', r"columns of lengths \[3, 2, 2, 2, 2\]"),
        ('"rank":[[0,1,2]]', '"rank":[[0,0,1],[1,0,1]]', "files.rank: the run from 0"),
        ('"rank":[[0,1,2]]', '"rank":[[-1,1,2]]', "files.rank: .* leaves the range"),
        ('"files":[[1,0,2]]', '"files":[[1,0,0]]', r"grids\[1\].files: .* is empty"),
        ('"ffffffffffffffff', '"FFFFFFFFFFFFFFFF', "not 16 lower-case hex digits"),
        ('0000000000000005"', '"', "columns of lengths"),
        ('"splits":[[2],[]],', "", "either splits or boxes"),
        ('"splits":[[2],[]],', '"splits":[[2],[]],"boxes":[],', "either splits or boxes"),
        ("[[0],[2]],[[2],[5]]", "[[2],[0]],[[2],[5]]", "a box needs 0 <= start <= stop"),
        ("[[0],[2]],[[2],[5]]", "[[0],[2]],[[2,0],[5,1]]", "box 1 reaches outside"),
        ("[[0],[2]],[[2],[5]]", "[[0],[2]],[[2],[5,1]]", "as many starts as stops"),
        ("[[0],[2]],[[2],[5]]", "[[0],[9223372036854775808]],[[2],[5]]", "a box needs 0 <= start"),
    ],
)
def test_columns_and_grids_that_are_none_are_rejected(old: str, new: str, reason: str):
    with pytest.raises(CorruptError, match=f"^ckpt: .*{reason}"):
        decode_manifest(replaced(DATA, old, new), where="ckpt")


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"a": float("nan")}, "metadata has the number nan"),
        ({"a": (1, 2)}, "metadata has a tuple"),
        ({"a": {1: 2}}, "metadata has the key 1"),
        ({"a": object()}, "metadata has a object"),
        ({"\ud800": 1}, "no valid Unicode"),
    ],
)
def test_metadata_that_would_not_come_back_are_refused(metadata: dict[str, object], reason: str):
    with pytest.raises(InvalidError, match=reason):
        encode_manifest(small_manifest(metadata=metadata))


def test_text_that_cannot_be_written_is_refused():
    with pytest.raises(InvalidError, match="no valid Unicode"):
        encode_manifest(small_manifest(tensors=w(key="\ud800")))
    with pytest.raises(InvalidError, match="no valid Unicode"):
        encode_manifest(small_manifest(per_rank=("\ud800",), tree=ListNode(())))
    with pytest.raises(InvalidError, match="no valid Unicode"):
        encode_manifest(small_manifest(tree=DictNode((("\ud800", ListNode(())),))))


def test_an_empty_state_has_a_manifest():
    manifest = Manifest(SAVE_ID, 1, DictNode(()))

    assert decode_manifest(encode_manifest(manifest), where="") == manifest


def at_depth(frames: int, act: Callable[[], object]) -> object:
    return act() if frames == 0 else at_depth(frames - 1, act)


def test_the_deepest_tree_is_read_and_written_from_a_deep_stack():
    tree: Node = ValueNode(1)
    for level in range(200):
        tree = DictNode(((str(level), tree),))
    manifest = Manifest(SAVE_ID, 1, tree)
    data = encode_manifest(manifest)
    frames = sys.getrecursionlimit() // 2

    assert at_depth(frames, lambda: encode_manifest(manifest)) == data
    assert encode_manifest(at_depth(frames, lambda: decode_manifest(data, where=""))) == data  # pyright: ignore[reportArgumentType]


def test_a_large_job_has_a_small_manifest():
    ranks = 16384
    manifest = Manifest(
        SAVE_ID,
        ranks,
        DictNode(tuple([(str(index), TensorNode(index)) for index in range(1000)])),
        tuple([TensorRecord(f"layers.{i}.weight", "BF16", (ranks, 8), i % 2) for i in range(1000)]),
        (
            SplitGrid(((ranks,), ()), Runs.of(range(ranks))),
            SplitGrid(((ranks // 8,), (8,)), Runs.of(range(ranks))),
        ),
        FileTable.of(
            [FileRecord(rank, 0, 10**6 + rank**3 % 10**5, 4096, rank) for rank in range(ranks)]
        ),
    )
    data = encode_manifest(manifest)

    assert len(data) < 10**6
    assert decode_manifest(data, where="") == manifest
