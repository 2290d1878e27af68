"""What a load on other ranks would cost, against what the ranks' own plans say."""

import json
import math

import pytest
import torch

import shardkeep as sk
from shardkeep.errors import InvalidError
from shardkeep.layouts import Layout, Mesh, Replicate, Split
from shardkeep.view.explaining import explain_mesh, parse_mesh, parse_rules, placements_of
from shardkeep.view.opening import opened_checkpoint
from tests.test_cli import run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("explain") / "ckpt"
    state = {
        "up": torch.zeros(256, 4096),
        "down": torch.zeros(4096, 256),
        "bias": torch.zeros(257),
        "step": torch.tensor(1),
    }
    sk.save(state, path, durable=False)
    return path


def found(path, mesh, *shards, most=64):
    axes = parse_mesh(mesh)
    with opened_checkpoint(path) as opened:
        keys = [record.key for record in opened.manifest.tensors]
        return explain_mesh(opened, keys, axes, parse_rules(axes, shards), most=most)


def test_every_byte_is_wanted_once_where_all_axes_cut(saved):
    cost = found(saved, "dp=4")
    # The step count has no dim to cut: each of the ranks wants it.
    whole = sum(tensor.nbytes for tensor in sk.load(saved).values())
    assert cost.total("nbytes_wanted") == whole + 3 * 8
    assert (cost.ranks, cost.distinct, cost.is_sample) == (4, 4, False)


def test_ranks_that_hold_the_same_are_planned_once(saved):
    cost = found(saved, "ddp=100,dp=2")
    assert (cost.ranks, cost.distinct) == (200, 2)
    assert [len(one.ranks) for one in cost.planned] == [100, 100]


def test_of_many_ranks_some_are_planned_and_the_first_and_the_last_among_them(saved):
    cost = found(saved, "dp=512", most=5)
    assert cost.is_sample
    assert [one.ranks[0] for one in cost.planned] == [0, 127, 255, 383, 511]


def test_the_cost_is_that_of_the_plan_of_a_real_load(saved):
    cost = found(saved, "ddp=3")
    into = {key: torch.empty_like(value) for key, value in sk.load(saved).items()}
    plan = sk.explain(saved, into)
    one = cost.planned[0].cost
    assert (one.nbytes_wanted, one.nbytes_read) == (plan.nbytes_wanted, plan.nbytes_read)
    assert (one.requests, one.files) == (plan.requests, plan.files)


def test_names_of_axes_and_rules_say_what_is_cut(saved):
    axes = parse_mesh("rep=2,dp=4,tp=2")
    rules = parse_rules(axes, ["rep:none", "tp:1:down"])
    with opened_checkpoint(saved) as opened:
        placed = {r.key: placements_of(r, axes, rules) for r in opened.manifest.tensors}
    assert placed == {
        "up": (Replicate(), Split(0, 2), Split(0)),
        "down": (Replicate(), Split(0), Split(1)),
        "bias": (Replicate(), Split(0), Replicate()),
        "step": (Replicate(), Replicate(), Replicate()),
    }


@pytest.mark.parametrize("shape", [(256, 8), (257, 3), (5,), (1, 1)])
def test_two_axes_that_cut_one_dim_tile_it(shape):
    mesh = Mesh((4, 2), tuple(range(8)))
    layout = Layout.on_mesh(shape, mesh, (Split(0, 2), Split(0)))
    layout.require_complete()
    assert sum(box.numel for box in layout.holders) == math.prod(shape)


@pytest.mark.parametrize(
    ("mesh", "shards", "said"),
    [
        ("dp", [], "--mesh is as in"),
        ("dp=0", [], "--mesh is as in"),
        ("dp=2,dp=2", [], "each axis once"),
        ("dp=9999999", [], "more than"),
        ("ep=2", [], "what does the axis 'ep' do"),
        ("dp=2", ["tp:0"], "an axis of the mesh"),
        ("dp=2", ["dp:x"], "--shard is"),
    ],
)
def test_a_mesh_that_makes_no_sense_is_refused(mesh, shards, said):
    with pytest.raises(InvalidError, match=said):
        parse_rules(parse_mesh(mesh), shards)


def test_explain_lists_ranks_of_equal_cost_on_one_line(capsys, saved):
    code, out, _ = run(capsys, "explain", saved, "--mesh", "dp=4,tp=2")
    assert code == 0
    assert out.startswith("8 ranks: dp 4 x tp 2\n")
    assert "all ranks" in out
    _, out, _ = run(capsys, "explain", saved, "up", "--mesh", "dp=2", "--json")
    told = json.loads(out)
    assert told["total"]["nbytes_wanted"] == 256 * 4096 * 4
    assert [one["ranks"] for one in told["planned"]] == [[0], [1]]


def test_explain_takes_no_memory_for_tensors_that_are_larger_than_it(tmp_path, capsys):
    # A tensor of 4 TiB, of which the file holds only a hole.
    size = 2**42
    head = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    file = tmp_path / "huge.safetensors"
    with open(file, "wb") as out:
        out.write(len(head).to_bytes(8, "little") + head)
        out.truncate(8 + len(head) + size)
    code, text, err = run(capsys, "explain", file, "--mesh", "ddp=4")
    assert (code, err) == (0, "")
    assert "16.0 TiB" in text


def test_stages_of_a_pipeline_hold_runs_of_layers(tmp_path):
    state = {f"model.layers.{n}.w": torch.zeros(8, 4) for n in range(4)}
    state |= {"model.embed.w": torch.zeros(8, 4), "head": torch.zeros(16), "n": torch.tensor(1)}
    sk.save(state, tmp_path, durable=False)
    cost = found(tmp_path, "dp=2,pp=2")
    layers, embed, head, count = 2 * 128, 128, 64, 8
    assert [one.cost.nbytes_wanted for one in cost.planned] == [
        (layers + embed) // 2 + count,
        (layers + head) // 2 + count,
        (layers + embed) // 2 + count,
        (layers + head) // 2 + count,
    ]


def test_a_rule_for_the_axis_called_pp_takes_the_place_of_stages(saved):
    assert found(saved, "pp=2", "pp:0").total("nbytes_wanted") == found(saved, "dp=2").total(
        "nbytes_wanted"
    )
