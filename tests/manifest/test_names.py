"""Names of files stay in their folder; names of chunks are never ambiguous."""

import pytest
from hypothesis import given, strategies as st

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError
from shardkeep.manifest import (
    chunk_name,
    chunk_names,
    file_name,
    new_save_id,
    parse_chunk_name,
    parse_file_name,
)
from shardkeep.testing.box_strategies import boxes_in, shapes
from tests.manifest.examples import SAVE_ID

keys = st.sampled_from(
    ["", "w", "__metadata__", "a@[0:1]", "a@[]", "a@[x].b[0]", "@[", "]", "a@[0:1]@[0:1]", "a/b"]
)


def test_save_ids_are_fresh():
    ids = {new_save_id() for _ in range(100)}

    assert len(ids) == 100
    assert all(file_name(save_id, 0, 0) for save_id in ids)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_a_file_name_says_what_it_was_made_of(rank: int, number: int):
    assert parse_file_name(file_name(SAVE_ID, rank, number)) == (SAVE_ID, rank, number)


def test_ranks_have_at_least_five_digits():
    assert file_name(SAVE_ID, 3, 1) == f"{SAVE_ID}-00003-1.safetensors"
    assert file_name(SAVE_ID, 123456, 0) == f"{SAVE_ID}-123456-0.safetensors"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "manifest.json",
        f"{SAVE_ID}-0003-0.safetensors",
        f"{SAVE_ID}-000003-0.safetensors",
        f"{SAVE_ID}-00003-00.safetensors",
        f"{SAVE_ID}-00003-0.safetensors\n",
        f"{SAVE_ID}-00003-0.safetensors.tmp",
        f"../{SAVE_ID}-00003-0.safetensors",
        f"{SAVE_ID.upper()}-00003-0.safetensors",
        f"{SAVE_ID}-\u0660\u0660\u0660\u0660\u0663-0.safetensors",
        f"{SAVE_ID}-2147483648-0.safetensors",
        f"{SAVE_ID}-00000-2147483648.safetensors",
        f"{SAVE_ID}--0001-0.safetensors",
    ],
)
def test_other_names_are_no_data_files(name: str):
    assert parse_file_name(name) is None


@pytest.mark.parametrize(
    ("save_id", "rank", "number", "reason"),
    [
        ("../../etc/passwd", 0, 0, "is not 16 lower-case hex digits"),
        (SAVE_ID + "\n", 0, 0, "is not 16 lower-case hex digits"),
        ("0" * 10**6, 0, 0, r"'0+'\.\.\. is not 16"),
        (SAVE_ID, -1, 0, "no file has rank -1"),
        (SAVE_ID, 0, -1, "no file has rank 0 and number -1"),
        (SAVE_ID, 2**31, 0, "no file has rank"),
    ],
)
def test_no_other_file_name_is_made(save_id: str, rank: int, number: int, reason: str):
    with pytest.raises(InvalidError, match=reason):
        file_name(save_id, rank, number)


def test_the_examples_of_the_format_page():
    assert chunk_name("model.wq", Box((0, 0), (128, 4096)), (256, 4096)) == (
        "model.wq@[0:128,0:4096]"
    )
    assert chunk_name("model.wq", Box((0, 0), (256, 4096)), (256, 4096)) == "model.wq"


def test_keys_that_look_like_something_else_always_get_a_suffix():
    assert chunk_name("__metadata__", Box((0,), (4,)), (4,)) == "__metadata__@[0:4]"
    assert chunk_name("a@[0:2]", Box((0,), (4,)), (4,)) == "a@[0:2]@[0:4]"
    assert chunk_name("__metadata__", Box((), ()), ()) == "__metadata__@[]"


@pytest.mark.parametrize("box", [Box((0,), (4,)), Box((0,), (2,)), Box((2,), (4,))])
def test_many_names_are_what_each_would_be(box: Box):
    keys = ["model.wq", "__metadata__", "a@[0:2]", "a]", ""]
    assert chunk_names(keys, box, (4,)) == [chunk_name(key, box, (4,)) for key in keys]


@given(st.data(), keys, shapes())
def test_a_chunk_name_says_which_box_of_which_key(data: st.DataObject, key: str, shape):
    box = data.draw(boxes_in(shape) | st.just(Box.whole(shape)))
    found_key, found_box = parse_chunk_name(chunk_name(key, box, shape))

    assert found_key == key
    assert (found_box or Box.whole(shape)) == box


def test_the_metadata_are_no_chunk():
    with pytest.raises(InvalidError, match="no chunk is called '__metadata__'"):
        parse_chunk_name("__metadata__")
    with pytest.raises(InvalidError, match="not a box"):
        parse_chunk_name("a@[x]")
