"""How is a safetensors file, or a folder of them such as a Hugging Face model, read in place?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from shardkeep.boxes import Box
from shardkeep.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    ShardkeepError,
)
from shardkeep.manifest import DictNode, Json, Node, parse_file_name
from shardkeep.manifest.limits import MAX_HEADER_LENGTH
from shardkeep.manifest.plain_json import shown
from shardkeep.storage.keys import is_key
from shardkeep.transfer.collecting import gc_paused
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.progress import Meter
from shardkeep.translate.foreign import ForeignChunk, ForeignTensor, open_foreign
from shardkeep.translate.hub_links import HubFiles
from shardkeep.translate.safetensors_header import FileHeader, read_header

ENDING = ".safetensors"
INDEX_ENDING = ".safetensors.index.json"
MAIN = "model"
"""What the files of a Hugging Face model are called, unless there is a reason."""

_STEP_NBYTES = 8 * 2**20
_OF_SEVERAL = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.safetensors")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


_index_decoder = msgspec.json.Decoder(_Index)


def open_safetensors(path: Path) -> Opened:
    """The tensors of a file, or of the files of a folder, as a checkpoint: one flat dict.

    In a folder, an index says which files belong together; without one all of them do. A key
    that is in two files is an error.
    """
    files = HubFiles(path.parent if path.is_file() else path)
    try:
        return _open(files, path)
    except BaseException:
        files.close()
        raise


def _open(files: HubFiles, path: Path) -> Opened:
    weight_map: Mapping[str, str] = {}
    if path.is_file():
        format, names = "safetensors", [path.name]
    elif (index := _find_index(path)) is not None:
        weight_map = _read_index(files, index)
        format, names = "hf", sorted(set(weight_map.values()))
    else:
        format, names = "hf", _find_files(path)
    headers = {name: _header(files, name) for name in names}
    with gc_paused():
        tensors = _tensors(files, headers, weight_map)
    aliases = _aliases(headers, tensors)
    return open_foreign(
        files,
        tensors,
        format=format,
        damage=lambda name, meter: _damage(files, name, meter),
        tree=lambda nodes: _tree(nodes, aliases),
        metadata=_common_metadata(headers, aliases),
    )


def _find_index(folder: Path) -> str | None:
    """The name of the folder's index, if it has one."""
    names = [one.name for one in folder.glob(f"*{INDEX_ENDING}") if not one.name.startswith(".")]
    main = f"{MAIN}{INDEX_ENDING}"
    if main in names and (folder / f"{MAIN}{ENDING}").exists():
        raise InvalidError(
            f"{folder} has both {main} and {MAIN}{ENDING}: which of them is the model? Name the "
            "file itself, or move one of them away"
        )
    if len(names) > 1 and main not in names:
        raise InvalidError(
            f"{folder} has several indices, {', '.join(sorted(names))}: move one of them with its "
            "files into a folder of its own"
        )
    return main if main in names else next(iter(names), None)


def _read_index(files: HubFiles, index: str) -> Mapping[str, str]:
    """The file of each tensor that the index lists."""
    where = f"{files.location}/{index}"
    try:
        found = _index_decoder.decode(files.get(index, max_nbytes=MAX_HEADER_LENGTH))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"{where} is no index of safetensors files: {error}") from None
    if not found.weight_map:
        raise CorruptError(f"{where} lists no tensor: fetch it again")
    for name in set(found.weight_map.values()):
        if not is_key(name) or not name.endswith(ENDING):
            raise CorruptError(
                f"{where} names the file {shown(name)}: an index names *{ENDING} files that lie "
                "beside it, no others are read"
            )
    return found.weight_map


def _find_files(folder: Path) -> list[str]:
    """The safetensors files of a folder without an index; half of a model is refused."""
    names = sorted(
        one.name
        for one in folder.glob(f"*{ENDING}")
        # Data files of our own that nobody has committed are no model.
        if not one.name.startswith(".") and parse_file_name(one.name) is None
    )
    if not names:
        raise NotFoundError(f"{folder} has no safetensors file")
    for match in filter(None, map(_OF_SEVERAL.fullmatch, names)):
        _require_all(folder, names, match[1], match[3])
    return names


def _require_all(folder: Path, names: Sequence[str], stem: str, count: str) -> None:
    matches = filter(None, map(_OF_SEVERAL.fullmatch, names))
    found = [match for match in matches if (match[1], match[3]) == (stem, count)]
    if len(found) != int(count):
        raise NotFoundError(
            f"{folder} has {len(found)} of the {int(count)} files {stem}-...-of-{count}{ENDING}: "
            "fetch the others, too"
        )


def _header(files: HubFiles, name: str) -> FileHeader:
    try:
        return read_header(files, name)
    except NotFoundError as error:
        raise NotFoundError(
            f"{files.location} lacks the file {name!r}, which the index names: fetch it, too"
        ) from error


def _tensors(
    files: HubFiles, headers: Mapping[str, FileHeader], weight_map: Mapping[str, str]
) -> list[ForeignTensor]:
    """Every tensor once. Where a key is in several files, the index decides."""
    for key, name in weight_map.items():
        if key not in headers[name].entries:
            raise CorruptError(
                f"{files.location}: the index says that {shown(key)} is in {name}, but it is not: "
                "index and files are not of the same model"
            )
    home: dict[str, str] = {}
    # The shapes of a model are few.
    boxes: dict[tuple[int, ...], Box] = {}
    found: list[ForeignTensor] = []
    for name, header in headers.items():
        for key, entry in header.entries.items():
            if weight_map.get(key, name) != name:
                continue
            if key in home:
                raise CorruptError(
                    f"{files.location}: {shown(key)} is in both {home[key]} and {name}; name one "
                    "of the files instead of the folder, or move one away"
                )
            home[key] = name
            if entry.shape not in boxes:
                boxes[entry.shape] = Box.whole(entry.shape)
            chunk = ForeignChunk(boxes[entry.shape], name, entry.start)
            found.append(ForeignTensor(key, entry.dtype, entry.shape, [chunk]))
    return found


def _aliases(headers: Mapping[str, FileHeader], tensors: Sequence[ForeignTensor]) -> dict[str, str]:
    """Further names of tensors: safetensors notes in the metadata which tied ones it left out."""
    keys = {tensor.key for tensor in tensors}
    return {
        other: key
        for header in headers.values()
        for other, key in header.metadata.items()
        if key in keys and other not in keys and other != "format"
    }


def _tree(nodes: Mapping[str, Node], aliases: Mapping[str, str]) -> Node:
    tied = ((other, nodes[key]) for other, key in aliases.items())
    return DictNode((*nodes.items(), *tied))


def _common_metadata(
    headers: Mapping[str, FileHeader], aliases: Mapping[str, str]
) -> dict[str, Json]:
    """What all files say of themselves."""
    several = [header.metadata for header in headers.values()]
    return {
        key: text
        for key, text in several[0].items()
        if key not in aliases and all(one.get(key) == text for one in several)
    }


def _damage(files: HubFiles, name: str, meter: Meter) -> list[str]:
    """What can be said without digests: the header makes sense, and every byte can be read."""
    buffer = bytearray(_STEP_NBYTES)
    try:
        header = read_header(files, name)
        for start in range(0, header.file_nbytes, _STEP_NBYTES):
            part = memoryview(buffer)[: header.file_nbytes - start]
            files.read_into(name, start, [part])
            meter.add(len(part))
    except ShardkeepError as error:
        return [str(error)]
    return []
