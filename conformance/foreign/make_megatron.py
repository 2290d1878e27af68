"""How was the kept Megatron checkpoint made? By Megatron itself: a GPT on two ranks.

Tensor-parallel. It was run once with megatron-core 0.16.1 and torch 2.13.0, as
`torchrun --nproc-per-node 2 conformance/foreign/make_megatron.py DEST`. Without an accelerator:
calls that ask CUDA for a device, and wait for one, are answered for the CPU.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))
from conformance.foreign.megatron_state import COMMON, RANKS, cells


def main(dest: str) -> None:
    """Save a model of two layers."""
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(RANKS)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=8,
        num_attention_heads=2,
        use_cpu_initialization=True,
        tensor_model_parallel_size=RANKS,
    )
    layers = get_gpt_layer_local_spec(normalization="LayerNorm")
    model = GPTModel(config, layers, vocab_size=16, max_sequence_length=4)
    state = model.sharded_state_dict()
    for part in state.values():
        if isinstance(part, dist_checkpointing.ShardedTensor):
            fill(part)
    Path(dest).mkdir(exist_ok=True)
    dist.barrier()
    dist_checkpointing.save({"model": state, **COMMON}, dest)
    dist.destroy_process_group()


@torch.no_grad()
def fill(part: Any) -> None:
    """This rank's part of the tensor's cells; a layer is a row of all layers' tensor."""
    part.data.copy_(cells(part.key)[part.global_slice()])


if __name__ == "__main__":
    waits = patch.object(torch.cuda, "synchronize", lambda: None)
    with waits, patch.object(torch.cuda, "current_device", lambda: "cpu"):
        main(sys.argv[1])
