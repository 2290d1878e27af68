"""Which DTensors do the cases use?"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor


def placed(full: torch.Tensor, mesh: DeviceMesh, *placements: Any) -> DTensor:
    """`full`, which every rank has, as a DTensor."""
    return distribute_tensor(full, mesh, placements, src_data_rank=None)


def blank(tensor: DTensor) -> DTensor:
    """The same layout without the values; works on ranks outside the mesh, too."""
    return DTensor.from_local(
        torch.full_like(tensor.to_local(), 99),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
