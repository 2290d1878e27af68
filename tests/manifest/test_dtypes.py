"""The dtypes of the format: sizes, and what safetensors stores them as."""

import pytest

from shardkeep.errors import InvalidError
from shardkeep.manifest import DTYPES, itemsize, storage_entry, tensor_nbytes
from shardkeep.manifest.dtypes import STORED_ITEMSIZES


def test_the_table_is_the_one_of_the_format_page():
    same = [
        "BOOL",
        "U8",
        "I8",
        "U16",
        "I16",
        "U32",
        "I32",
        "U64",
        "I64",
        "F16",
        "BF16",
        "F32",
        "F64",
        "F8_E4M3",
        "F8_E5M2",
    ]

    assert list(STORED_ITEMSIZES) == same
    assert list(DTYPES) == [*same, "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0FNU", "C64", "C128"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_item_has_the_size_that_is_stored(dtype: str):
    stored, shape = storage_entry(dtype, (3, 5))
    numbers = shape[2] if len(shape) == 3 else 1

    assert shape[:2] == (3, 5)
    assert itemsize(dtype) == STORED_ITEMSIZES[stored] * numbers
    assert tensor_nbytes(dtype, (3, 5)) == 15 * itemsize(dtype)


def test_complex_numbers_are_pairs():
    assert storage_entry("C64", ()) == ("F32", (2,))
    assert storage_entry("C128", (0, 3)) == ("F64", (0, 3, 2))


def test_float8_variants_that_safetensors_lacks_are_bytes():
    assert storage_entry("F8_E4M3FNUZ", (2,)) == ("U8", (2,))


@pytest.mark.parametrize(
    ("dtype", "shape", "reason"),
    [
        ("float32", (), "unknown dtype 'float32'; known are BOOL, U8"),
        ("F32", (2**63,), "not from 0 to 2"),
        ("F32", (-1,), "not from 0 to 2"),
        ("F32", (True,), "not from 0 to 2"),
        ("F32", (10**5000,), "an int of 16610 bits"),
        ("F32", (2**61,), "takes more than 2"),
        ("F32", (2**40, 2**40), "takes more than 2"),
        ("F32", (0, 2**40, 2**40), "takes more than 2"),
        ("F32", (1,) * 65, "a shape of 65 dims"),
    ],
)
def test_what_no_tensor_can_be_is_refused(dtype: str, shape: tuple[int, ...], reason: str):
    with pytest.raises(InvalidError, match=reason):
        tensor_nbytes(dtype, shape)


def test_the_largest_tensor_is_not_refused():
    assert tensor_nbytes("U8", (2**63 - 1,)) == 2**63 - 1
    assert tensor_nbytes("F32", (0,)) == 0
