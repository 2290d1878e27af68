"""What the viewer says is what is in the checkpoints."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shardkeep as sk
from shardkeep.errors import CorruptError, InvalidError, NotFoundError
from shardkeep.storage import LocalStorage
from shardkeep.view.web.answers import Answers
from shardkeep.view.web.library import Library
from tests.viewer.demo_run import BAD, state_at

NEWEST, FIRST = "0/step-00000700", "0/step-00000200"
MANY = "0/step-00000600"


@pytest.fixture(scope="module")
def ask(demo):
    answers = Answers(Library([demo]))

    def asked(page: str, **query: str) -> Any:
        return json.loads(answers.answer(page, query))

    return asked


def asker(*paths: Path) -> Any:
    answers = Answers(Library(list(paths)))
    return lambda page, **query: json.loads(answers.answer(page, query))


def test_a_run_lists_every_step_with_its_state(ask):
    steps = ask("run", run="0")["steps"]
    assert {one["step"]: one["state"] for one in steps} == {
        200: "committed",
        400: "committed",
        500: "damaged",
        600: "committed",
        650: "committed",
        700: "committed",
        800: "half-written",
    }
    assert "is missing" in steps[2]["problem"]
    assert all(one["seconds"] > one["blocked"] > 0 for one in steps[:6])


def test_a_run_says_why_each_checkpoint_is_kept(ask):
    kept = {one["step"]: one["kept_by"] for one in ask("run", run="0")["steps"]}
    assert kept == {
        200: ["every 200"],
        400: ["every 200"],
        500: [],
        600: ["last 3", "every 200"],
        650: ["last 3"],
        700: ["last 3", "best 1 by loss"],
        800: [],
    }


def test_the_rules_of_a_real_run_are_told(tmp_path):
    rules: Any = {"keep_last": 1, "keep_every": 10, "keep_best": ("loss", "max", 2)}
    with sk.Checkpointer(tmp_path / "run", durable=False, **rules) as run:
        run.save(5, {"w": torch.ones(2)}, metrics={"loss": float("nan")})
        run.save(10, {"w": torch.ones(2)}, metrics={"loss": 1.5})
    page = asker(tmp_path / "run")("run", run="0")
    assert page["keep"] == {"last": 1, "every": 10, "best": ["loss", "max", 2]}
    assert [one["kept_by"] for one in page["steps"]] == [["last 1", "every 10", "best 2 by loss"]]


def test_a_save_in_the_background_blocks_for_its_copy_only(tmp_path):
    with sk.Checkpointer(tmp_path / "run", durable=False) as run:
        run.save_async(1, {"w": torch.ones(1000)})
    (step,) = asker(tmp_path / "run")("run", run="0")["steps"]
    with sk.open(tmp_path / "run" / "step-00000001") as saved:
        report = saved.report()
    assert report is not None
    assert step["blocked"] == report.seconds["stage"][0]
    assert step["seconds"] > step["blocked"]


def test_a_save_under_way_is_told_from_one_that_was_broken_off(tmp_path):
    folder = tmp_path / "step-00000001"
    with LocalStorage(folder, create=True) as storage:
        ask = asker(tmp_path)
        with storage.hold("0123456789abcdef.lock"):
            assert ask("run", run="0")["steps"][0]["state"] == "in progress"
        assert ask("run", run="0")["steps"][0]["state"] == "half-written"


def test_a_checkpoint_lists_all_tensors(ask, demo):
    page = ask("checkpoint", at=NEWEST)
    tensors = page["tensors"]
    with sk.open(demo / "step-00000700") as saved:
        expected = [(one.key, one.dtype, list(one.shape), one.nbytes) for one in saved.values()]
    assert expected == [
        (key, tensors["dtypes"][dtype], tensors["shapes"][shape], nbytes)
        for key, dtype, shape, nbytes in zip(
            tensors["keys"], tensors["dtype"], tensors["shape"], tensors["nbytes"], strict=True
        )
    ]
    assert page["step"] == 700
    assert page["metadata"] == {"commit": "4f2a91c", "dataset": "tiny-stories"}
    assert page["report"]["ranks"] == [0, 1]
    assert sum(page["files"]["nbytes"]) == page["file_nbytes"]


def test_values_that_are_no_tensors_are_listed(tmp_path):
    state = {"step": 3, "args": {"lr": 0.5, "names": ["a"]}, "own": sk.per_rank(1)}
    sk.save(state, tmp_path, durable=False)
    values = dict(asker(tmp_path)("checkpoint", at="0")["values"])
    assert values["args.names.0"] == "a"
    assert values["step"] == "3"
    assert values["own"] == "each rank has its own"


def test_a_tensor_says_who_holds_which_box_at_which_bytes(ask, demo):
    page = ask("tensor", at=MANY, key="model.layers.0.attn.out.weight")
    whole = state_at(600, 4)["model.layers.0.attn.out.weight"].whole
    found = torch.zeros_like(whole)
    for start, stop, file, (first, last) in zip(
        page["starts"], page["stops"], page["file_of"], page["bytes"], strict=True
    ):
        data = (demo / "step-00000600" / page["files"][file]).read_bytes()[first:last]
        sides = [b - a for a, b in zip(start, stop, strict=True)]
        cells = torch.frombuffer(bytearray(data), dtype=whole.dtype).reshape(sides)
        found[start[0] : stop[0], start[1] : stop[1]] = cells
    assert torch.equal(found, whole)
    assert page["ranks"] == [0, 1, 2, 3]


def test_statistics_and_histogram_of_a_tensor(ask):
    page = ask("values", at=NEWEST, key="model.head.weight")
    cells = state_at(700, 2)["model.head.weight"].whole.double().numpy()
    expected, _ = np.histogram(cells, 64)
    assert page["stats"]["mean"] == pytest.approx(cells.mean())
    assert page["stats"]["std"] == pytest.approx(cells.std())
    assert sum(page["bins"]) == cells.size
    # Cells on the edge of two bins may be counted in either.
    assert np.abs(np.array(page["bins"]) - expected).max() <= 8


def test_values_that_are_not_finite_are_counted_and_found(ask):
    page = ask("values", at=MANY, key=BAD)
    assert (page["stats"]["nan"], page["stats"]["inf"]) == (30, 1)
    assert page["odd"]["cells"][0] == [40, 10]
    assert sum(one["nan"] for one in page["odd"]["boxes"]) == 30


def test_a_large_tensor_is_sampled_evenly_and_read_whole_when_asked(tmp_path, monkeypatch):
    from shardkeep.view.web import values_page

    monkeypatch.setattr(values_page, "SAMPLE_NBYTES", 2 * 2**20)
    sk.save({"w": torch.arange(2**21).float()}, tmp_path, durable=False)
    ask = asker(tmp_path)
    some, every = ask("values", at="0", key="w"), ask("values", at="0", key="w", whole="1")
    assert not some["is_whole"]
    assert some["read_nbytes"] == 2 * 2**20
    assert some["stats"]["max"] < every["stats"]["max"] == 2**21 - 1
    assert every["is_whole"]


@pytest.mark.parametrize(
    ("shape", "query", "expected"),
    [
        ((40, 30), {"rows": "3:9", "columns": "2:30"}, np.s_[3:9, 2:30]),
        ((4, 5, 6), {"index": "2"}, np.s_[2, :, :]),
        ((4, 5, 6), {"row_dim": "0", "column_dim": "2", "index": "0,3"}, np.s_[:, 3, :]),
        ((600, 3), {}, np.s_[::3, :]),
        ((3, 1000), {}, np.s_[:, ::4]),
        ((7,), {}, np.s_[:]),
        ((), {}, np.s_[...]),
    ],
)
def test_a_slice_is_what_it_says(tmp_path, shape, query, expected):
    whole = torch.arange(max(1, int(np.prod(shape)))).reshape(shape).to(torch.bfloat16)
    sk.save({"w": whole}, tmp_path, durable=False)
    page = asker(tmp_path)("slice", at="0", key="w", **query)
    cells = np.frombuffer(base64.b64decode(page["cells"]), "<f4")
    wanted = whole.float().numpy()[expected]
    assert cells.tolist() == wanted.reshape(-1).tolist()
    assert page["rows"][2] * page["columns"][2] == cells.size


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"rows": "3:1"}, "a range is as in 0:4"),
        ({"rows": "0:99"}, "a number from 0 to 4"),
        ({"index": "1,2,3"}, "3 indices for 2 dims"),
        ({"row_dim": "1"}, "two different dims"),
        ({"row_dim": "x"}, "a number from 0 to 1"),
    ],
)
def test_a_slice_that_makes_no_sense_is_refused(tmp_path, query, said):
    sk.save({"w": torch.ones(4, 4)}, tmp_path, durable=False)
    with pytest.raises(InvalidError, match=said):
        asker(tmp_path)("slice", at="0", key="w", **query)


def test_a_comparison_finds_what_changed_largest_first(ask):
    page = ask("compare", a=FIRST, b=NEWEST)
    assert page["keys"][0] == BAD
    assert page["most"][0] == "inf"
    assert all(key.startswith("model.") for key in page["keys"])
    assert page["equal"] == 46
    assert page["most"][1:] == sorted(page["most"][1:], reverse=True)


def test_distributions_lie_over_one_range(ask):
    page = ask("spread", a=FIRST, b=NEWEST, key="model.head.weight")
    stats = page["stats"]
    assert page["least"] == min(one["min"] for one in stats)
    assert page["most"] == max(one["max"] for one in stats)
    assert [sum(bins) for bins in page["bins"]] == [one["count"] for one in stats]


def test_drift_is_the_distance_from_the_first_step(ask):
    steps = ask("drift", run="0", key="model.head.weight")["steps"]
    first, last = (state_at(n, 2)["model.head.weight"].whole.double() for n in (200, 700))
    assert [one["step"] for one in steps] == [200, 400, 600, 650, 700]
    assert steps[-1]["from_first"] == pytest.approx(((last - first).norm() / first.norm()).item())
    assert steps[0]["from_first"] == 0


def test_what_if_says_who_reads_which_bytes(ask, demo):
    page = ask("what-if", at=NEWEST, mesh="dp=2,tp=2")
    assert (page["ranks"], page["distinct"]) == (4, 4)
    assert page["total"]["nbytes_wanted"] == sum(one["nbytes_wanted"] for one in page["readers"])
    for reader in page["readers"]:
        assert reader["nbytes_read"] == sum(one["nbytes"] for one in reader["reads"])
        assert reader["peak_nbytes"] >= reader["nbytes_wanted"]
        for read in reader["reads"]:
            size = (demo / "step-00000700" / page["file_names"][read["file"]]).stat().st_size
            assert all(0 <= start < stop <= size for start, stop in read["ranges"])


def test_stages_of_a_pipeline_share_the_layers_out(ask):
    page = ask("what-if", at=NEWEST, mesh="pp=2")
    whole = ask("checkpoint", at=NEWEST)["nbytes"]
    assert sum(one["nbytes_wanted"] for one in page["readers"]) == whole
    assert page["distinct"] == 2


def test_foreign_folders_open(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.ones(3, 2)}, tmp_path / "model.safetensors")
    ask = asker(tmp_path)
    assert ask("home")["places"][0]["kind"] == "checkpoint"
    assert ask("checkpoint", at="0")["format"] == "Hugging Face (safetensors)"
    assert ask("tensor", at="0", key="w")["ranks"] is None
    assert ask("values", at="0", key="w")["stats"]["mean"] == 1


def test_a_folder_without_checkpoints_is_a_run_that_has_not_begun(tmp_path):
    assert asker(tmp_path)("run", run="0")["steps"] == []


@pytest.mark.parametrize(
    "at", ["", "0", "1", "0/..", "0/../demo", "/etc", "0/step-00000700/..", "9/step-00000700"]
)
def test_nothing_outside_of_what_was_opened_is_found(ask, at):
    with pytest.raises((InvalidError, NotFoundError), match=r"checkpoint|opened"):
        ask("checkpoint", at=at)


def test_a_link_in_a_run_leads_nowhere(tmp_path):
    sk.save({"secret": torch.ones(1)}, tmp_path / "elsewhere", durable=False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "step-00000001").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotFoundError, match="has no checkpoint"):
        asker(tmp_path / "run")("checkpoint", at="0/step-00000001")


def test_a_checkpoint_that_was_replaced_is_read_anew(tmp_path):
    ask = asker(_saved(tmp_path / "c", a=torch.ones(2)))
    assert ask("checkpoint", at="0")["tensors"]["keys"] == ["a"]
    _saved(tmp_path / "c", b=torch.ones(2))
    assert ask("checkpoint", at="0")["tensors"]["keys"] == ["b"]


def _saved(path: Path, **state: torch.Tensor) -> Path:
    sk.save(state, path, durable=False, overwrite=True)
    return path


def test_damage_is_an_error_that_says_so(tmp_path):
    _saved(tmp_path / "c", w=torch.ones(1000))
    (file,) = (tmp_path / "c").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-7] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptError, match="w"):
        asker(tmp_path / "c")("values", at="0", key="w")
