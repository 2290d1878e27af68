"""Checkpoints of 100,000 tensors, made without a save: their names and files are all there is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import xxhash

from shardkeep.manifest import (
    MANIFEST_NAME,
    DictNode,
    FileRecord,
    FileTable,
    Manifest,
    Runs,
    SplitGrid,
    TensorNode,
    TensorRecord,
    encode_manifest,
    file_name,
)
from shardkeep.manifest.digests import header_digest
from shardkeep.manifest.header_plan import plan_header

COUNT = 100_000
SAVE_ID = "0123456789abcdef"
_BLOCK = 2**16
_WORLD = 2


def key_of(n: int) -> str:
    layer, rest = divmod(n, 1000)
    return f"model.layers.{layer}.experts.{rest // 4}.{'wxyz'[rest % 4]}.weight"


def make_folder(folder: Path, count: int = COUNT) -> Path:
    """A folder of safetensors files, as large models come."""
    folder.mkdir()
    per_file = count // 4
    for number in range(4):
        header: dict[str, object] = {}
        at = 0
        for n in range(number * per_file, (number + 1) * per_file):
            header[key_of(n)] = {"dtype": "F32", "shape": [2, 4], "data_offsets": [at, at + 32]}
            at += 32
        text = msgspec.json.encode(header)
        text += b" " * (-len(text) % 8)
        cells = np.arange(at // 4, dtype=np.float32)
        name = f"model-{number + 1:05d}-of-00004.safetensors"
        (folder / name).write_bytes(len(text).to_bytes(8, "little") + text + cells.tobytes())
    return folder


def make_checkpoint(folder: Path, count: int = COUNT) -> Path:
    """A checkpoint as two ranks leave it, each with a row of every tensor."""
    folder.mkdir()
    files = [_write(folder, rank, count) for rank in range(_WORLD)]
    nodes = [(key_of(n), TensorNode(n)) for n in range(count)]
    manifest = Manifest(
        save_id=SAVE_ID,
        world=_WORLD,
        tree=DictNode(tuple(nodes)),
        tensors=tuple(TensorRecord(key_of(n), "F32", (2, 4), 0) for n in range(count)),
        grids=(SplitGrid(((_WORLD,), ()), Runs.of(list(range(_WORLD)))),),
        files=FileTable.of(files),
    )
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return folder


def _write(folder: Path, rank: int, count: int) -> FileRecord:
    data = (np.arange(4 * count, dtype=np.float32) + rank).tobytes()
    plan = plan_header(
        [(f"{key_of(n)}@[{rank}:{rank + 1},0:4]", "F32", (1, 4), 16) for n in range(count)],
        save_id=SAVE_ID,
        rank=rank,
        number=0,
        block_nbytes=_BLOCK,
        data_nbytes=len(data),
        per_rank={},
    )
    blocks = [data[at : at + _BLOCK] for at in range(0, len(data), _BLOCK)]
    header = plan.encode([xxhash.xxh3_64_intdigest(block) for block in blocks])
    (folder / file_name(SAVE_ID, rank, 0)).write_bytes(header + data)
    return FileRecord(rank, 0, len(header) + len(data), len(header), header_digest(header))
