"""Values come back the same, type and all; what is not one is refused, whatever it is."""

import math
import time
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardkeep.errors import CorruptError, InvalidError
from shardkeep.manifest import check_json, decode_value, encode_value, register_value, registry
from shardkeep.manifest.plain_json import shown
from tests.manifest.examples import any_json, plain_json, plain_values


def same(a: object, b: object) -> bool:
    """Equal in type and value; nan is nan, and 0.0 is not -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, complex) and isinstance(b, complex):
        return same(float(a.real), float(b.real)) and same(float(a.imag), float(b.imag))
    if isinstance(a, float) and isinstance(b, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return a == b


@given(plain_values)
def test_a_value_comes_back(value: object):
    text = msgspec.json.encode(encode_value(value))

    assert same(decode_value(msgspec.json.decode(text)), value)


NUMPY_SCALARS = [
    np.bool_(True),
    np.int8(-128),
    np.uint8(255),
    np.int64(-(2**63)),
    np.uint64(2**64 - 1),
    np.longlong(7),
    np.float16(0.1),
    np.float32(0.1),
    np.float32("nan"),
    np.float64(-0.0),
    np.float64("-inf"),
    np.complex64(0.1 - 2j),
    np.complex128(complex("nan+infj")),
    np.str_("é"),
    np.str_("a\0"),
    np.bytes_(b"\xff\x00"),
]


@pytest.mark.parametrize("scalar", NUMPY_SCALARS, ids=lambda scalar: scalar.dtype.name)
def test_a_numpy_scalar_comes_back_in_its_dtype(scalar: np.generic):
    text = msgspec.json.encode(encode_value(scalar))
    back = decode_value(msgspec.json.decode(text))

    assert isinstance(back, np.generic)
    assert back.dtype == scalar.dtype
    assert back.tobytes() == scalar.tobytes()


def test_numpy_scalars_are_written_by_dtype_and_value():
    assert encode_value(np.float32(0.5)) == {"numpy": ["float32", 0.5]}
    assert encode_value(np.uint64(2**60)) == {"numpy": ["uint64", {"int": str(2**60)}]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "a builtins.object cannot be kept: use None, bool"),
        ([1], "a builtins.list cannot be kept"),
        pytest.param(10**4300, "an int of 14285 bits cannot be kept: write it as bytes", id="huge"),
        pytest.param(-(10**4300), "an int of 14285 bits", id="-huge"),
        ("\ud800", "no valid Unicode"),
        (np.zeros(2), "a numpy.ndarray cannot be kept as a value"),
        (np.datetime64("2020-01-01"), "a numpy.datetime64 cannot be kept as a value"),
        (np.longdouble(1), "a numpy.longdouble cannot be kept as a value"),
        (type("Text", (str,), {})("a"), "Text cannot be kept"),
    ],
)
def test_other_types_are_refused(value: object, reason: str):
    with pytest.raises(InvalidError, match=reason):
        encode_value(value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([1], "a value is no list"),
        (2**53, "a plain integer is beyond"),
        (-(2**53), "a plain integer is beyond"),
        (math.inf, "a plain number is inf"),
        ({}, "a value has one type, found 0"),
        ({"int": "1", "float": "nan"}, "a value has one type, found 2"),
        ({"int": 5}, "not the digits of an int: 5"),
        ({"int": "5"}, "small enough to be plain"),
        ({"int": "0" + "9" * 20}, "not the digits"),
        ({"int": "+" + "9" * 20}, "not the digits"),
        ({"int": "9_" + "9" * 20}, "not the digits"),
        ({"int": "\u0669" * 20}, "not the digits"),
        ({"int": " " + "9" * 20}, "not the digits"),
        ({"int": "9" * 4301}, "more than 4300 digits"),
        ({"int": "9" * 10**7}, "not the digits"),
        ({"float": "1.5"}, "not one of nan, inf, -inf"),
        ({"float": "NaN"}, "not one of nan"),
        ({"float": [1]}, "not one of nan"),
        ({"complex": ["1"]}, "two parts, found a list of 1"),
        ({"complex": "12"}, "two parts"),
        ({"complex": [1.0, 2.0]}, "not a part of a complex number: 1.0"),
        ({"complex": ["1", "infinity"]}, "not a part"),
        ({"complex": ["1", "1_0"]}, "not a part"),
        ({"complex": ["1", "1" * 41]}, "not a part"),
        ({"bytes": "YWI"}, "not base64"),
        ({"bytes": "YW\nI="}, "not base64"),
        ({"bytes": "YWJ="}, "not base64"),
        ({"bytes": "é"}, "not base64"),
        ({"bytes": 7}, "not base64: 7"),
        ({"bytes": ""} | {"x": 1}, "one type"),
        ({"numpy": "float32"}, "not a NumPy scalar"),
        ({"numpy": ["float32"]}, "not a NumPy scalar"),
        ({"numpy": ["object", 1]}, "not a NumPy scalar"),
        ({"numpy": [["f"], 1]}, "not a NumPy scalar"),
        ({"numpy": ["int8", 300]}, "300 is no NumPy int8"),
        ({"numpy": ["uint8", -1]}, "-1 is no NumPy uint8"),
        ({"numpy": ["int8", 1.0]}, "a NumPy int8 is no float"),
        ({"numpy": ["float32", 0.1]}, "0.1 is no NumPy float32"),
        ({"numpy": ["float16", 1e300]}, "is no NumPy float16"),
        ({"numpy": ["float32", {"numpy": ["float32", 1.0]}]}, "within a NumPy scalar"),
        ({"nope": 1}, "unknown type of value 'nope'"),
        ({"": 1}, "unknown type of value ''"),
        ({"a.b\n": 1}, "unknown type of value"),
        ({"x" * 10**6: 1}, r"unknown type of value 'x+'\.\.\.$"),
    ],
)
def test_what_no_writer_writes_is_rejected(data, reason: str):
    start = time.process_time()
    with pytest.raises(CorruptError, match=reason):
        decode_value(data)
    assert time.process_time() - start < 1


@given(any_json)
def test_any_json_is_a_value_or_is_rejected(data):
    try:
        value = decode_value(data)
    except (CorruptError, InvalidError):
        return
    assert same(decode_value(encode_value(value)), value)


def test_deep_json_is_rejected_without_a_deep_stack():
    body: object = 1
    for _ in range(100_000):
        body = [body]
    for name in ("a.b", "dtype", "numpy", "complex", "bytes", "int"):
        with pytest.raises(
            CorruptError,
            match=r"deeper than 100|not a NumPy|not a part|two parts|not base64|not the digits",
        ):
            decode_value({name: body})


@pytest.fixture
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_name", {})
    monkeypatch.setattr(registry, "_by_kind", {})


def register_fraction(name: str = "tests.fraction") -> None:
    register_value(name, Fraction, lambda f: [f.numerator, f.denominator], lambda b: Fraction(*b))


@pytest.mark.usefixtures("fresh_registry")
class TestRegisteredTypes:
    def test_a_registered_type_comes_back(self):
        register_fraction()
        register_fraction()

        assert encode_value(Fraction(1, 3)) == {"tests.fraction": [1, 3]}
        assert decode_value({"tests.fraction": [1, 3]}) == Fraction(1, 3)

    def test_names_of_the_format_are_open_to_the_side_that_has_torch(self):
        register_fraction("dtype")

        assert decode_value({"dtype": [1, 2]}) == Fraction(1, 2)

    @pytest.mark.parametrize(
        "name", ["fraction", "", "a.", ".a", "a b.c", "a.b\n", "1.a", "a." * 99]
    )
    def test_other_names_need_a_dot_and_identifiers(self, name: str):
        with pytest.raises(
            InvalidError, match=r"cannot name a type of value: .*mypackage\.fraction"
        ):
            register_fraction(name)

    @pytest.mark.parametrize("name", ["int", "float", "complex", "bytes", "numpy"])
    def test_built_in_names_are_not_shadowed(self, name: str):
        with pytest.raises(InvalidError, match="built-in types are fixed"):
            register_fraction(name)

    @pytest.mark.parametrize("kind", [int, str, type(None), bool, bytes, np.float32])
    def test_built_in_types_are_not_shadowed(self, kind: type):
        with pytest.raises(InvalidError, match="built-in types are fixed"):
            register_value("tests.kind", kind, str, str)

    def test_a_name_has_one_type_and_a_type_one_name(self):
        register_fraction()

        with pytest.raises(InvalidError, match=r"'tests\.fraction' are of type Fraction"):
            register_value("tests.fraction", object, str, str)
        with pytest.raises(InvalidError, match=r"Fraction are called 'tests\.fraction'"):
            register_fraction("tests.other")

    def test_a_type_that_is_not_registered_is_named(self):
        with pytest.raises(InvalidError, match=r"'tests\.fraction' are not known here: import"):
            decode_value({"tests.fraction": [1, 3]})

    def test_a_failure_of_the_types_own_code_is_told(self):
        register_fraction()

        with pytest.raises(
            CorruptError, match=r"'tests\.fraction' cannot be read: Fraction\(1, 0\)"
        ):
            decode_value({"tests.fraction": [1, 0]})
        register_value("tests.broken", object, lambda _: 1 // 0, str)
        with pytest.raises(InvalidError, match=r"'tests\.broken' cannot be written: .*zero"):
            encode_value(object())

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            ((1, 2), "has a tuple, which is no JSON"),
            ({1: 2}, "has the key 1; keys"),
            (math.nan, "has the number nan"),
            ([2**53], "has an integer beyond"),
            (["\ud800"], "no valid Unicode"),
            ({"\ud800": 1}, "no valid Unicode"),
            (np.float64(1), "has a float64, which is no JSON"),
        ],
    )
    def test_what_a_type_writes_must_be_json_that_any_reader_keeps(self, body, reason: str):
        register_value("tests.odd", object, lambda _: body, str)

        with pytest.raises(InvalidError, match=rf"what a value of type 'tests\.odd' .*{reason}"):
            encode_value(object())


@given(plain_json)
def test_plain_json_passes(data):
    check_json(data, "metadata")

    assert msgspec.json.decode(msgspec.json.encode(data)) == data


@given(any_json | st.binary() | st.just(10**5000))
def test_what_is_shown_of_data_is_short(data):
    assert len(shown(data)) < 200
