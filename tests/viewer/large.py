"""A checkpoint of 100,000 tensors, made without a save: its names and files are all there is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

COUNT = 100_000


def make_large(folder: Path) -> Path:
    """A folder of safetensors files, as large models come."""
    folder.mkdir()
    per_file = COUNT // 4
    for number in range(4):
        header: dict[str, object] = {}
        at = 0
        for n in range(number * per_file, (number + 1) * per_file):
            layer, rest = divmod(n, 1000)
            key = f"model.layers.{layer}.experts.{rest // 4}.{'wxyz'[rest % 4]}.weight"
            header[key] = {"dtype": "F32", "shape": [2, 4], "data_offsets": [at, at + 32]}
            at += 32
        text = msgspec.json.encode(header)
        text += b" " * (-len(text) % 8)
        cells = np.arange(at // 4, dtype=np.float32)
        name = f"model-{number + 1:05d}-of-00004.safetensors"
        (folder / name).write_bytes(len(text).to_bytes(8, "little") + text + cells.tobytes())
    return folder
