"""Runs, commands and all other doors take URLs of object stores."""

import json
from pathlib import Path
from uuid import uuid4

import pytest
import torch

import shardkeep as sk
from shardkeep.cli import main
from shardkeep.errors import UnsupportedError
from tests.runs import assert_restores, empty, save_all, state_of
from torture.fault_proxy import FaultProxy
from torture.object_servers import S3Server


@pytest.fixture
def url(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh place, with the credentials in the environment."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3.url(f"doors/{uuid4().hex}")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit, match=r"\d+") as left:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, captured.out, captured.err


# Runs


def test_a_run_is_kept_in_an_object_store(url: str):
    with sk.Checkpointer(url, keep_last=2) as kept:
        assert kept.restore(empty()) == 0
        for step in (1, 2, 3):
            kept.save_async(step, state_of(step), metrics={"loss": 1 / step})
        kept.wait()
        assert kept.steps() == [2, 3]
        assert (kept.path, kept.path_of(3)) == (url, f"{url}/step-00000003")
        assert kept.latest() == 3
    with sk.Checkpointer(f"{url}/") as again:
        assert_restores(again, 3)
        assert_restores(again, 2, 2)


def test_options_of_a_storage_serve_the_whole_run(s3: S3Server):
    root = sk.ObjectStorage(s3.url(f"doors/{uuid4().hex}"), **s3.options)
    with sk.Checkpointer(root) as kept:
        save_all(kept, 1, 2)
        assert_restores(kept, 2)
        assert kept.path_of(2) == f"{root.location}/step-00000002"


def test_what_a_run_drops_is_gone_and_half_written_ones_go_when_told(url: str, s3: S3Server):
    with sk.Checkpointer(url) as kept:
        save_all(kept, 1, 2, 3)
        half = sk.ObjectStorage(str(kept.path_of(2)), **s3.options)
        half.delete("manifest.json")
        assert kept.steps() == [1, 3]
        assert kept.prune().leftovers == ()
        assert kept.prune(leftovers=True).leftovers == (2,)
        assert half.list() == []
    with sk.Checkpointer(url, keep_last=1) as kept:
        assert kept.prune(dry_run=True).steps == (1,)
        assert kept.prune().steps == (1,)
        assert kept.steps() == [3]
        assert sk.ObjectStorage(str(kept.path_of(1)), **s3.options).list() == []


def test_a_step_that_is_being_saved_is_not_pruned(url: str, s3: S3Server):
    with sk.Checkpointer(url) as kept:
        step = sk.ObjectStorage(str(kept.path_of(7)), **s3.options)
        with step.hold("0123456789abcdef.lock"):
            step.put_if_absent("0123456789abcdef-00000-0.safetensors", b"half")
            kept.prune(leftovers=True)
            assert len(step.list()) == 2


def test_a_damaged_step_is_passed_over(url: str, s3: S3Server):
    with sk.Checkpointer(url) as kept:
        save_all(kept, 1, 2)
        storage = sk.ObjectStorage(str(kept.path_of(2)), **s3.options)
        name = next(one.key for one in storage.list() if one.key.endswith(".safetensors"))
        data = bytearray(storage.get(name, max_nbytes=2**30))
        data[-100] ^= 4
        storage.delete(name)
        storage.put_if_absent(name, data)
        with pytest.raises(sk.CorruptError, match=name):
            kept.restore(empty())
        assert_restores(kept, 1, on_damage="fallback")


# Commands


def test_commands_take_urls(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    with sk.Checkpointer(url) as kept:
        save_all(kept, 1, 2, 3)
    one, two = f"{url}/step-00000001", f"{url}/step-00000002"

    code, out, _ = run(capsys, "ls", url)
    assert (code, out.count("committed")) == (0, 3)
    code, out, _ = run(capsys, "ls", url, "--json")
    assert [step["step"] for step in json.loads(out)] == [1, 2, 3]
    code, out, _ = run(capsys, "show", one)
    assert code == 0
    assert "w     I64    2000" in out
    code, out, _ = run(capsys, "show", one, "w", "--stats")
    assert code == 0
    code, out, _ = run(capsys, "verify", url)
    assert (code, out.count("good")) == (0, 3)
    assert f"{one}: good" in out
    code, out, _ = run(capsys, "diff", one, two)
    assert (code, "1 tensor differs" in out) == (1, True)
    code, out, _ = run(capsys, "explain", one, "--mesh", "dp=2")
    assert code == 0
    code, out, _ = run(capsys, "copy", one, tmp_path / "here")
    assert code == 0
    assert torch.equal(sk.load(tmp_path / "here")["w"], state_of(1)["w"])
    code, out, _ = run(capsys, "copy", tmp_path / "here", f"{url}/there")
    assert code == 0
    assert torch.equal(sk.load(f"{url}/there")["w"], state_of(1)["w"])
    code, out, _ = run(capsys, "export", one, tmp_path / "w.safetensors", "--to", "safetensors")
    assert code == 0
    code, out, _ = run(capsys, "import", tmp_path / "w.safetensors", f"{url}/imported")
    assert code == 0
    assert torch.equal(sk.load(f"{url}/imported")["w"], state_of(1)["w"])
    code, out, _ = run(capsys, "prune", url, "--keep-last", 1, "--yes")
    assert code == 0
    assert run(capsys, "ls", url)[1].count("committed") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "@"], "is a run of 1 checkpoints; name one of them, such as @/step-00000001"),
        (["show", "@/none"], "@/none holds no checkpoint"),
        (["ls", "@/none"], "@/none holds no checkpoints"),
        (["ls", "@/step-00000001"], "is one checkpoint, not a run"),
        (["copy", "@/step-00000001", "@/step-00000001"], "holds a checkpoint already"),
        (["export", "@/step-00000001", "@/out", "--to", "hf"], "@/out is a URL: other"),
        (["import", "@/x", "out"], "@/x is a URL: other formats are read"),
    ],
)
def test_mistakes_with_urls_are_one_line(
    url: str, capsys: pytest.CaptureFixture[str], words: list[str], said: str
):
    with sk.Checkpointer(url) as kept:
        save_all(kept, 1)
    code, out, error = run(capsys, *(word.replace("@", url) for word in words))
    assert (code, out) == (2, "")
    assert said.replace("@", url) in error
    assert len(error.splitlines()) == 1


def test_showing_a_checkpoint_of_many_tensors_takes_a_few_requests(
    s3: S3Server, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    sk.save({f"layer.{n}.w": torch.ones(10) for n in range(3000)}, url)
    proxy = FaultProxy(s3.endpoint)
    with proxy.serving() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        code, out, _ = run(capsys, "show", url)
    assert (code, "layer" in out) == (0, True)
    assert len(proxy.log) <= 3


# Other doors


def test_a_checkpoint_is_explained_and_pruned_at_its_url(url: str):
    state = {"w": torch.arange(1000)}
    sk.save(state, url)
    assert "w" in str(sk.explain(url, into=state)) or sk.explain(url, into=state) is not None
    assert sk.prune(url).names == ()
    with sk.open(url) as checkpoint:
        assert checkpoint["w"][3:5].tolist() == [3, 4]
        assert checkpoint.verify()


def test_without_obstore_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'shardkeep\[objects\]'"):
        sk.load("s3://bucket/a")
