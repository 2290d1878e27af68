"""How does a checkpoint get into a format of others?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from shardkeep.errors import InvalidError
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.translate.export_plan import Rename

ExportFormat = Literal["hf", "safetensors", "dcp", "torch"]


def export(
    source: Opened,
    dest: Path,
    *,
    to: ExportFormat,
    meter: Meter,
    keys: Sequence[str] | None = None,
    prefix: str = "",
    rename: Rename | None = None,
    dtype: str | None = None,
    max_shard_nbytes: int = 5 * 10**9,
    max_memory_nbytes: int = 256 * 2**20,
    threads: int = 2,
    force: bool = False,
    verify: bool = True,
) -> Any:
    """Write what a checkpoint holds to `dest` in another format; a report of what was written.

    `hf` is a folder as transformers reads it, `safetensors` one file, `dcp` a folder of
    torch.distributed.checkpoint, `torch` one file of torch.save. `keys` are glob patterns of the
    checkpoint's dotted names. `prefix` takes what lies below a name, without that name: "model."
    makes a model's weights of a training state. `rename` is given each name that is left; None
    drops it. `dtype` casts floats. Nothing appears at `dest` before all of it is there.
    """
    if to in ("hf", "safetensors"):
        from shardkeep.translate.safetensors_writing import export_safetensors

        return export_safetensors(
            source,
            dest,
            single_file=to == "safetensors",
            max_shard_nbytes=max_shard_nbytes,
            keys=keys,
            prefix=prefix,
            rename=rename,
            dtype=dtype,
            max_memory_nbytes=max_memory_nbytes,
            threads=threads,
            force=force,
            verify=verify,
            meter=meter,
        )
    raise InvalidError(f"there is no format {to!r}; take hf, safetensors, dcp or torch")
