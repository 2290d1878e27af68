"""How does a checkpoint come from another format, or go to one?"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from shardkeep.checkpoint import TIMEOUT, source_at
from shardkeep.manifest import Json
from shardkeep.transfer.groups import council_of, heard_by_all
from shardkeep.transfer.progress import Meter, Progress
from shardkeep.transfer.save import Timings
from shardkeep.transfer.saving import Path, SaveResult, checked_options, run_here
from shardkeep.transfer.threads import thread_count
from shardkeep.translate.exporting import ExportFormat, ExportReport, export
from shardkeep.translate.importing import Wishes, imported
from shardkeep.translate.opening import local_path


def import_checkpoint(
    source: str | os.PathLike[str],
    path: Path,
    *,
    keys: Sequence[str] | None = None,
    rename: Callable[[str], str | None] | None = None,
    under: str = "",
    verify: bool = True,
    overwrite: bool = False,
    durable: bool = True,
    timeout: float = TIMEOUT,
    threads: int | None = None,
    metadata: Mapping[str, Json] | None = None,
    group: Any = None,
    progress: Progress | None = None,
) -> SaveResult:
    """Save at `path` what another format holds: DCP, Hugging Face, safetensors, torch.save.

    SPMD over the ranks of `group`, who share the work. `keys` are glob patterns of dotted paths.
    `rename` is given each of these, and makes one flat dict of the new names; None leaves one out.
    `under` puts everything below a key, such as `model`. Nothing of the source is unpickled freely;
    with `verify` it is compared with the checksums that it has, before anything is written.
    """
    council = council_of(group, act="import", timeout=timeout)
    wishes = Wishes(keys, rename, under, verify)
    with (
        Meter("importing", progress, show=council.me == council.chair) as meter,
        ExitStack() as opened,
    ):
        with heard_by_all(council, "import"):
            options = checked_options(overwrite, threads, "none", metadata, meter)
            found = opened.enter_context(
                imported(
                    local_path(source),
                    wishes,
                    ranks=council.ranks,
                    me=council.me,
                    threads=options.threads,
                )
            )
            if metadata is None:
                options = replace(options, metadata=dict(found.metadata))
        return run_here(lambda: found.kept, path, durable, council, options, Timings())


def export_checkpoint(
    path: Path,
    dest: str | os.PathLike[str],
    *,
    to: ExportFormat,
    keys: Sequence[str] | None = None,
    prefix: str = "",
    rename: Callable[[str], str | None] | None = None,
    dtype: str | None = None,
    max_shard_nbytes: int = 5 * 10**9,
    max_memory_nbytes: int = 256 * 2**20,
    threads: int | None = None,
    force: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
) -> ExportReport:
    """Write what a checkpoint holds to `dest` in another format; one process does it.

    `to` is "hf" (a folder as transformers reads it), "safetensors" (one file), "dcp" or "torch".
    `prefix` takes what lies below a name, without it: "model." makes a model of a training state.
    `rename` is given each name that is left; None drops it. `dtype` casts floats. Memory stays
    within `max_memory_nbytes`. Nothing appears at `dest` before all of it is there.
    """
    with source_at(path) as opened, Meter("exporting", progress, show=True) as meter:
        return export(
            opened,
            local_path(dest),
            to=to,
            meter=meter,
            keys=keys,
            prefix=prefix,
            rename=rename,
            dtype=dtype,
            max_shard_nbytes=max_shard_nbytes,
            max_memory_nbytes=max_memory_nbytes,
            threads=thread_count(threads),
            force=force,
            verify=verify,
        )
