"""Which values of a folder of DCP are no tensors, and which tensors lie within them?"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError, UnsupportedError
from shardkeep.manifest import Node
from shardkeep.plan.merge_trees import relabel
from shardkeep.translate.dcp_files import VALUES_FILE, DcpFiles
from shardkeep.translate.dcp_metadata import DcpMetadata, Item
from shardkeep.translate.foreign import ForeignChunk, ForeignTensor
from shardkeep.translate.plain_values import check_archive, check_loaded, unreadable
from shardkeep.translate.torch_archive import Archive

_MAX_VALUE_NBYTES = 2**30


@dataclass(frozen=True, slots=True)
class FoundValues:
    """What is no tensor, as nodes by key; tensors within them lie in a file of their own."""

    nodes: Mapping[str, Node]
    tensors: Sequence[ForeignTensor]


NO_VALUES = FoundValues({}, ())


class Values:
    """Reads values with torch, which is told to make nothing but plain ones."""

    def __init__(self, files: DcpFiles, first: int) -> None:
        self._files = files
        self._first = first
        self._nodes: dict[str, Node] = {}
        self._tensors: list[ForeignTensor] = []
        self._data = bytearray()

    def read(self, metadata: DcpMetadata) -> FoundValues:
        for key, item in metadata.objects.items():
            self._keep(key, self._load(key, item))
        self._files.keep_values(bytes(self._data))
        return FoundValues(self._nodes, self._tensors)

    def _load(self, key: str, item: Item) -> Any:
        import torch

        where = f"{self._files.location}: {key!r}"
        if item.nbytes > _MAX_VALUE_NBYTES:
            raise UnsupportedError(f"{where} is a value of {item.nbytes} bytes; load it with DCP")
        data = self._files.read(item.file, item.offset, item.nbytes)
        archive = Archive(lambda start, nbytes: data[start : start + nbytes], len(data), where)
        check_archive(archive, where=where)
        try:
            value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:
            raise unreadable(where, error) from None
        check_loaded(value, len(data), where=where)
        return value

    def _keep(self, key: str, value: Any) -> None:
        from shardkeep.state.keeping import keep_state
        from shardkeep.transfer.write import as_bytes

        try:
            kept = keep_state(value)
        except InvalidError as error:
            raise UnsupportedError(f"{self._files.location}: {key!r}: {error}") from None
        numbers: list[int] = []
        for name, entry in kept.entries.items():
            numbers.append(self._first + len(self._tensors))
            # So that items of any size lie as memory wants them.
            self._data.extend(bytes(-len(self._data) % 16))
            chunk = ForeignChunk(Box.whole(entry.shape), VALUES_FILE, len(self._data))
            full = f"{key}.{name}" if name else key
            self._tensors.append(ForeignTensor(full, entry.dtype, entry.shape, [chunk]))
            self._data.extend(as_bytes(kept.memory[name][0]))
        self._nodes[key] = relabel(kept.tree, numbers)
