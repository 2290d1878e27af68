"""How does one rank read its part of a checkpoint that DCP loads?"""

# torch leaves futures and the classes of its checkpoints in part untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from shardkeep.boxes import Box
from shardkeep.errors import InvalidError
from shardkeep.integrations.dcp_manifest import leaves_of
from shardkeep.manifest import ArrayNode, Node, PerRankNode, TensorNode
from shardkeep.state.building import build_state
from shardkeep.state.dtypes import TORCH_DTYPES
from shardkeep.state.restoring import Slot
from shardkeep.transfer.filling import fill_slots
from shardkeep.transfer.opened import Opened
from shardkeep.transfer.own_values import own_value
from shardkeep.transfer.progress import Meter


class RankReader:
    """One rank's part of a load."""

    def __init__(self, opened: Opened, planner: LoadPlanner, rank: int, threads: int) -> None:
        self._opened = opened
        self._planner = planner
        self._rank = rank
        self._threads = threads
        self._leaves = leaves_of(opened.manifest)

    def read(self, items: Sequence[ReadItem]) -> None:
        wanted = [(item, self._slot(item)) for item in items if item.type == LoadItemType.TENSOR]
        self._fill([slot for _, slot in wanted])
        for item, slot in wanted:
            self._planner.commit_tensor(item, slot.memory)
        for item in items:
            if item.type == LoadItemType.BYTE_IO:
                self._planner.load_bytes(item, self._bytes(item.storage_index.fqn))

    def _slot(self, item: ReadItem) -> Slot:
        node = self._leaves[item.storage_index.fqn][1]
        if not isinstance(node, TensorNode | ArrayNode):
            raise InvalidError(f"{item.storage_index.fqn!r} is no tensor in {self._location}")
        memory = self._planner.resolve_tensor(item).detach()
        chunk = item.storage_index.offset or (0,) * len(item.lengths)
        start = tuple(a + b for a, b in zip(chunk, item.storage_offsets, strict=True))
        stop = tuple(a + n for a, n in zip(start, item.lengths, strict=True))
        if tuple(memory.shape) != tuple(item.lengths):
            raise InvalidError(
                f"{item.dest_index.fqn!r} has a place of shape {tuple(memory.shape)} for what is "
                f"of shape {tuple(item.lengths)}"
            )
        return Slot.of(self._opened.manifest.tensors[node.index], Box(start, stop), memory)

    @property
    def _location(self) -> str:
        return self._opened.storage.location

    def _fill(self, slots: Sequence[Slot]) -> None:
        with Meter("loading", None, show=False) as meter:
            fill_slots(self._opened, slots, threads=self._threads, verify=True, meter=meter)

    def _bytes(self, key: str) -> io.BytesIO:
        """A value as DCP's planners want it: they unpickle what was pickled here, of plain data."""
        pickled = io.BytesIO()
        torch.save(self._value(self._leaves[key][1]), pickled)
        pickled.seek(0)
        return pickled

    def _value(self, node: Node) -> Any:
        if isinstance(node, PerRankNode):
            return own_value(self._opened, node.key, self._rank)
        return build_state(node, self._whole, str)

    def _whole(self, number: int) -> torch.Tensor:
        record = self._opened.manifest.tensors[number]
        made = torch.empty(record.shape, dtype=TORCH_DTYPES[record.dtype])
        self._fill([Slot.of(record, Box.whole(record.shape), made)])
        return made
