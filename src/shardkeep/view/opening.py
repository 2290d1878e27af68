"""How does a command open what somebody named?"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shardkeep.errors import InvalidError, NotFoundError
from shardkeep.manifest import MANIFEST_NAME, Manifest
from shardkeep.storage import open_storage
from shardkeep.storage.shelves import open_shelf
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.steps import read_steps
from shardkeep.translate.foreign import ForeignManifest
from shardkeep.translate.opening import format_of, open_source
from shardkeep.view.listing import steps_of
from shardkeep.view.places import Place, below, place_of

_SPOKEN = {
    "shardkeep": "shardkeep",
    "hf": "Hugging Face (safetensors)",
    "safetensors": "safetensors",
    "dcp": "torch.distributed.checkpoint (DCP)",
}


@contextmanager
def opened_checkpoint(path: Place, *, values: bool = False) -> Generator[Opened]:
    """A checkpoint of any format; of a run's folder, a clear word on what to do.

    Values of other formats are read if they are wanted, which takes torch.
    """
    place = place_of(path)
    opened = _open_url(place) if isinstance(place, str) else _open(place, values)
    try:
        yield opened
    finally:
        opened.storage.close()


def _open(path: Path, values: bool) -> Opened:
    if not path.exists():
        raise NotFoundError(f"{path} is not there; check the path")
    if path.is_file() and format_of(path) is None:
        raise InvalidError(
            f"{path} is a file that is no checkpoint: name a checkpoint's folder, or a file that "
            "ends in .safetensors"
        )
    if path.is_dir() and format_of(path) is None:
        _refuse_run(path)
    return open_source(path, values=values)


def _open_url(url: str) -> Opened:
    try:
        return open_source(url)
    except NotFoundError:
        _refuse_run(url)
        raise


def _refuse_run(place: Place) -> None:
    steps = read_steps(open_shelf(place))
    if steps:
        raise InvalidError(
            f"{place} is a run of {len(steps)} checkpoints; name one of them, such as "
            f"{below(place, steps[-1].name)}"
        )


def format_text(manifest: Manifest) -> str:
    """The format's name, as people call it."""
    name = manifest.format if isinstance(manifest, ForeignManifest) else "shardkeep"
    return _SPOKEN.get(name, name)


_CHECKS = {
    "dcp": "sizes, structure and the CRC-32 of each tensor",
    "hf": "sizes and structure; the format has no digests",
    "safetensors": "sizes and structure; the format has no digests",
}


def checks_of(manifest: Manifest) -> str:
    """What a verification looks at."""
    if isinstance(manifest, ForeignManifest):
        return _CHECKS.get(manifest.format, "sizes and structure")
    return "every block by its digest"


def committed(paths: Sequence[Place]) -> list[Place]:
    """The checkpoints that are meant: a run stands for its committed ones."""
    found: list[Place] = []
    for place in map(place_of, paths):
        if is_checkpoint(place):
            found.append(place)
        else:
            records = steps_of(place)
            found += [below(place, one.name) for one in records if one.condition != "half-written"]
    return found


def is_checkpoint(place: Place) -> bool:
    """Whether it is one checkpoint that is named, and no run."""
    if isinstance(place, Path):
        has_manifest = (place / MANIFEST_NAME).exists()
        return has_manifest or not place.is_dir() or format_of(place) is not None
    with open_storage(place, create=False, durable=False) as storage:
        try:
            return storage.size(MANIFEST_NAME) >= 0
        except NotFoundError:
            return False
