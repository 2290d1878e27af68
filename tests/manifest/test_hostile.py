"""Small files that ask for much are rejected at once, without the memory that they ask for."""

import time
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from shardkeep.errors import CorruptError, InvalidError, VersionError
from shardkeep.manifest import decode_header, decode_manifest, encode_manifest, header_length
from shardkeep.manifest.limits import MAX_MANIFEST_NBYTES
from tests.manifest.examples import replaced, signed, small_manifest
from tests.manifest.headers import encoded, forged, padded, plan

DATA = encode_manifest(small_manifest())
MIB = 2**20


def rejected(act: Callable[[], object], reason: str, *, seconds: float = 2, mib: int = 40) -> None:
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(CorruptError, match=reason) as caught:
            act()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < seconds
    assert peak < mib * MIB
    assert len(str(caught.value)) < 2000


HUGE = 2**60
MANY_DIGITS = "9" * 4000
MANY_SPLITS = f"[{','.join(['16777216'] * 64)}]"


MANIFESTS = [
    (
        '"files":[[0,1,2]]',
        f'"files":[[0,0,{HUGE}]]',
        r"grids\[0\].files: runs of 1152921504606",
    ),
    ('"files":[[0,1,2]]', f'"files":[[0,0,{MANY_DIGITS}]]', "runs of an int of 13288 bits"),
    ('"rank":[[0,1,2]]', f'"rank":[[0,0,{HUGE}]]', "files.rank: runs of"),
    ('"rank":[[0,1,2]]', '"rank":[[0,0,16777216]]', "columns of lengths"),
    ('"splits":[[2],[]]', f'"splits":[[{HUGE}],[]]', "split into 1152921504606846976 pieces"),
    ('"splits":[[2],[]]', f'"splits":[[{MANY_DIGITS}],[]]', "split into an int of 13288 bits"),
    ('"splits":[[2],[]]', '"splits":[[16777216],[16777216]]', "281474976710656 cells"),
    (
        '"splits":[[2],[]]',
        f'"splits":[{",".join([MANY_SPLITS] * 64)}]',
        "an int of 98305 bits cells",
    ),
    ('"splits":[[2],[]]', f'"splits":[[{",".join(["2"] * 10**5)}],[]]', "more than 64 dims"),
    ('"splits":[[2],[]]', f'"splits":[{",".join(["[]"] * 5 * 10**4)}]', "more than 64 dims"),
    ("[4,3]", f"[{2**63},3]", "not from 0 to"),
    ("[4,3]", f"[{2**62},{2**62}]", "takes more than"),
    ("[4,3]", f"[{MANY_DIGITS},3]", "an int of 13288 bits"),
    ("[4,3]", f"[{','.join([str(2**62)] * 10**5)}]", "a shape of 100000 dims"),
    ('"world":2', f'"world":{MANY_DIGITS}', "world: an int of 13288 bits"),
    ('"world":2', f'"world":{"9" * 10**6}', "Integer value out of range"),
    ('["w",0]', f'["w",{MANY_DIGITS}]', "an int of 13288 bits is not one of"),
    ('{"value":1.5}', f'{{"value":{{"int":"{"9" * 10**6}"}}}}', "not the digits of an int"),
    (
        '{"value":1.5}',
        f'{{"value":{{"a.b":{"[" * 500}{"]" * 500}}}}}',
        "deeper than 100 levels",
    ),
    ('{"value":1.5}', f'{{"value":{"[" * 5 * 10**4}{"]" * 5 * 10**4}}}', "nested too deeply"),
    ('["w",0]', f'["w",{"[" * 5 * 10**4}{"]" * 5 * 10**4}]', "nested too deeply"),
    ('["w",0]', f'["w",{"[" * 5 * 10**4}]', "nested too deeply"),
    ('["w",0]', f'["w",{"[" * 10**6}]', "more lists and objects than"),
    ('["w",0]', f'["w",{{"list":[{"[]," * 10**6}0]}}]', "more lists and objects than"),
    ('"step":3', f'"step":[{"{}," * 10**6}0]', "more lists and objects than"),
    ('["w",0]', '["w",' + '{"list":[' * 250 + "0" + "]}" * 250 + "]", "deeper than 200 levels"),
    ('"step":3', f'"step":{"[" * 300}{"]" * 300}', "metadata is nested deeper than 100"),
    ('"step":3', f'"{"k" * 10**6}":3,"step":3,"step":3', "duplicate keys"),
    ("[[0],[2]]", f"[[0],[{HUGE}]]", "reaches outside"),
    (
        "[[0],[2]]",
        f"[[{','.join(['0'] * 10**5)}],[{','.join(['2'] * 10**5)}]]",
        "outside shape",
    ),
    ("[[0],[2]]", f"[[0],[{MANY_DIGITS}]]", r"got 0:9+\.\.\.$"),
    ('"w","F32"', f'"w","{"F" * 10**6}"', r"unknown dtype 'F+'\.\.\.;"),
    ('"w","F32"', f'"{"w" * 10**6}","F7"', r"tensors: 'w+'\.\.\.: unknown dtype"),
]


def short(text: object) -> str:
    return str(text)[:40]


@pytest.mark.parametrize(("old", "new", "reason"), MANIFESTS, ids=short)
def test_a_manifest_that_asks_for_much_is_rejected(old: str, new: str, reason: str):
    data = replaced(DATA, old, new)

    rejected(lambda: decode_manifest(data, where="ckpt"), reason)


def test_boxes_in_many_dims_are_rejected():
    """Each box has 2**60 corners."""
    low, high = "[" + ",".join("0" * 60) + "]", "[" + ",".join("2" * 60) + "]"
    first, second = low.replace("0", "1", 0), high.replace("2", "1")
    data = replaced(DATA, '["x","I64",[5],1]', f'["x","U8",{high},1]')
    data = replaced(data, "[[0],[2]],[[2],[5]]", f"[{first},{second}],[{second},{high}]")

    rejected(lambda: decode_manifest(data, where="ckpt"), "too many corners")


def test_a_manifest_above_the_limit_is_not_even_hashed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shardkeep.manifest.head.MAX_MANIFEST_NBYTES", len(DATA) - 1)

    assert MAX_MANIFEST_NBYTES == 2**27
    with pytest.raises(CorruptError, match=f"a manifest of {len(DATA)} bytes; expected at most"):
        decode_manifest(DATA, where="ckpt")


def test_a_manifest_above_the_limit_is_not_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shardkeep.manifest.codec.MAX_MANIFEST_NBYTES", len(DATA) - 1)

    with pytest.raises(InvalidError, match="bytes; the format allows"):
        encode_manifest(small_manifest())


def test_more_files_than_the_limit_are_rejected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shardkeep.manifest.file_checks.MAX_FILES", 1)

    with pytest.raises(CorruptError, match="files: 2; expected at most 1"):
        decode_manifest(DATA, where="ckpt")


OTHER_FILES = [b"", b"{}", b"\0" * 10**6, b"[" * 10**6, b" " * 45, DATA * 2]


@pytest.mark.parametrize("data", OTHER_FILES, ids=range(len(OTHER_FILES)))
def test_other_files_are_no_manifests(data: bytes):
    rejected(lambda: decode_manifest(data, where="ckpt"), "digest")


def test_a_signed_heap_of_brackets_is_no_manifest():
    head = b'{"format":"shardkeep","version":1,"save_id":'

    rejected(
        lambda: decode_manifest(signed(head + b"[" * 5 * 10**4 + DATA[-45:]), where="ckpt"),
        "nested too deeply|Expected `str`",
    )


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001, 2**28])
def test_a_huge_header_length_is_rejected(length: int):
    first = length.to_bytes(8, "little")

    rejected(lambda: header_length(first, file_nbytes=2**62, where="f"), "a header of .* at most")


HEADERS = [
    ("[2,3]", f"[{2**63},{2**63}]", "does not fit F32"),
    ("[2,3]", f"[{MANY_DIGITS},3]", "does not fit F32 of shape .an int of 13288 bits"),
    ("[2,3]", f"[{','.join([str(2**62)] * 10**5)}]", "has 100000 dims"),
    ("[0,24]", f"[0,{MANY_DIGITS}]", "an int of 13288 bits bytes does not fit"),
    ("[0,24]", f"[-{MANY_DIGITS},24]", "does not fit"),
    ("[2,3]", "[" * 5 * 10**4 + "]" * 5 * 10**4, "Expected `int`, got `array`|nested too deeply"),
    (r"\"block\":4096", r"\"block\":" + MANY_DIGITS, "blocks of an int of 13288 bits bytes"),
    (r"\"rank\":3", r"\"rank\":" + MANY_DIGITS, "no file has rank an int of 13288 bits"),
    (r"{\"value\":7}", "[" * 5 * 10**4 + "]" * 5 * 10**4, "nested too deeply"),
]


@pytest.mark.parametrize(("old", "new", "reason"), HEADERS, ids=short)
def test_a_header_that_asks_for_much_is_rejected(old: str, new: str, reason: str):
    data = forged(encoded(), old, new)

    rejected(lambda: decode_header(data, file_nbytes=len(data) + 32, where="f"), reason)


TOKENS = [b"0", b"-1", b"1", b"2", b"9223372036854775808", b"1.5", b"[]", b"[", b"]", b"{", b"}"]
TOKENS += [b",", b":", b'"', b'""', b'"w"', b"null", b"true", b" ", b"[[0,1,2]]", b'{"list":[]}']
TOKENS += [b"\\", b"\xff", b""]
edits = st.lists(
    st.tuples(st.integers(0, 10**4), st.integers(0, 12), st.sampled_from(TOKENS)),
    min_size=1,
    max_size=3,
)


def edited(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for place, count, token in changes:
        start = place % len(data)
        data = data[:start] + token + data[start + count :]
    return data


@given(edits)
def test_any_edit_of_a_signed_manifest_is_rejected_or_is_a_manifest(changes):
    data = signed(edited(DATA[:-45], changes) + DATA[-45:])
    try:
        manifest = decode_manifest(data, where="ckpt")
    except (CorruptError, VersionError):
        return
    again = encode_manifest(manifest)
    assert again == data or b"." in data


@given(edits)
def test_any_edit_of_a_header_is_rejected_or_is_a_header(changes):
    text = encoded()[8:].rstrip(b" ")
    data = padded(edited(text, changes))
    try:
        header = decode_header(data, file_nbytes=len(data) + 32, where="f")
    except (CorruptError, VersionError):
        return
    entries = [(name, e.dtype, e.shape, e.stop - e.start) for name, e in header.entries.items()]
    made = plan(
        entries,
        save_id=header.save_id,
        rank=header.rank,
        number=header.number,
        block_nbytes=header.block_nbytes,
        per_rank=dict(header.per_rank),
    )
    assert made.encode(header.digests) == data
