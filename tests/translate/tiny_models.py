"""Which models of transformers do the tests use? Tiny ones, made here; nothing is fetched."""

from __future__ import annotations

import os
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

KINDS = ["gpt2", "llama", "llama-tied"]


def config_of(kind: str) -> Any:
    if kind == "gpt2":
        return GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=16, **_TOKENS)
    return _llama(hidden_size=16, vocab_size=50, tie_word_embeddings=kind == "llama-tied")


def large_config() -> Any:
    """16 MiB of float32: enough for parts to be read by themselves."""
    return _llama(hidden_size=512, vocab_size=2048, tie_word_embeddings=True)


_TOKENS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2}


def _llama(hidden_size: int, **changed: Any) -> Any:
    return LlamaConfig(
        num_hidden_layers=2,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_attention_heads=2,
        max_position_embeddings=32,
        **_TOKENS,
        **changed,
    )


def make(config: Any, seed: int = 0) -> Any:
    """A model with weights of its own."""
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config)


def from_pretrained(path: Any, **options: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, **options)
