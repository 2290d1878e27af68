"""Which format is a folder or file of, and how is it opened?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from shardkeep.errors import InvalidError, NotFoundError, UnsupportedError
from shardkeep.manifest import MANIFEST_NAME, parse_file_name
from shardkeep.storage import Storage, open_storage
from shardkeep.transfer.opened import Opened, open_committed

Format = Literal["shardkeep", "hf", "safetensors", "dcp", "torch"]

DCP_METADATA = ".metadata"
_TORCH_ENDINGS = (".pt", ".pth", ".ckpt", ".bin")


def format_of(path: str | os.PathLike[str]) -> Format | None:
    """The format of what is at a local path; None if nothing tells. Reads no file."""
    here = Path(path)
    if here.is_file():
        if here.suffix == ".safetensors":
            return "safetensors"
        return "torch" if here.suffix in _TORCH_ENDINGS else None
    if not here.is_dir():
        return None
    if (here / MANIFEST_NAME).exists():
        return "shardkeep"
    found: list[Format] = []
    if (here / DCP_METADATA).exists():
        found.append("dcp")
    # Data files of our own that nobody has committed are no model.
    files = [one for one in here.glob("*.safetensors") if parse_file_name(one.name) is None]
    if files or any(here.glob("*.safetensors.index.json")):
        found.append("hf")
    if len(found) > 1:
        raise InvalidError(
            f"{here} could be a checkpoint of {' or '.join(found)}: there are {DCP_METADATA} and "
            "*.safetensors; move the files of one of them into a folder of their own"
        )
    return found[0] if found else None


def local_path(path: str | os.PathLike[str]) -> Path:
    """The path of what is of another format; UnsupportedError for a URL."""
    if "://" in os.fspath(path):
        raise UnsupportedError(
            f"{os.fspath(path)} is a URL: other formats are read and written in local folders "
            "only; copy the folder with the tool of your object store"
        )
    return Path(path)


def open_source(path: str | os.PathLike[str] | Storage, *, values: bool = True) -> Opened:
    """The checkpoint at a path, in whatever format it is; its storage is the caller's to close.

    With `values=False` only the tensors are wanted, which takes no torch.
    """
    if isinstance(path, str | os.PathLike) and "://" not in os.fspath(path):
        match format_of(path):
            case "hf" | "safetensors":
                from shardkeep.translate.safetensors_files import open_safetensors

                return open_safetensors(Path(path))
            case "dcp":
                from shardkeep.translate.dcp_reading import open_dcp

                return open_dcp(Path(path), values=values)
            case "torch":
                raise InvalidError(
                    f"{os.fspath(path)} is a file of torch.save: import it first, with "
                    f"`shardkeep import {os.fspath(path)} DEST`"
                )
            case _:
                pass
    storage = open_storage(path, create=False, durable=False)
    try:
        return open_committed(storage)
    except BaseException as error:
        if storage is not path:
            storage.close()
        is_local = "://" not in storage.location
        if isinstance(error, NotFoundError) and is_local and format_of(storage.location) is None:
            raise NotFoundError(f"{error}. Nor is it a folder of safetensors or DCP") from None
        raise
