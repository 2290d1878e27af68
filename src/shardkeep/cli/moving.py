"""`shardkeep copy | export | import`: commands that write a checkpoint elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from shardkeep.cli.printing import print_json, print_lines
from shardkeep.cli.ranks import this_team
from shardkeep.errors import InvalidError, NotFoundError
from shardkeep.view.places import place_of
from shardkeep.view.words import count_text, parse_size, size_text

_NAMED = 4


def copy(source: Path, target: Path, /, *, json: bool = False) -> int:
    """Copy a checkpoint, every block checked; an existing one is never replaced.

    Example:

      shardkeep copy runs/a/step-00000100 /mnt/archive/a-100

    Parameters
    ----------
    source
        The checkpoint's folder or URL.
    target
        Where it goes, a folder or a URL.
    json
        Print JSON, for programs.
    """
    from shardkeep.view.tidying import copy_to

    nbytes = copy_to(source, target)
    if json:
        places = {"source": str(place_of(source)), "target": str(place_of(target))}
        return print_json({**places, "nbytes": nbytes})
    print_lines([f"{size_text(nbytes)} copied and checked"])
    return 0


def export_(
    checkpoint: Path,
    dest: Path,
    /,
    *,
    to: Literal["hf", "safetensors", "dcp", "torch"],
    max_shard_size: str = "5GB",
    dtype: str | None = None,
    keys: list[str] | None = None,
    prefix: str = "",
    rename: list[str] | None = None,
    max_memory: str = "256MiB",
    force: bool = False,
    no_verify: bool = False,
    json: bool = False,
) -> int:
    """Write a checkpoint in a format of others.

    hf is a folder as transformers reads it, safetensors one file, dcp a folder
    of torch.distributed.checkpoint, torch one file of torch.save. Nothing
    appears at DEST before all of it is there.

    Examples:

      shardkeep export runs/a/step-00000100 out --to hf --prefix model. --dtype bf16
      shardkeep export CKPT weights.safetensors --to safetensors --keys 'model.*'
      shardkeep export CKPT dcp-folder --to dcp

    Parameters
    ----------
    checkpoint
        A checkpoint's folder or URL, or a folder of another format.
    dest
        Where it goes: a folder that is not there yet, or a file.
    to
        The format: hf, safetensors, dcp or torch.
    max_shard_size
        The largest file of hf, such as 5GB.
    dtype
        Cast floats to this, such as bf16.
    keys
        Only tensors whose names match this pattern; repeatable.
    prefix
        Only what lies below this name, which is taken off: `model.` makes weights of a state.
    rename
        OLD=NEW: put NEW in place of OLD wherever names have it; repeatable.
    max_memory
        For buffers, such as 256MiB.
    force
        Replace what is at DEST.
    no_verify
        Do not read again and compare what was written.
    json
        Print JSON, for programs.
    """
    from shardkeep.transfer.progress import Meter
    from shardkeep.transfer.team import Team
    from shardkeep.transfer.threads import core_count
    from shardkeep.translate.exporting import export
    from shardkeep.translate.opening import local_path
    from shardkeep.view.opening import opened_checkpoint

    team = this_team()
    sizes = parse_size(max_shard_size), parse_size(max_memory)
    names = renaming(rename or [])

    def act() -> Any:
        with (
            opened_checkpoint(checkpoint, values=to in ("dcp", "torch")) as opened,
            Meter("exporting", None, show=team.leads) as meter,
        ):
            return export(
                opened,
                local_path(place_of(dest)),
                to=to,
                meter=meter,
                keys=keys,
                prefix=prefix,
                rename=names,
                dtype=dtype,
                max_shard_nbytes=sizes[0],
                max_memory_nbytes=sizes[1],
                threads=core_count(),
                force=force,
                verify=not no_verify,
                team=team if is_shared else Team(),
            )

    # The files of hf are shared; the other formats are one process's work.
    is_shared = to == "hf"
    found: Any = (
        act() if is_shared else team.together("export", lambda: act() if team.leads else None)
    )
    if not team.leads:
        return 0
    return print_json(asdict(found)) if json else _print_export(found, verified=not no_verify)


def renaming(pairs: Sequence[str]) -> Callable[[str], str] | None:
    """What OLD=NEW pairs make of a name, one after the other."""
    if not pairs:
        return None
    split = [pair.partition("=") for pair in pairs]
    for pair, (old, sign, _) in zip(pairs, split, strict=True):
        if not old or not sign:
            raise InvalidError(f"--rename is OLD=NEW, got {pair!r}")

    def rename(name: str) -> str:
        for old, _, new in split:
            name = name.replace(old, new)
        return name

    return rename


def _print_export(found: Any, *, verified: bool) -> int:
    files = count_text(len(found.files), "file")
    speed = f"{size_text(int(found.nbytes / found.seconds))}/s" if found.seconds else ""
    lines = [
        f"{count_text(found.tensors, 'tensor')}, {size_text(found.nbytes)} in {files} at "
        f"{found.path}{', compared with the source' if verified else ''} ({speed})"
    ]
    if found.cast:
        lines.append(f"cast: {_few(found.cast)}")
    if found.overflowed:
        lines.append(f"finite values became infinite in {_few(found.overflowed)}")
    if found.tied:
        lines.append(f"tied, stored once: {_few([f'{k} = {v}' for k, v in found.tied.items()])}")
    if found.skipped:
        lines.append(f"left out, no tensors: {_few(found.skipped)}")
    print_lines(lines)
    return 0


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def import_(
    source: Path,
    dest: Path,
    /,
    *,
    keys: list[str] | None = None,
    rename: list[str] | None = None,
    under: str = "",
    force: bool = False,
    no_verify: bool = False,
    json: bool = False,
) -> int:
    """Make a checkpoint of one of another format.

    The source is a folder of Hugging Face or DCP, a safetensors file, or a file
    of torch.save. Nothing of it is unpickled freely. Under torchrun the ranks
    share the work.

    Examples:

      shardkeep import hf-folder runs/base --under model
      shardkeep import old-dcp-folder runs/old
      torchrun --nproc-per-node 4 -m shardkeep import old-dcp-folder runs/old

    Parameters
    ----------
    source
        The folder or file; what it is, it tells by itself.
    dest
        Where the checkpoint goes, a folder or a URL.
    keys
        Only what matches this pattern of dotted names; repeatable.
    rename
        OLD=NEW: put NEW in place of OLD wherever names have it; repeatable.
    under
        Put everything below this name, such as model.
    force
        Replace a checkpoint at DEST.
    no_verify
        Do not compare the source with checksums of its own.
    json
        Print JSON, for programs.
    """
    from shardkeep.interchange import import_checkpoint

    team = this_team()
    place = place_of(source)
    if isinstance(place, Path) and not place.exists():
        raise NotFoundError(f"{source} is not there; check the path")
    found = import_checkpoint(
        place,
        place_of(dest),
        keys=keys,
        rename=renaming(rename or []),
        under=under,
        verify=not no_verify,
        overwrite=force,
        threads=team.threads,
    )
    if not team.leads:
        return 0
    if json:
        return print_json(asdict(found))
    seconds = sum(found.seconds.values())
    print_lines([f"{size_text(found.total_nbytes)} imported to {found.path} in {seconds:.1f} s"])
    return 0
