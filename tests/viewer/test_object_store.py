"""What lies in an object store is looked at as what lies in a folder: by ranges, nothing else."""

import json
from typing import Any
from uuid import uuid4

import pytest
import torch

import shardkeep as sk
from shardkeep.errors import InvalidError, NotFoundError
from shardkeep.storage.objects import ObjectStorage
from shardkeep.view.web.answers import Answers
from shardkeep.view.web.library import Library
from shardkeep.view.web.report_file import write_report
from tests.viewer.browser import missing, opened, serving
from torture.object_servers import S3Server

STEP = "0/step-00000002"


def state_of(step: int) -> dict[str, Any]:
    whole = torch.arange(64 * 1024, dtype=torch.float32).reshape(256, 256)
    return {"model": {"layers.0.w": whole * step, "layers.1.w": whole + step}, "step": step}


@pytest.fixture(scope="module")
def run(s3: S3Server) -> Any:
    """A run of two steps in a real store, with the credentials in the environment."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in s3.environment.items():
            patched.setenv(name, value)
        url = s3.url(f"viewer/{uuid4().hex}")
        with sk.Checkpointer(url, keep_last=2) as kept:
            for step in (1, 2):
                kept.save(step, state_of(step), metrics={"loss": 1 / step})
        yield url


@pytest.fixture(scope="module")
def ask(run: str) -> Any:
    answers = Answers(Library([f"{run}/"]))
    return lambda page, **query: json.loads(answers.answer(page, query))


def test_a_run_lists_its_steps(ask, run):
    assert ask("home")["places"][0] == {
        "id": "0",
        "kind": "run",
        "name": run.rpartition("/")[2],
        "path": run,
    }
    page = ask("run", run="0")
    assert [(one["step"], one["state"]) for one in page["steps"]] == [
        (1, "committed"),
        (2, "committed"),
    ]
    assert page["keep"] == {"last": 2}
    assert all(one["seconds"] > 0 for one in page["steps"])


def test_a_tensor_is_read_where_it_is(ask):
    assert ask("checkpoint", at=STEP)["values"] == [["step", "2"]]
    key = "model.layers.0.w"
    (place,) = ask("tensor", at=STEP, key=key)["bytes"]
    assert place[1] - place[0] == 256 * 1024
    assert ask("values", at=STEP, key=key)["stats"]["max"] == 2 * (64 * 1024 - 1)
    assert ask("compare", a="0/step-00000001", b=STEP)["equal"] == 0
    assert [one["step"] for one in ask("drift", run="0", key=key)["steps"]] == [1, 2]
    assert ask("what-if", at=STEP, mesh="dp=4")["total"]["nbytes_wanted"] == 4 * 2 * 64 * 1024


@pytest.mark.parametrize("at", ["0", "0/step-00000003", "0/..", "1/step-00000001"])
def test_nothing_outside_of_what_was_opened_is_found(ask, at):
    with pytest.raises((InvalidError, NotFoundError), match=r"checkpoint|opened"):
        ask("checkpoint", at=at)


def test_a_slice_of_a_large_tensor_is_a_few_requests(run, monkeypatch):
    fetched: list[int] = []
    real = ObjectStorage.fetch

    def fetch(self: ObjectStorage, key: str, offset: int, nbytes: int) -> memoryview:
        fetched.append(nbytes)
        return real(self, key, offset, nbytes)

    url = f"{run}-large"
    sk.save({"w": torch.zeros(4096, 1024)}, url)
    answers = Answers(Library([url]))
    monkeypatch.setattr(ObjectStorage, "fetch", fetch)
    answers.answer("slice", {"at": "0", "key": "w", "rows": "2048:2056", "columns": "0:64"})
    assert 0 < sum(fetched) < 4 * 2**20


def test_a_checkpoint_that_was_replaced_is_read_anew(run):
    url = f"{run}-replaced"
    sk.save({"a": torch.ones(2)}, url)
    answers = Answers(Library([url]))
    asked = {"at": "0"}
    assert json.loads(answers.answer("checkpoint", asked))["tensors"]["keys"] == ["a"]
    sk.save({"b": torch.ones(2)}, url, overwrite=True)
    assert json.loads(answers.answer("checkpoint", asked))["tensors"]["keys"] == ["b"]


def test_an_address_where_nothing_is_is_told(run):
    with pytest.raises(NotFoundError, match=f"{run}-nothing holds no checkpoint, and none"):
        Library([f"{run}-nothing"])


def test_a_report_is_made_of_it(run, tmp_path):
    assert write_report([run], tmp_path / "r.html") > 100_000


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_browser_shows_it(browser, run):
    with serving([run]) as url:
        for window in opened(browser, url):
            window.page.wait_for_selector("main table")
            assert "2 committed" in window.text()
            page = window.open("tensor", at=STEP, key="model.layers.1.w")
            page.wait_for_selector("canvas.heat")
            assert page.locator(".tile-box").count() == 1
