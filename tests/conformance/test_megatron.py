"""Is what Megatron itself wrote read to the same values, without Megatron?"""

from __future__ import annotations

from pathlib import Path

import torch

import shardkeep as sk
from conformance.foreign.megatron_state import COMMON, SHAPES, cells

FOLDER = Path(__file__).parents[2] / "conformance" / "foreign" / "megatron"


def test_it_opens_and_all_of_it_is_there() -> None:
    with sk.open(FOLDER) as checkpoint:
        assert set(checkpoint) == set(SHAPES)
        assert checkpoint.verify().problems == ()
        for name in SHAPES:
            assert torch.equal(checkpoint[name][:], cells(name))


def test_one_layer_of_a_stack_is_read_by_itself() -> None:
    name = "decoder.layers.mlp.linear_fc1.weight"
    with sk.open(FOLDER) as checkpoint:
        assert torch.equal(checkpoint[name][1], cells(name)[1])


def test_a_state_is_filled() -> None:
    state = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    report = sk.load(FOLDER, into=state, strict=False)
    assert all(torch.equal(tensor, cells(name)) for name, tensor in state.items())
    assert all("_extra_state" in key for key in report.unexpected)


def test_it_is_imported_with_names_of_ones_own(tmp_path: Path) -> None:
    name = "embedding.word_embeddings.weight"
    sk.import_checkpoint(
        FOLDER, tmp_path / "own", rename=lambda key: "tokens" if key == name else key, under="model"
    )
    with sk.open(tmp_path / "own") as imported:
        assert torch.equal(imported["model.tokens"][:], cells(name))
        assert imported.verify().problems == ()


def test_values_that_are_the_same_on_all_ranks_lie_beside_it() -> None:
    assert torch.load(FOLDER / "common.pt", weights_only=True).items() >= COMMON.items()
