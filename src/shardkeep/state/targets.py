"""What memory of this rank does a whole tensor's part go to, and what leaf comes of it?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shardkeep.errors import CompanionMismatch, InvalidError
from shardkeep.layouts import Layout
from shardkeep.plan import Entry
from shardkeep.sharded.leaves import is_on_meta, leaf_kind, local_tensors, with_local_tensors
from shardkeep.state.paths import Path, path_text


@dataclass(frozen=True, slots=True)
class Target:
    """Local memory to fill, and the leaf that stands in the tree afterwards."""

    path: Path
    entry: Entry
    buffers: Sequence[torch.Tensor]
    leaf: torch.Tensor

    def layout(self, me: int) -> Layout:
        """Who holds what of it; a whole tensor counts as mine."""
        return self.entry.layout or Layout.replicated(self.entry.shape, [me])


def target_for(
    path: Path, local: Any, shape: Sequence[int], dtype: torch.dtype, device: torch.device | None
) -> Target:
    """The memory for a whole tensor of this shape and dtype, given what stands at `path` now.

    Tensors with memory are filled where they are and keep their dtype; those on the meta device
    get memory on `device`; a value that is no tensor gives way to the whole tensor.
    """
    kind = leaf_kind(local)
    if kind is None:
        whole = torch.empty(tuple(shape), dtype=dtype, device=device)
        return Target(path, Entry(str(dtype), tuple(shape), None), [whole], whole)
    if tuple(local.shape) != tuple(shape):
        raise CompanionMismatch(
            f"{path_text(path)} has shape {tuple(local.shape)} here, the full tensor has "
            f"{tuple(shape)}"
        )
    layout = None if kind == "tensor" else _layout(path, local)
    entry = Entry(str(local.dtype), tuple(shape), layout)
    buffers = [_with_memory(part, device) for part in local_tensors(local)]
    leaf = local if not is_on_meta(local) else _made_real(local, buffers, device)
    return Target(path, entry, buffers, leaf)


def _layout(path: Path, local: torch.Tensor) -> Layout:
    try:
        return Layout.of(local)
    except InvalidError as error:
        raise type(error)(f"{path_text(path)}: {error}") from error


def _with_memory(part: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    return torch.empty_like(part, device=device or "cpu") if part.is_meta else part


def _made_real(
    local: torch.Tensor, buffers: Sequence[torch.Tensor], device: torch.device | None
) -> torch.Tensor:
    made = with_local_tensors(local, buffers, device=device)
    return made.requires_grad_(local.requires_grad)


def filled(target: Target, *, cpu_offload: bool) -> torch.Tensor:
    """The leaf that stands in the tree afterwards."""
    leaf = target.leaf
    if cpu_offload and leaf.device.type != "cpu":
        leaf = with_local_tensors(leaf, [part.cpu() for part in local_tensors(leaf)])
    return leaf
