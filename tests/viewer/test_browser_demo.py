"""Real runs and real folders in a browser: the demo's training, DCP's files and Hugging Face's."""

# pyright: reportPrivateImportUsage=false

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from examples.launch import torchrun
from tests.viewer.browser import Window, missing, opened, serving

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Iterator[tuple[Path, Any]]:
    """The demo's training on two processes, under way; its checkpoints are of steps 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("training")
    run = folder / "run"
    run.mkdir()
    with torchrun(
        run,
        *("--parallel", "fsdp", "--steps", 6, "--save-every", 2, "--pause", 0.2),
        processes=2,
        log=folder / "log",
    ) as process:
        yield run, process


def test_the_demos_run_is_followed_from_its_first_save(training, browser):
    run, process = training
    with serving([run]) as url:
        for window in opened(browser, url):
            page = window.page
            page.wait_for_selector("text=No checkpoints yet")
            # Nothing is loaded anew: the page looks again by itself.
            page.wait_for_selector("td a:text-is('2')", timeout=90_000)
            page.wait_for_selector("td a:text-is('6')", timeout=30_000)
            assert process.wait(60) == 0, (run.parent / "log").read_text()
            page.wait_for_selector("text=3 committed")
            assert page.locator("main tbody tr").count() == 3
            _find_a_tensor(window)
            _see_its_tiling(page)
            _compare_steps(window)
            _what_if(window)


def _find_a_tensor(window: Window) -> None:
    window.page.click("td a:text-is('6')")
    window.page.wait_for_selector("h1:text-is('Step 6')")
    window.find("model.blocks.0.up.weight")


def _see_its_tiling(page: Any) -> None:
    page.wait_for_selector("canvas.heat")
    boxes = page.locator(".tile-box")
    said = [boxes.nth(n).get_attribute("aria-label") for n in range(boxes.count())]
    assert [one.split(", ")[:2] for one in said] == [
        ["[0:128", "0:64]: rank 0"],
        ["[128:256", "0:64]: rank 1"],
    ]


def _compare_steps(window: Any) -> None:
    page = window.open("compare", a="0/step-00000002", b="0/step-00000006")
    page.wait_for_selector(".histogram polyline")
    page.wait_for_selector(".chart canvas")
    assert "changed" in window.text()


def _what_if(window: Any) -> None:
    page = window.open("what-if", at="0/step-00000006", mesh="dp=4")
    rows = page.locator(".matrix tbody tr")
    assert rows.count() == 4
    assert rows.nth(0).locator("td.fill i").count() >= 1
    assert "peak memory" in window.text()


def test_a_folder_of_dcp_is_shown(browser, tmp_path):
    model = {"layers.0.w": torch.arange(96.0).reshape(8, 12), "layers.0.b": torch.ones(8)}
    dcp.save({"model": model}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    with serving([tmp_path / "dcp"]) as url:
        for window in opened(browser, url):
            page = window.open("checkpoint", at="0")
            assert "torch.distributed.checkpoint (DCP)" in window.text()
            assert page.locator(".treemap .cell").count() >= 2
            page = window.open("tensor", at="0", key="model.layers.0.w")
            page.wait_for_selector("canvas.heat")
            assert page.locator(".tile-box").count() == 1
            assert page.inner_text(".tile >> nth=1").split() == ["max", "95"]
            page = window.open("what-if", at="0", mesh="dp=2")
            assert page.locator(".matrix tbody tr").count() == 2


def test_a_folder_of_hugging_face_is_shown(browser, tmp_path):
    from huggingface_hub import save_torch_state_dict

    state = {
        "embed.weight": torch.arange(4096.0).reshape(64, 64),
        "layers.0.w": torch.ones(64, 64, dtype=torch.bfloat16),
        "layers.1.w": torch.full((64, 64), 2.0),
    }
    (tmp_path / "hf").mkdir()
    save_torch_state_dict(state, tmp_path / "hf", max_shard_size=20_000)
    assert (tmp_path / "hf" / "model.safetensors.index.json").exists()
    with serving([tmp_path / "hf"]) as url:
        for window in opened(browser, url):
            page = window.open("checkpoint", at="0")
            assert "Hugging Face (safetensors)" in window.text()
            assert "3 tensors" in window.text()
            page = window.open("tensor", at="0", key="embed.weight")
            page.wait_for_selector("canvas.heat")
            page.hover(".tile-box")
            assert ".safetensors, bytes" in page.inner_text(".card output.said >> nth=0")
            assert page.inner_text(".tile >> nth=1").split() == ["max", "4095"]
