"""What do tests of safetensors files need? Tensors of every dtype, files byte by byte, exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import shardkeep as sk
from shardkeep.testing.layout_strategies import raw
from shardkeep.transfer.progress import Meter
from shardkeep.translate.exporting import export
from shardkeep.translate.opening import open_source
from shardkeep.translate.safetensors_writing import ExportReport

# What the safetensors package can hold.
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.complex64,
]


def bits_of(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor whose cells are distinct bits, NaNs and infinities among them."""
    count = torch.Size(shape).numel()
    if dtype is torch.bool:
        return (torch.arange(count) % 3 == 0).reshape(shape)
    generator = torch.Generator().manual_seed(count)
    words = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator)
    return words.to(torch.uint8).view(dtype).reshape(shape)


def every_dtype() -> dict[str, torch.Tensor]:
    """Each dtype, whole, without cells, and as a single number."""
    found: dict[str, torch.Tensor] = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        found[f"{name}.matrix"] = bits_of(dtype, (3, 5))
        found[f"{name}.empty"] = bits_of(dtype, (0, 4))
        found[f"{name}.scalar"] = bits_of(dtype, ())
    return found


def assert_same_bits(found: Any, expected: Any) -> None:
    assert set(found) == set(expected)
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype, key
        assert found[key].shape == tensor.shape, key
        assert (raw(found[key]) == raw(tensor)).all(), key


def write_file(path: Path, header: Any, data: bytes = b"") -> Path:
    """A safetensors file byte by byte; a header that is no bytes becomes JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def exported(source: Path, dest: Path, to: Any = "hf", **options: Any) -> ExportReport:
    """Export a checkpoint; its files are closed again."""
    opened = open_source(source)
    try:
        with Meter("exporting", None, show=False) as meter:
            return export(opened, dest, to=to, meter=meter, **options)
    finally:
        opened.storage.close()


def saved(state: Any, path: Path) -> Path:
    sk.save(state, path, durable=False)
    return path
