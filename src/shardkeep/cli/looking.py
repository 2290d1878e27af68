"""`shardkeep show | diff | verify | explain`: commands that change nothing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardkeep.cli.printing import console, print_json, print_lines, print_out
from shardkeep.cli.ranks import this_team
from shardkeep.errors import InvalidError
from shardkeep.view.places import place_of
from shardkeep.view.words import clean_text, count_text, size_text

if TYPE_CHECKING:
    from shardkeep.transfer.lazy import Checkpoint
    from shardkeep.view.comparing import Difference, StatsByKey
    from shardkeep.view.explaining import MeshCost
    from shardkeep.view.verifying import Verified

# More tensors than these are added up by module, unless somebody asks for them.
_SHOWN = 200


def show(
    checkpoint: Path,
    key: str | None = None,
    /,
    *,
    stats: bool = False,
    depth: int | None = None,
    json: bool = False,
) -> int:
    """Show what is in a checkpoint, or one tensor and who holds which part.

    Examples:

      shardkeep show runs/a/step-00000100
      shardkeep show runs/a/step-00000100 model.layers.0
      shardkeep show hf-folder 'model.*.bias' --stats

    Parameters
    ----------
    checkpoint
        A checkpoint's folder or URL, a folder of Hugging Face or DCP, or a safetensors file.
    key
        A tensor, a module, or a pattern such as `model.*.weight`.
    stats
        Read the values: minimum, maximum, mean, deviation, nan and inf.
    depth
        Add up below names of so many parts, as is done for large checkpoints.
    json
        Print JSON, for programs.
    """
    from shardkeep.transfer.lazy import Checkpoint
    from shardkeep.view.comparing import all_stats
    from shardkeep.view.keys import keys_of
    from shardkeep.view.opening import opened_checkpoint

    if depth is not None and (stats or depth < 1):
        raise InvalidError("--depth adds up tensors, from 1 on; --stats are of tensors: take one")
    team = this_team()
    with opened_checkpoint(checkpoint) as opened:
        keys = team.together("open", lambda: keys_of(opened.manifest, key))
        found = all_stats(opened, keys, team) if stats else None
        if not team.leads:
            return 0
        shown = Checkpoint(opened, threads=1, owns_storage=False)
        if json:
            return print_json(_described(shown, keys, found))
        _print_checkpoint(shown, keys, found, depth=depth, alone=key is not None)
    return 0


def _print_checkpoint(
    shown: Checkpoint,
    keys: list[str],
    stats: StatsByKey | None,
    *,
    depth: int | None,
    alone: bool,
) -> None:
    from shardkeep.view.tables import checkpoint_facts, rows_of, tensor_picture, tensors_table

    out = console()
    if not alone:
        print_out(checkpoint_facts(shown), "", out=out)
    if depth is None and len(keys) > _SHOWN and stats is None:
        depth = 2
    print_out(tensors_table(rows_of(shown.manifest, keys, depth), stats, out), out=out)
    if alone and len(keys) == 1:
        print_out("", tensor_picture(shown.info(keys[0])), out=out)


def _described(shown: Checkpoint, keys: list[str], stats: StatsByKey | None) -> dict[str, Any]:
    from shardkeep.view.opening import format_text

    tensors = [asdict(shown.info(key)) for key in keys]
    for tensor in tensors:
        tensor["chunks"] = [{"box": str(box), "file": file} for box, file in tensor["chunks"]]
        if stats is not None:
            one = stats[tensor["key"]]
            tensor["stats"] = {
                "min": one.least if one.finite else None,
                "max": one.most if one.finite else None,
                "mean": one.mean if one.finite else None,
                "std": one.deviation if one.finite else None,
                "nan": one.nans,
                "inf": one.infs,
            }
    return {
        "path": shown.path,
        "format": format_text(shown.manifest),
        "save_id": shown.save_id,
        "world": shown.manifest.world,
        "metadata": dict(shown.metadata),
        "tensors": tensors,
    }


def verify(*checkpoints: Path, json: bool = False) -> int:
    """Read every byte of checkpoints and compare it with its digest.

    Of other formats, sizes, structure and what checksums they have are checked.
    Exit code 1 on damage.

    Examples:

      shardkeep verify runs/a
      torchrun --nproc-per-node 8 -m shardkeep verify runs/a/step-00000100

    Parameters
    ----------
    checkpoints
        Folders or URLs of checkpoints; a run's stands for all of its committed ones.
    json
        Print JSON, for programs.
    """
    from shardkeep.errors import CorruptError
    from shardkeep.view.opening import committed, opened_checkpoint
    from shardkeep.view.verifying import Verified, verify as verify_one

    if not checkpoints:
        raise InvalidError("name at least one checkpoint")
    team, outcome = this_team(), dict[str, Verified]()
    for path in team.together("list", lambda: committed(checkpoints)):
        try:
            with opened_checkpoint(path) as opened:
                found = verify_one(opened, team)
        except CorruptError as error:
            found = Verified(0, [str(error)], checked="whether it can be opened")
        if found is not None and team.leads:
            outcome[str(path)] = found
            if not json:
                _print_verified(path, found)
    if json and team.leads:
        print_json({path: _fields(one) for path, one in outcome.items()})
    return int(any(one.problems for one in outcome.values()))


def _print_verified(path: Path | str, found: Verified) -> None:
    from rich.text import Text

    if found.problems:
        state = Text(count_text(len(found.problems), "problem"), style="red")
    else:
        state = Text("good", style="green")
    size = size_text(found.nbytes)
    line = Text.assemble(clean_text(f"{path}: "), state, f", {size} read ({found.checked})")
    print_out(line, *(Text(clean_text(f"  {problem}")) for problem in found.problems))


def _fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def diff(a: Path, b: Path, key: str | None = None, /, *, json: bool = False) -> int:
    """Compare two checkpoints: names, shapes, dtypes, values.

    They may be of different formats, and saved by different numbers of ranks.
    Exit code 1 if they differ.

    Examples:

      shardkeep diff runs/a/step-00000100 runs/a/step-00000200
      shardkeep diff runs/a/step-00000100 hf-folder 'model.*'

    Parameters
    ----------
    a
        A checkpoint: its folder or URL, a folder of Hugging Face or DCP, or a safetensors file.
    b
        Another one.
    key
        Only this tensor, module, or pattern.
    json
        Print JSON, for programs.
    """
    from shardkeep.view.comparing import difference
    from shardkeep.view.opening import opened_checkpoint

    team = this_team()
    with opened_checkpoint(a) as one, opened_checkpoint(b) as other:
        found = difference(one, other, key, team)
    if found is None:
        return 0
    if json:
        changes = [{**_fields(change), "fraction": change.fraction} for change in found.changes]
        print_json({**asdict(found), "changes": changes})
    else:
        _print_difference(a, b, found)
    return int(bool(found))


def _print_difference(a: Path, b: Path, found: Difference) -> None:
    from shardkeep.view.tables import changes_table

    lines = [f"only in {place_of(a)}: {key}" for key in found.only_a]
    lines += [f"only in {place_of(b)}: {key}" for key in found.only_b]
    print_lines([*lines, *found.other_kind])
    if found.changes:
        print_out(changes_table(found.changes))
    verb = "differs" if len(found.changes) == 1 else "differ"
    same = "is" if found.equal == 1 else "are"
    print_lines(
        [f"{count_text(len(found.changes), 'tensor')} {verb}, {found.equal:,} {same} equal"]
    )


def explain(
    checkpoint: Path,
    key: str | None = None,
    /,
    *,
    mesh: str,
    shard: list[str] | None = None,
    ranks: int = 16,
    json: bool = False,
) -> int:
    """Say what loading a checkpoint on other ranks would cost; reads no data.

    What an axis of the mesh does goes by its name:

      dp, fsdp, shard, dp_shard     cut dim 0 of every tensor, as fully_shard does
      tp                            cut dim 0 of tensors of two dims or more
      ddp, replicate, dp_replicate  repeat every tensor
      pp                            deal out layers, by the number in a tensor's name

    --shard says otherwise, for all tensors or for some. A tensor without the
    dim, such as a step count, is repeated. Where two axes cut one dim, the
    right one cuts first, as tensor parallelism does below fully_shard.

    Examples:

      shardkeep explain runs/a/step-00000100 --mesh dp=8
      shardkeep explain CKPT model --mesh dp=8,tp=2 --shard 'tp:1:*.down.weight'

    Parameters
    ----------
    checkpoint
        A checkpoint's folder or URL, a folder of Hugging Face or DCP, or a safetensors file.
    key
        Only this tensor, module, or pattern.
    mesh
        The axes with their sizes, such as dp=8,tp=2.
    shard
        AXIS:DIM or AXIS:DIM:PATTERN, DIM may be none; repeatable, the last that fits holds.
    ranks
        Plan at most so many (16) of the ranks that hold different parts, spread evenly.
    json
        Print JSON, for programs.
    """
    from shardkeep.view.explaining import explain_mesh, parse_mesh, parse_rules
    from shardkeep.view.keys import keys_of
    from shardkeep.view.opening import opened_checkpoint

    axes = parse_mesh(mesh)
    rules = parse_rules(axes, shard or [])
    with opened_checkpoint(checkpoint) as opened:
        keys = keys_of(opened.manifest, key)
        found = explain_mesh(opened, keys, axes, rules, most=ranks)
    if json:
        return print_json(_cost_fields(found))
    from shardkeep.view.cost_table import cost_table

    print_out(cost_table(found))
    return 0


def _cost_fields(found: MeshCost) -> dict[str, Any]:
    totals = ("nbytes_wanted", "nbytes_read", "requests")
    return {
        "mesh": dict(found.axes),
        "ranks": found.ranks,
        "distinct": found.distinct,
        "is_sample": found.is_sample,
        "total": {name: found.total(name) for name in totals},
        "planned": [{"ranks": list(one.ranks), **asdict(one.cost)} for one in found.planned],
    }
