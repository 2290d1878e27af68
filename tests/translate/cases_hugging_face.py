"""What real ranks do with a Hugging Face folder: load it into shards, export what they trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardkeep as sk
from tests.translate.tiny_models import from_pretrained, large_config, make

_TP = {
    "self_attn.q_proj": ColwiseParallel(),
    "self_attn.k_proj": ColwiseParallel(),
    "self_attn.v_proj": ColwiseParallel(),
    "self_attn.o_proj": RowwiseParallel(),
    "mlp.gate_proj": ColwiseParallel(),
    "mlp.up_proj": ColwiseParallel(),
    "mlp.down_proj": RowwiseParallel(),
}


def sharded(way: str, world: int, device: str) -> Any:
    with torch.device(device):
        model = make(large_config(), seed=1)
    mesh = init_device_mesh("cpu", (world,))
    for layer in model.model.layers:
        if way == "tp":
            parallelize_module(layer, mesh, _TP)
        else:
            fully_shard(layer, mesh=mesh)
    if way == "fsdp":
        fully_shard(model, mesh=mesh)
    return model


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def load_in_shards(rank: int, world: int, *, folder: str, way: str, device: str) -> int:
    """The bytes that this rank read of a folder; its shards are what transformers loads."""
    model = sharded(way, world, device)
    report = sk.load(folder, into=model)
    expected = from_pretrained(folder).state_dict()
    found = model.state_dict()
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(whole(found[key]), tensor), key
    assert not report.missing
    assert not report.unexpected
    assert model.lm_head.weight is model.model.embed_tokens.weight
    return report.nbytes_read


def save_shards(rank: int, world: int, *, path: str, way: str) -> None:
    model = sharded(way, world, "cpu")
    optim = torch.optim.AdamW(model.parameters())
    sk.save({"model": model, "optim": optim}, Path(path), durable=False)
