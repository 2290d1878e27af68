"""dcp.save, dcp.load and dcp.async_save with one argument changed make checkpoints of ours."""

# torch does not say what it exports.
# pyright: reportPrivateImportUsage=false

import os
import warnings
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import shardkeep as sk
from shardkeep.errors import ConflictError, InvalidError, UnsupportedError
from shardkeep.integrations.dcp import ShardkeepReader, ShardkeepWriter
from tests.distributed.parallelisms import expected_state
from tests.distributed.tensors import assert_same, distinct
from tests.translate import cases_dcp as cases
from tests.translate.states import assert_equal

warnings.simplefilter("ignore", UserWarning)
ALL, PAIR = [0, 1, 2, 3], [0, 1]


def state_of_all_kinds():
    return {
        "model": {"w": distinct((4, 6)), "b": torch.tensor(3, dtype=torch.bfloat16)},
        "none": {"rows": torch.empty(0, 4)},
        "columns": distinct((4, 6)).t(),
        "dtypes": {str(d): distinct((3, 2), d) for d in (torch.bool, torch.float8_e4m3fn)},
        "optim": {
            "state": {0: {"step": torch.tensor(2.0)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}],
        },
        "step": 2**70,
        "mixed": [torch.ones(2), 5],
        "pair": (torch.arange(3), "text"),
    }


def zeros_like(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: zeros_like(one) for key, one in value.items()}
    if isinstance(value, list) and any(isinstance(one, torch.Tensor | dict) for one in value):
        return [zeros_like(one) for one in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else None


def test_what_dcp_saves_through_us_is_a_checkpoint_of_ours(tmp_path):
    state = state_of_all_kinds()
    writer = ShardkeepWriter(tmp_path / "ours", metadata={"by": "dcp"})
    dcp.save(state, storage_writer=writer)
    assert_equal(sk.load(tmp_path / "ours"), state)
    with sk.open(tmp_path / "ours") as checkpoint:
        assert checkpoint.verify().problems == ()
        assert checkpoint.metadata == {"by": "dcp"}
        assert checkpoint["model.w"][1:3, 2].tolist() == state["model"]["w"][1:3, 2].tolist()


def test_dcp_loads_it_again(tmp_path):
    state = state_of_all_kinds()
    dcp.save(state, storage_writer=ShardkeepWriter(tmp_path))
    loaded = zeros_like(state)
    dcp.load(loaded, storage_reader=ShardkeepReader(tmp_path))
    assert_equal(loaded, state)


def test_dcp_loads_what_sk_saved_and_casts_as_it_does(tmp_path):
    state = {"w": distinct((5, 3)), "n": {"x": 1}, "seed": sk.per_rank([4, 5])}
    sk.save(state, tmp_path)
    loaded = {"w": torch.zeros(5, 3, dtype=torch.float64), "n": {"x": 0}, "seed": None}
    dcp.load(loaded, storage_reader=ShardkeepReader(tmp_path))
    assert_same(loaded["w"], state["w"].double())
    assert (loaded["n"], loaded["seed"]) == ({"x": 1}, [4, 5])


def test_a_folder_of_dcp_is_read_without_unpickling_it(tmp_path):
    state = state_of_all_kinds()
    dcp.save(state, checkpoint_id=tmp_path)
    loaded = zeros_like(state)
    dcp.load(loaded, storage_reader=ShardkeepReader(tmp_path))
    assert_equal(loaded, state)


def test_a_save_in_the_background_keeps_what_was_there_when_it_began(tmp_path):
    state = {"w": torch.ones(1000, 1000), "step": 1}
    future: Any = dcp.async_save(state, storage_writer=ShardkeepWriter(tmp_path))
    state["w"].zero_()
    future.result()
    assert_same(sk.load(tmp_path)["w"], torch.ones(1000, 1000))


def test_one_that_is_there_is_replaced_only_if_that_is_wanted(tmp_path):
    dcp.save({"step": 1}, storage_writer=ShardkeepWriter(tmp_path))
    with pytest.raises(dcp.CheckpointException, match="overwrite=True to replace it"):
        dcp.save({"step": 2}, storage_writer=ShardkeepWriter(tmp_path))
    assert sk.load(tmp_path) == {"step": 1}
    dcp.save({"w": torch.ones(2)}, storage_writer=ShardkeepWriter(tmp_path, overwrite=True))
    assert list(sk.load(tmp_path)) == ["w"]
    assert len(os.listdir(tmp_path)) == 2


def test_a_save_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    dcp.save({"w": torch.ones(2)}, storage_writer=ShardkeepWriter(tmp_path))

    def fail(*arguments, **options):
        raise ConflictError("not today")

    monkeypatch.setattr("shardkeep.integrations.dcp.commit", fail)
    with pytest.raises(dcp.CheckpointException, match="not today"):
        dcp.save({"w": torch.zeros(2)}, storage_writer=ShardkeepWriter(tmp_path, overwrite=True))
    assert_same(sk.load(tmp_path)["w"], torch.ones(2))


def test_damage_is_found_when_dcp_loads(tmp_path):
    dcp.save({"w": torch.ones(3000)}, storage_writer=ShardkeepWriter(tmp_path))
    (file,) = tmp_path.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(dcp.CheckpointException, match="are not what was written"):
        dcp.load({"w": torch.zeros(3000)}, storage_reader=ShardkeepReader(tmp_path))


def test_what_cannot_be_kept_is_named(tmp_path):
    with pytest.raises(dcp.CheckpointException, match=r"'odd'.*builtins\.set cannot be kept"):
        dcp.save({"odd": {1, 2}}, storage_writer=ShardkeepWriter(tmp_path))
    assert list(tmp_path.glob("*.safetensors")) == []


def test_a_planner_of_others_has_its_values_read_without_running_them(tmp_path):
    class Planner(DefaultSavePlanner):
        def transform_object(self, write_item, object):
            return super().transform_object(write_item, object)

    state = {"w": torch.ones(2), "step": 3, "lr": [0.5]}
    dcp.save(state, storage_writer=ShardkeepWriter(tmp_path), planner=Planner())
    assert_equal(sk.load(tmp_path), state)


def test_a_plan_that_is_used_again_is_refused(tmp_path):
    def save(name):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        writer = ShardkeepWriter(tmp_path / name)
        dcp.save({"w": torch.ones(2)}, storage_writer=writer, planner=planner)

    save("a")
    with pytest.raises(dcp.CheckpointException, match="enable_plan_caching=False"):
        save("b")


def test_arguments_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(InvalidError, match="threads must be at least 1"):
        ShardkeepWriter(tmp_path, threads=0)
    with pytest.raises(InvalidError, match="metadata"):
        ShardkeepWriter(tmp_path, metadata={"x": object()})  # type: ignore[dict-item]
    with pytest.raises(UnsupportedError, match="use_collectives"):
        ShardkeepWriter(tmp_path).set_up_storage_writer(True, use_collectives=False)


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
@pytest.mark.parametrize("way", ["fsdp", "hsdp", "tp", "replicated"])
def test_ranks_save_through_us_and_load_anywhere(dcp_pool, tmp_path, way):
    path = str(tmp_path)
    dcp_pool.run(cases.writer_saves, way=way, path=path)
    state = sk.load(path)
    assert (state["step"], state["lrs"]) == (7, [0.5, 0.25])
    for key, full in expected_state().items():
        assert_same(state["model"][key], full)
    dcp_pool.run(cases.sk_loads, way="tp", path=path, ranks=PAIR)
    dcp_pool.run(cases.sk_loads, way="fsdp", path=path, ranks=ALL)
    dcp_pool.run(cases.reader_loads, way="fsdp", path=path, ranks=PAIR)
    with sk.open(path) as checkpoint:
        assert checkpoint.verify().problems == ()


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
@pytest.mark.parametrize("way", ["fsdp", "fsdp_tp"])
def test_ranks_load_what_sk_saved(dcp_pool, tmp_path, way):
    dcp_pool.run(cases.sk_saves, way=way, path=str(tmp_path))
    dcp_pool.run(cases.reader_loads, way="hsdp", path=str(tmp_path), ranks=ALL)
    dcp_pool.run(cases.reader_loads, way="tp", path=str(tmp_path), ranks=PAIR)


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
def test_ranks_replace_a_checkpoint(dcp_pool, tmp_path):
    path = str(tmp_path)
    dcp_pool.run(cases.writer_saves, way="tp", path=path)
    said = dcp_pool.run(cases.a_checkpoint_that_is_there_stays, path=path)
    assert all("overwrite=True to replace it" in one for one in said)
    dcp_pool.run(cases.writer_saves, way="fsdp", path=path, overwrite=True)
    dcp_pool.run(cases.sk_loads, way="fsdp", path=path, ranks=ALL)
    assert len({name[:16] for name in os.listdir(path)}) == 2


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
def test_an_optimizers_state_is_saved_in_the_background_by_ranks(dcp_pool, tmp_path):
    case = cases.trained_state_goes_by_the_writer_and_comes_by_the_reader
    dcp_pool.run(case, path=str(tmp_path))
    assert sk.load(tmp_path)["optim"]["param_groups"][0]["betas"] == (0.9, 0.999)


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
def test_what_cannot_be_kept_is_refused_on_all_ranks(dcp_pool, tmp_path):
    said = dcp_pool.run(cases.a_value_that_cannot_be_kept_is_refused_on_all, path=str(tmp_path))
    assert all("builtins.set cannot be kept" in one for one in said)
