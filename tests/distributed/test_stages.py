"""Stages and experts with their optimizers: saved by some ranks, loaded by others, bit for bit."""

from __future__ import annotations

import pytest

from tests.distributed import cases_stages as cases
from tests.distributed.cases_stages import LAYERS, Experts

# Two stages on some ranks; the router only at the end.
INTERLEAVED = [
    [["layer0"], ["layer4"]],
    [["layer1"], ["layer5"]],
    [["layer2"], ["layer6", "router"]],
    [["layer3"]],
]
# Experts of different numbers, and a router on every rank.
EXPERTS = [
    [["router", "layer6", "layer0"]],
    [["router", "layer1"]],
    [["router", "layer2", "layer3"]],
    [["router", "layer4", "layer5"]],
]
THREE = [
    [["layer6", "layer5"]],
    [["layer4"], ["layer3"], ["router"]],
    [["layer2", "layer1"], ["layer0"]],
]
SPLITS = {"stages": INTERLEAVED, "experts": EXPERTS}


@pytest.fixture(scope="module", params=SPLITS)
def saved(pool4, tmp_path_factory, request) -> str:
    path = str(tmp_path_factory.mktemp("stages") / request.param)
    pool4.run(cases.save_stages, path=path, splits=SPLITS[request.param])
    return path


def parameter_counts(splits: list[list[list[str]]]) -> list[int]:
    return [2 * sum(len(stage) for stage in split) for split in splits]


@pytest.mark.parametrize("splits", SPLITS.values(), ids=SPLITS)
def test_stages_and_experts_go_on_in_another_split_of_four(pool4, saved, splits):
    found = pool4.run(cases.load_stages, path=saved, splits=splits)

    assert found == parameter_counts(splits)


def test_stages_and_experts_go_on_in_a_split_of_three(pool3, saved):
    assert pool3.run(cases.load_stages, path=saved, splits=THREE) == parameter_counts(THREE)


@pytest.mark.parametrize("split", [[LAYERS], [LAYERS[5:], LAYERS[:5]]], ids=["one", "parts"])
def test_stages_and_experts_go_on_in_a_process_alone(saved, split):
    assert cases.assert_stages_go_on(saved, split) == 2 * len(LAYERS)


@pytest.fixture(scope="module", params=["adam", "adafactor"])
def experts(pool4, tmp_path_factory, request) -> tuple[str, str]:
    path = str(tmp_path_factory.mktemp("experts") / request.param)
    pool4.run(cases.save_experts, path=path, optimizer=request.param)
    return path, request.param


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_experts_in_one_tensor_go_on_divided_among_others(pool4, pool3, experts, dim):
    path, optimizer = experts

    pool3.run(cases.load_experts, path=path, optimizer=optimizer, dim=dim)
    pool4.run(cases.load_experts, path=path, optimizer=optimizer, dim=dim)


def test_experts_in_one_tensor_go_on_in_a_process_alone(experts):
    path, optimizer = experts

    cases.assert_experts_go_on(path, optimizer, Experts(None, 0, seed=2))
