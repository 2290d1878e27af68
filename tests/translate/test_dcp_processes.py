"""What torch.distributed.checkpoint saves on real ranks is loaded here, and the other way round."""

import os

import pytest

import shardkeep as sk
from tests.distributed.parallelisms import expected_state
from tests.distributed.tensors import assert_same
from tests.translate import cases_dcp as cases

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]
ALL, PAIR = [0, 1, 2, 3], [0, 1]


def assert_whole(path):
    state = sk.load(path)
    assert (state["step"], state["lrs"]) == (7, [0.5, 0.25])
    assert list(state["model"]) == list(expected_state())
    for key, full in expected_state().items():
        assert_same(state["model"][key], full)


@pytest.mark.parametrize("way", ["fsdp", "hsdp", "tp", "by_torch", "replicated"])
def test_what_dcp_saves_is_loaded_into_any_other_number_of_ranks(dcp_pool, tmp_path, way):
    path = str(tmp_path / "dcp")
    dcp_pool.run(cases.dcp_saves, way=way, path=path)
    assert_whole(path)
    for target, ranks in [("fsdp", ALL), ("tp", PAIR), ("hsdp", ALL), ("fsdp", PAIR)]:
        dcp_pool.run(cases.sk_loads, way=target, path=path, ranks=ranks)


def test_each_rank_reads_its_slices_only(dcp_pool, tmp_path):
    read = dcp_pool.run(cases.reads_of_a_large_tensor, path=str(tmp_path / "dcp"))
    assert read == [2**20] * 4


@pytest.mark.parametrize("way", ["fsdp", "hsdp", "tp"])
def test_ranks_share_an_import(dcp_pool, tmp_path, way):
    source, path = str(tmp_path / "dcp"), str(tmp_path / "ours")
    dcp_pool.run(cases.dcp_saves, way=way, path=source)
    wrote = dcp_pool.run(cases.imports, source=source, path=path)
    assert min(wrote) > 0
    assert_whole(path)
    with sk.open(path) as checkpoint:
        assert checkpoint.verify().problems == ()
        assert checkpoint.manifest.world == 4


@pytest.mark.parametrize("way", ["fsdp", "fsdp_tp"])
def test_dcp_loads_an_export_on_ranks(dcp_pool, tmp_path, way):
    ours, path = str(tmp_path / "ours"), str(tmp_path / "dcp")
    dcp_pool.run(cases.sk_saves, way=way, path=ours)
    dcp_pool.run(cases.rank_0_exports, source=ours, path=path)
    dcp_pool.run(cases.dcp_loads, way="fsdp", path=path, ranks=ALL)
    dcp_pool.run(cases.dcp_loads, way="tp", path=path, ranks=PAIR)
    assert_whole(path)


def test_an_optimizers_state_of_dcp_is_loaded(dcp_pool, tmp_path):
    path = str(tmp_path / "dcp")
    dcp_pool.run(cases.trained_state_goes_by_dcp_and_comes_by_sk, path=path)
    groups = sk.load(path)["optim"]["param_groups"]
    assert groups[0]["betas"] == (0.9, 0.999)
    assert os.path.exists(f"{path}/.metadata")
