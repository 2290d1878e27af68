"""How does a checkpoint get into a format of others?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from shardkeep.errors import InvalidError
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.transfer.team import ALONE, Team
from shardkeep.translate.export_plan import Rename
from shardkeep.translate.safetensors_writing import ExportReport, export_safetensors

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
    team: Team = ALONE,
) -> ExportReport:
    """Write what a checkpoint holds to `dest` in another format; a report of what was written.

    `hf` is a folder as transformers reads it, `safetensors` one file, `dcp` a folder of
    torch.distributed.checkpoint, `torch` one file of torch.save. `keys` are glob patterns of the
    checkpoint's dotted names. `prefix` takes what lies below a name, without that name: "model."
    makes a model's weights of a training state. `rename` is given each name that is left; None
    drops it. `dtype` casts floats. Nothing appears at `dest` before all of it is there. A team
    shares the files of `hf`; the other formats take one process.
    """
    if to not in get_args(ExportFormat):
        raise InvalidError(f"there is no format {to!r}; take {', '.join(get_args(ExportFormat))}")
    options: dict[str, Any] = {
        "keys": keys,
        "prefix": prefix,
        "rename": rename,
        "dtype": dtype,
        "max_memory_nbytes": max_memory_nbytes,
        "threads": threads,
        "force": force,
        "verify": verify,
        "meter": meter,
    }
    # What writes pickles for torch imports torch: only whoever asks for it waits for that.
    if to == "dcp":
        from shardkeep.translate.dcp_writing import export_dcp

        return export_dcp(source, dest, **options)
    if to == "torch":
        from shardkeep.translate.torch_files import export_torch

        return export_torch(source, dest, **options)
    return export_safetensors(
        source,
        dest,
        single_file=to == "safetensors",
        max_shard_nbytes=max_shard_nbytes,
        team=team,
        **options,
    )
