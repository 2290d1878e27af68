"""What do the tensors of the kept Megatron checkpoint hold? Told by their names and shapes.

Nothing here is to be changed: the checkpoint was made from it and stays as it is.
"""

from __future__ import annotations

import zlib

import torch

RANKS = 2
COMMON = {"iteration": 1000, "checkpoint_version": 3.0}
SHAPES = {
    "embedding.word_embeddings.weight": (16, 8),
    "embedding.position_embeddings.weight": (4, 8),
    "decoder.layers.self_attention.linear_qkv.layer_norm_weight": (2, 8),
    "decoder.layers.self_attention.linear_qkv.layer_norm_bias": (2, 8),
    "decoder.layers.self_attention.linear_qkv.weight": (2, 24, 8),
    "decoder.layers.self_attention.linear_qkv.bias": (2, 24),
    "decoder.layers.self_attention.linear_proj.weight": (2, 8, 8),
    "decoder.layers.self_attention.linear_proj.bias": (2, 8),
    "decoder.layers.mlp.linear_fc1.layer_norm_weight": (2, 8),
    "decoder.layers.mlp.linear_fc1.layer_norm_bias": (2, 8),
    "decoder.layers.mlp.linear_fc1.weight": (2, 32, 8),
    "decoder.layers.mlp.linear_fc1.bias": (2, 32),
    "decoder.layers.mlp.linear_fc2.weight": (2, 8, 32),
    "decoder.layers.mlp.linear_fc2.bias": (2, 8),
    "decoder.final_layernorm.weight": (8,),
    "decoder.final_layernorm.bias": (8,),
    "output_layer.weight": (16, 8),
}
"""Of two layers, which Megatron stacks."""


def cells(name: str) -> torch.Tensor:
    """The whole tensor of this name: whole numbers, other ones for each name."""
    shape = torch.Size(SHAPES[name])
    first = zlib.crc32(name.encode()) % 10_000
    return torch.arange(first, first + shape.numel(), dtype=torch.float32).view(shape)
