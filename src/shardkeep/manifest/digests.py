"""How are many digests kept, and which digests are they?

XXH3 finds damage: 64 bits for a block or a header, 128 for the manifest. It is no protection
against a forger.
"""

from __future__ import annotations

import sys
from array import array
from binascii import unhexlify
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import xxhash

from shardkeep.errors import CorruptError, InvalidError

_NBYTES = 8
_DIGITS = b"0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Digests(Sequence[int]):
    """64-bit digests, kept as the bytes that their hex text stands for.

    >>> digests = Digests.of([1, 2**64 - 1])
    >>> digests.hex(), digests[0]
    ('0000000000000001ffffffffffffffff', 1)
    """

    raw: bytes = b""

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Digests:
        """The digests with these numbers, each below 2**64."""
        try:
            return cls(_swapped(array("Q", numbers)).tobytes())
        except (OverflowError, TypeError) as error:
            raise InvalidError(f"a digest is an integer from 0 to 2**64 - 1: {error}") from None

    @classmethod
    def from_hex(cls, text: str | bytes) -> Digests:
        """The digests that `hex` wrote: 16 lower-case digits each, nothing between them."""
        digits = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        if len(digits) % (2 * _NBYTES) or digits.translate(None, _DIGITS):
            raise CorruptError("digests are not 16 lower-case hex digits each, joined")
        return cls(unhexlify(digits))

    def raw_of(self, first: int, stop: int) -> bytes:
        """Some digests as XXH3 gives them: 8 bytes each, the most significant first."""
        return self.raw[first * _NBYTES : stop * _NBYTES]

    def hex(self) -> str:
        """All digests as one text."""
        return self.raw.hex()

    def __len__(self) -> int:
        return len(self.raw) // _NBYTES

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return Digests.of([self[place] for place in range(*index.indices(len(self)))])
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"place {index} is not one of {len(self)}")
        return int.from_bytes(self.raw[place * _NBYTES : (place + 1) * _NBYTES], "big")

    def __iter__(self) -> Iterator[int]:
        return iter(_swapped(array("Q", self.raw)))


def _swapped(numbers: array[int]) -> array[int]:
    """From the machine's byte order to big-endian, or back."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def header_digest(data: bytes | memoryview) -> int:
    """The digest of a data file's header: of all bytes before the data."""
    return xxhash.xxh3_64_intdigest(data)


def manifest_digest(data: bytes | memoryview) -> str:
    """The digest of the manifest's bytes before the digest itself, as 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)
