"""A data file's header comes back from its bytes, and no other bytes pass for one."""

from __future__ import annotations

import json
from itertools import product

import pytest
import xxhash
from hypothesis import given, strategies as st

from shardkeep.boxes import Box
from shardkeep.errors import CorruptError, InvalidError, VersionError
from shardkeep.manifest import (
    EntrySpec,
    FileRecord,
    FileTable,
    Header,
    Manifest,
    PerRankNode,
    Runs,
    SplitGrid,
    TensorNode,
    TensorRecord,
    ValueNode,
    decode_header,
    decode_listed_header,
    header_digest,
    header_length,
)
from tests.manifest.examples import SAVE_ID, texts, trees
from tests.manifest.headers import DATA_NBYTES, ENTRIES, encoded, entry_lists, forged, padded, plan


def read(data: bytes, data_nbytes: int = DATA_NBYTES) -> Header:
    return decode_header(data, file_nbytes=len(data) + data_nbytes, where="f")


@given(
    st.data(),
    entry_lists(),
    st.integers(0, 2**31 - 1),
    st.sampled_from([4096, 2**20, 2**24]),
    st.dictionaries(texts, trees(0), max_size=2),
)
def test_a_header_comes_back(data: st.DataObject, entries, rank: int, block: int, per_rank):
    made = plan(entries, rank=rank, block_nbytes=block, per_rank=per_rank)
    digests = [data.draw(st.integers(0, 2**64 - 1)) for _ in range(made.block_count)]
    text = made.encode(digests)
    header = read(text, sum([nbytes for *_, nbytes in entries]))

    assert len(text) == made.header_nbytes == header.header_nbytes
    assert len(text) % 4096 == 0
    assert (header.save_id, header.rank, header.number) == (SAVE_ID, rank, 0)
    assert (header.block_nbytes, list(header.digests)) == (block, digests)
    assert header.per_rank == per_rank
    found = [(name, e.dtype, e.shape, e.stop - e.start) for name, e in header.entries.items()]
    assert found == entries


def test_entries_lie_one_after_the_other_behind_the_header():
    header = read(encoded())

    assert [(entry.start, entry.stop) for entry in header.entries.values()] == [
        (4096, 4120),
        (4120, 4128),
    ]


def test_of_no_tensors_there_are_no_starts():
    assert read(encoded()).starts([], Box((0,), (3,)), where="f") == []


def test_the_bytes_are_those_that_the_format_page_describes():
    data = encoded()
    text = data[8:].rstrip(b" ").decode()
    content = json.loads(text)
    metadata = content.pop("__metadata__")

    assert data[:8] == (4096 - 8).to_bytes(8, "little")
    assert list(metadata) == ["shardkeep"]
    assert json.loads(metadata["shardkeep"]) == {
        "version": 1,
        "save_id": SAVE_ID,
        "rank": 3,
        "number": 0,
        "block": 4096,
        "digests": "fffffffffffffffe",
        "per_rank": {"rng": {"value": 7}},
    }
    assert content == {
        "w@[0:2,0:3]": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "I16", "shape": [4], "data_offsets": [24, 32]},
    }
    whole = {"__metadata__": metadata} | content
    assert json.dumps(whole, separators=(",", ":")) == text


def test_the_size_is_known_before_the_digests():
    entries: list[EntrySpec] = [("w", "U8", (10**6,), 10**6)]
    made = plan(entries)

    assert made.block_count == 245
    assert len(made.encode([2**64 - 1] * 245)) == len(made.encode([0] * 245)) == made.header_nbytes
    with pytest.raises(InvalidError, match="244 digests for 245 blocks"):
        made.encode([0] * 244)


def test_every_flipped_bit_is_rejected():
    data = encoded()
    digest = header_digest(data)

    assert digest == xxhash.xxh3_64_intdigest(data)
    text_nbytes = len(data.rstrip(b" "))
    # Of the padding a few places stand for all.
    places = [*range(text_nbytes), text_nbytes + 1, len(data) - 1]
    for place, bit in product(places, range(8)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << bit
        with pytest.raises(CorruptError, match=r"^f: "):
            decode_header(
                bytes(damaged), file_nbytes=len(data) + DATA_NBYTES, where="f", digest=digest
            )


def test_every_truncation_is_rejected():
    data = encoded()
    for size in range(0, len(data), 7):
        with pytest.raises(
            CorruptError, match=r"are no data file|a header of 4088 bytes in a file"
        ):
            decode_header(data[:size], file_nbytes=size, where="f")
    with pytest.raises(CorruptError, match="a header of 4096 bytes, but 4000 were read"):
        decode_header(data[:4000], file_nbytes=9999, where="f")


REJECTED = [
    (r"{\"version\":1,", r"{\"versio\":1,", "not a file of the format 'shardkeep'"),
    ('"shardkeep":"', '"format":"pt","shardkeep":"', "not a file of the format 'shardkeep'"),
    ('"},"w@', '","more":"x"},"w@', "unknown field `more`"),
    (r"\"rank\":3", r"\"rank\":3,\"rank\":3", "duplicate keys"),
    (r"\"rank\":3", r"\"rank\": 3", "white space"),
    (r"\"rank\":3", r"\"rank\":3,\"more\":1", "unknown field `more`"),
    (r"\"rank\":3,", "", "missing required field `rank`"),
    (r"\"rank\":3", r"\"rank\":-3", "no file has rank -3"),
    (r"\"number\":0", r"\"number\":2147483648", "number 2147483648"),
    (r"\"number\":0", r"\"number\":1", "file number 1 has per_rank values; only number 0"),
    (SAVE_ID, SAVE_ID.upper(), "is not 16 lower-case hex digits"),
    (r"\"block\":4096", r"\"block\":4097", "blocks of 4097 bytes; expected a power of two"),
    (r"\"block\":4096", r"\"block\":2048", "blocks of 2048 bytes"),
    (r"\"block\":4096", r"\"block\":33554432", "blocks of 33554432 bytes"),
    (r"\"block\":4096", r"\"block\":0", "blocks of 0 bytes"),
    ("fffffffffffffffe", "", "0 digests for 1 blocks"),
    ("fffffffffffffffe", "f" * 32, "2 digests for 1 blocks"),
    ("fffffffffffffffe", "f" * 15, "not 16 lower-case hex digits each"),
    ("fffffffffffffffe", "F" * 16, "not 16 lower-case hex digits each"),
    ("fffffffffffffffe", "ffffffff ffffffff", "not 16 lower-case hex digits each"),
    ("fffffffffffffffe", "f" * 15 + r"\\u0066", "written in another way"),
    ("fffffffffffffffe", "f" * 16 + r"\\n", "not 16 lower-case hex digits each"),
    (r"{\"value\":7}", "0", "0 is not one of 0 tensors"),
    (r"{\"value\":7}", r"{\"array\":0}", "0 is not one of 0 tensors"),
    (r"{\"value\":7}", r"{\"per_rank\":\"rng\"}", "'rng' is not listed in per_rank"),
    (r"{\"rng\":", r"{\"z\":{\"value\":1},\"rng\":", "keys are not sorted"),
    (r"{\"rng\":", r"{\"rng\":{\"value\":1},\"rng\":", "duplicate keys"),
    ('"b":{', '"w@[0:2,0:3]":{', "duplicate keys"),
    ('"b":{', '"__metadata__":{', "duplicate keys"),
    ('"b":{', '"b": {', "white space"),
    ('"dtype":"I16"', '"dtype":"I16","dtype":"I16"', "duplicate keys"),
    ('"dtype":"I16","shape":[4]', '"shape":[4],"dtype":"I16"', "fields .* in another way"),
    ('"dtype":"I16",', "", "entry 'b' lacks dtype, shape or data_offsets"),
    (',"data_offsets":[24,32]', "", "entry 'b' lacks"),
    ('"dtype":"I16"', '"shardkeep":"x","dtype":"I16"', "entry 'b' has a field of __metadata__"),
    ('"dtype":"I16"', '"dtype":"I16","more":1', "unknown field `more`|not canonical"),
    ('"I16"', '"C64"', "entry 'b' has the unknown dtype 'C64'"),
    ('"I16"', '"F8_E8M0FNU"', "entry 'b' has the unknown dtype"),
    ('"I16"', '"I32"', "entry 'b' of 8 bytes does not fit I32"),
    ("[4]", "[5]", "does not fit I16 of shape .5."),
    ("[4]", "[-2,-2]", "does not fit I16"),
    ("[4]", "[4.0]", "Expected `int`, got `float`"),
    ("[24,32]", "[24,32,40]", "length 2"),
    ("[24,32]", "[25,33]", "no multiple of its item size 2"),
    ("[24,32]", "[26,34]", "starts at byte 4122, but the one before it ends at 4120"),
    ("[24,32]", "[22,30]", "starts at byte 4118, but the one before it ends at 4120"),
    ("[24,32]", "[32,24]", "of -8 bytes does not fit"),
    ("[24,32]", "[-8,0]", "no multiple of its item size"),
    (
        '[4],"data_offsets":[24,32]',
        '[8],"data_offsets":[24,40]',
        "entries end at byte 4136 of a fi",
    ),
    (
        '[4],"data_offsets":[24,32]',
        '[3],"data_offsets":[24,30]',
        "entries end at byte 4126 of a fi",
    ),
    ('"b"', r'"\u0062"', "written in another way"),
    ('"b"', '"\x01"', "malformed|invalid character"),
]


@pytest.mark.parametrize(("old", "new", "reason"), REJECTED)
def test_what_no_writer_writes_is_rejected(old: str, new: str, reason: str):
    with pytest.raises(CorruptError, match=f"^f: .*({reason})"):
        read(forged(encoded(), old, new))


def test_entries_out_of_order_are_rejected():
    text = encoded()[8:].rstrip(b" ")
    head, w, b = text.partition(b'"w@')[0], text[text.index(b'"w@') : -1], b""
    w, _, b = w.partition(b',"b"')

    with pytest.raises(CorruptError, match="leave no holes and do not overlap"):
        read(padded(head + b'"b"' + b + b"," + w + b"}"))


def test_a_newer_version_is_told_from_damage():
    data = forged(encoded(), r"{\"version\":1,", r"{\"version\":2,\"new\":[],")

    with pytest.raises(
        VersionError, match=r"^f: written in format version 2.*Use a newer shardkeep"
    ):
        read(data)


def test_a_header_is_padded_with_spaces_and_no_more_than_needed():
    data = encoded()
    text = data[8:].rstrip(b" ")

    with pytest.raises(CorruptError, match="padded with 4096 spaces or more"):
        read((8184).to_bytes(8, "little") + text.ljust(8184))
    with pytest.raises(CorruptError, match="white space"):
        read(data[:-1] + b"\n")
    with pytest.raises(CorruptError, match="trailing characters"):
        read(data[:-1] + b"}")
    with pytest.raises(CorruptError, match="not a file of the format"):
        read(data[:8] + b" " + text.ljust(4087))


@pytest.mark.parametrize(
    ("length", "file_nbytes", "reason"),
    [
        (0, 4096, "the data start at byte 8, no multiple of 4096"),
        (4088, 4095, "a header of 4088 bytes in a file of 4095"),
        (4089, 9999, "the data start at byte 4097"),
        (100_000_001, 2**40, "a header of 100000001 bytes; at most 100000000"),
    ],
)
def test_lengths_that_cannot_be_are_rejected(length: int, file_nbytes: int, reason: str):
    first = length.to_bytes(8, "little")

    with pytest.raises(CorruptError, match=f"^f: {reason}"):
        header_length(first, file_nbytes=file_nbytes, where="f")


def test_the_length_is_told_by_the_first_bytes():
    assert header_length(encoded()[:8], file_nbytes=4096, where="f") == 4096
    with pytest.raises(CorruptError, match="f: 7 bytes are no data file"):
        header_length(b"\0" * 7, file_nbytes=7, where="f")


UNPLANNABLE = [
    ({"save_id": "x"}, "save id 'x' is not 16"),
    ({"rank": -1}, "no file has rank -1"),
    ({"number": 1}, "per_rank values go into file number 0, not 1"),
    ({"block_nbytes": 5000}, "blocks of 5000 bytes"),
    ({"block_nbytes": 0}, "blocks of 0 bytes"),
    ({"data_nbytes": 33}, "entries of 32 bytes make no data of 33 bytes"),
    ({"entries": [*ENTRIES, ENTRIES[1]]}, "two entries have the same name"),
    ({"entries": [("__metadata__", "U8", (1,), 1)]}, "or one is called '__metadata__'"),
    ({"entries": [("a", "C64", (1,), 8)]}, "unknown dtype 'C64'"),
    ({"entries": [("a", "F32", (1,), 8)]}, "of 8 bytes does not fit F32"),
    ({"entries": [("a", "U8", (1,), 1), ("b", "F32", (1,), 4)]}, "order entries by falling item"),
    ({"entries": [("\ud800", "U8", (1,), 1)]}, "no valid Unicode"),
    ({"per_rank": {"a": TensorNode(0)}}, "0 is not one of 0 tensors"),
    ({"per_rank": {"a": PerRankNode("a")}}, "'a' is not listed in per_rank"),
    ({"per_rank": {"\ud800": ValueNode(1)}}, "no valid Unicode"),
]


@pytest.mark.parametrize(("changes", "reason"), UNPLANNABLE)
def test_what_a_reader_would_reject_is_not_written(changes, reason: str):
    with pytest.raises(InvalidError, match=reason):
        plan(**changes)


def test_a_header_that_no_reader_takes_is_refused_with_the_way_out():
    data_nbytes = 2**36

    with pytest.raises(
        InvalidError, match=r"too long.*fewer chunks into one file, or larger blocks"
    ):
        plan([("a", "U8", (data_nbytes,), data_nbytes)])


def listed(header: bytes, **changes: int) -> Manifest:
    fields = {"rank": 3, "number": 0, "nbytes": len(header) + 32, "header_nbytes": len(header)}
    record = FileRecord(**{**fields, "header_digest": header_digest(header), **changes})
    return Manifest(
        SAVE_ID,
        4,
        TensorNode(0),
        (TensorRecord("w", "F32", (4, 3), 0), TensorRecord("b", "I16", (4,), 1)),
        (SplitGrid(((2,), ()), Runs.of([0, 0])), SplitGrid(((),), Runs.of([0]))),
        FileTable.of([record]),
    )


def read_listed(data: bytes, manifest: Manifest, file_nbytes: int | None = None) -> Header:
    nbytes = len(data) + 32 if file_nbytes is None else file_nbytes
    return decode_listed_header(data, manifest=manifest, index=0, file_nbytes=nbytes, where="f")


def test_a_listed_header_is_as_the_manifest_says():
    data = encoded()

    assert read_listed(data, listed(data)) == read(data)
    with pytest.raises(CorruptError, match="f: 4129 bytes; the manifest says 4128"):
        read_listed(data, listed(data), 4129)
    with pytest.raises(CorruptError, match="f: the header's digest does not match"):
        read_listed(data, listed(data, header_digest=5))
    for changes in ({"rank": 2}, {"number": 1}, {"header_nbytes": 8192}):
        with pytest.raises(CorruptError, match="f: save id, rank, number and header size"):
            read_listed(data, listed(data, **changes))


def test_another_attempts_file_is_rejected():
    data = plan(save_id="f" * 16).encode([1])

    with pytest.raises(CorruptError, match=r"'f{16}', 3, 0, 4096\); the manifest says"):
        read_listed(data, listed(data))


def test_a_chunk_is_found_and_is_as_the_manifest_says():
    data = encoded()
    header, manifest = read(data), listed(data)
    w, b = manifest.tensors

    assert header.chunk(w, Box((0, 0), (2, 3)), where="f").start == 4096
    assert header.chunk(b, Box((0,), (4,)), where="f").stop == 4128
    with pytest.raises(CorruptError, match=r"f: holds no chunk 'w@\[2:4,0:3\]'"):
        header.chunk(w, Box((2, 0), (4, 3)), where="f")
    wrong = TensorRecord("b", "BF16", (4,), 1)
    with pytest.raises(CorruptError, match=r"'b' is I16 of shape \[4\]; the manifest says BF16 of"):
        header.chunk(wrong, Box((0,), (4,)), where="f")
    longer = TensorRecord("b", "I16", (5,), 1)
    with pytest.raises(CorruptError, match=r"the manifest says I16 of shape \[5\]"):
        header.chunk(longer, Box((0,), (5,)), where="f")
