"""How does a command open what somebody named?"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shardkeep.errors import InvalidError, NotFoundError
from shardkeep.manifest import MANIFEST_NAME, Manifest
from shardkeep.storage.shelf import LocalShelf
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.steps import read_steps
from shardkeep.translate.foreign import ForeignManifest
from shardkeep.translate.opening import format_of, open_source
from shardkeep.view.listing import steps_of

_SPOKEN = {
    "shardkeep": "shardkeep",
    "hf": "Hugging Face (safetensors)",
    "safetensors": "safetensors",
    "dcp": "torch.distributed.checkpoint (DCP)",
}


@contextmanager
def opened_checkpoint(path: Path, *, values: bool = False) -> Generator[Opened]:
    """A checkpoint of any format; of a run's folder, a clear word on what to do.

    Values of other formats are read if they are wanted, which takes torch.
    """
    opened = _open(path, values)
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
        steps = read_steps(LocalShelf(path))
        if steps:
            raise InvalidError(
                f"{path} is a run of {len(steps)} checkpoints; name one of them, such as "
                f"{path / steps[-1].name}"
            )
    return open_source(path, values=values)


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


def committed(paths: Sequence[Path]) -> list[Path]:
    """The checkpoints that are meant: a run stands for its committed ones."""
    found: list[Path] = []
    for path in paths:
        if (path / MANIFEST_NAME).exists() or not path.is_dir() or format_of(path) is not None:
            found.append(path)
        else:
            records = steps_of(path)
            found += [path / one.name for one in records if one.condition != "half-written"]
    return found
