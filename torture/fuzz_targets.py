"""Which readers of bytes are fuzzed, and what may come of it? Torch-free.

A reader may take the bytes, or raise an error that it declares: a ShardkeepError. Inputs are
brought into a form that the first checks let pass: a manifest gets the digest that fits, a header
its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import xxhash

from shardkeep.errors import NotFoundError, ShardkeepError
from shardkeep.manifest import decode_header, decode_manifest, encode_manifest
from shardkeep.manifest.summary import decode_summary
from shardkeep.transfer.report import read_report
from shardkeep.translate.dcp_metadata import read_metadata
from shardkeep.translate.plain_values import check_archive
from shardkeep.translate.safetensors_files import _read_index  # pyright: ignore[reportPrivateUsage]
from shardkeep.translate.safetensors_header import read_header
from shardkeep.translate.torch_archive import Archive

CORPUS = Path(__file__).parents[1] / "conformance" / "fuzz"
"""By target: `seeds` that are mutated, and `finds`, which were answered wrongly once."""

_PAGE = 4096
_END = re.compile(rb'"data_offsets":\[[0-9]{1,20},([0-9]{1,15})\]')
_CHUNKS = 100


class OneFile:
    """A folder in which every name is the same file, of so many bytes; those beyond are zeros."""

    location = "folder"

    def __init__(self, data: bytes, nbytes: int | None = None) -> None:
        self._data = data
        self._nbytes = len(data) if nbytes is None else nbytes

    def size(self, key: str) -> int:
        return self._nbytes

    def read(self, key: str, offset: int, nbytes: int) -> bytes:
        return self._data[offset : offset + nbytes]

    def get(self, key: str, *, max_nbytes: int) -> bytes:
        if self._nbytes > max_nbytes:
            raise NotFoundError("too large")
        return self._data

    def read_into(self, key: str, offset: int, buffers: Sequence[Any]) -> None:
        raise NotFoundError("no data")

    def close(self) -> None:
        """Nothing is open."""


def manifest(data: bytes) -> None:
    """The manifest, and the summary of it that lists of checkpoints show."""
    signed = b'%b,"digest":"%b"}' % (data, xxhash.xxh3_128_hexdigest(data).encode())
    with suppress(ShardkeepError):
        decode_summary(signed, where="fuzz")
    found = decode_manifest(signed, where="fuzz")
    # What was accepted can be written again, and its chunks can be told.
    encode_manifest(found)
    for record in found.tensors[:_CHUNKS]:
        for _, index in islice(found.chunks(record), _CHUNKS):
            found.file_name(index)


def header(data: bytes) -> None:
    """The header of a data file."""
    total = -(-(8 + len(data)) // _PAGE) * _PAGE
    raw = (total - 8).to_bytes(8, "little") + data.ljust(total - 8)
    decode_header(raw, file_nbytes=total + _claimed(data), where="fuzz")


def _claimed(data: bytes) -> int:
    """How many bytes of data a header speaks of: a file of any size may hold it."""
    return max((int(end) for end in _END.findall(data)), default=0)


def dcp_metadata(data: bytes) -> None:
    """The pickle of a DCP folder."""
    read_metadata(data, where="fuzz")


def torch_archive(data: bytes) -> None:
    """A file of torch.save, as far as it is looked at before torch gets it."""
    archive = Archive(lambda start, nbytes: data[start : start + nbytes], len(data), "fuzz")
    archive.damage(lambda _: None)
    with suppress(ShardkeepError):
        check_archive(archive, where="fuzz")
    archive.tensor()


def hf_index(data: bytes) -> None:
    """The index of a Hugging Face folder."""
    _read_index(OneFile(data), "index.json")  # type: ignore[arg-type]


def safetensors(data: bytes) -> None:
    """The header of anyone's safetensors file."""
    raw = len(data).to_bytes(8, "little") + data
    read_header(OneFile(raw, len(raw) + _claimed(data.replace(b" ", b""))), "x.safetensors")


def report(data: bytes) -> None:
    """What is kept of how a save went."""
    read_report(OneFile(data), "0123456789abcdef")


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "manifest": manifest,
    "header": header,
    "dcp_metadata": dcp_metadata,
    "torch_archive": torch_archive,
    "hf_index": hf_index,
    "safetensors": safetensors,
    "report": report,
}


def undeclared(target: Callable[[bytes], None], data: bytes) -> str | None:
    """What a target raised that it should not."""
    try:
        target(data)
    except ShardkeepError:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None
