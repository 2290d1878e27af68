"""How are files of torch.save read and written, without running code and without much memory?"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import torch

from shardkeep.errors import NotFoundError, ShardkeepError
from shardkeep.translate.dcp_reading import unreadable
from shardkeep.translate.torch_archive import Archive


def load_torch(path: Path) -> Any:
    """The value in a file of torch.save, its tensors mapped; nothing of the file is run."""
    if not path.is_file():
        raise NotFoundError(f"{path} is no file; check the path")
    try:
        return _load(path, mmap=True)
    except RuntimeError as error:
        if "mmap can only be used" not in str(error):
            raise unreadable(str(path), error) from None
    except Exception as error:
        raise unreadable(str(path), error) from None
    try:
        # Files of torch before 1.6 cannot be mapped.
        return _load(path, mmap=False)
    except Exception as error:
        raise unreadable(str(path), error) from None


def _load(path: Path, *, mmap: bool) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)


def damage_of_torch(path: Path) -> list[str]:
    """What the checksums of a file of torch.save tell; one of before torch 1.6 has none."""
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            return []

        def read(start: int, nbytes: int) -> bytes:
            return os.pread(file.fileno(), nbytes, start)

        try:
            archive = Archive(read, path.stat().st_size, str(path))
            return archive.damage(lambda nbytes: None)
        except ShardkeepError as error:
            return [str(error)]
