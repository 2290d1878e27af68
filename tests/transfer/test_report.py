"""What is kept of how a save went."""

from pathlib import Path

import torch

import shardkeep as sk
from tests.transfer.worlds import names


def test_a_save_keeps_how_it_went(tmp_path: Path) -> None:
    result = sk.save({"w": torch.arange(10)}, tmp_path / "a", durable=False)
    with sk.open(tmp_path / "a") as checkpoint:
        report = checkpoint.report()
    assert isinstance(report, sk.SaveReport)
    assert report.save_id == result.save_id
    assert (report.ranks, report.nbytes, report.host_of) == ([0], [result.nbytes], [0])
    assert report.seconds["write"] == [round(result.seconds["write"], 4)]
    assert "stage" not in report.seconds


def test_an_async_save_says_how_long_it_staged(tmp_path: Path) -> None:
    sk.save_async({"w": torch.arange(10)}, tmp_path / "a", durable=False).result()
    with sk.open(tmp_path / "a") as checkpoint:
        report = checkpoint.report()
    assert report is not None
    assert report.seconds["stage"][0] > 0


def test_a_checkpoint_opens_without_its_report_and_with_a_broken_one(tmp_path: Path) -> None:
    result = sk.save({"w": torch.arange(10)}, tmp_path, durable=False, overwrite=True)
    file = tmp_path / f"{result.save_id}-report.json"
    whole = file.read_bytes()
    for bad in (b"", b"{", whole.replace(b'"version":1', b'"version":9'), whole[:-1] + b',"x":[]'):
        file.write_bytes(bad)
        with sk.open(tmp_path) as checkpoint:
            assert checkpoint.report() is None
            checkpoint.verify()
    file.unlink()
    with sk.open(tmp_path) as checkpoint:
        assert checkpoint.report() is None


def test_prune_removes_the_reports_of_other_saves_only(tmp_path: Path) -> None:
    sk.save({"w": torch.arange(10)}, tmp_path, durable=False)
    stray = tmp_path / f"{'0' * 16}-report.json"
    stray.write_text("{}")
    report = sk.prune(tmp_path)
    assert report.names == (stray.name,)
    with sk.open(tmp_path) as checkpoint:
        assert checkpoint.report() is not None


def test_an_overwriting_save_removes_the_old_report(tmp_path: Path) -> None:
    old = sk.save({"w": torch.arange(10)}, tmp_path, durable=False)
    sk.save({"w": torch.arange(10)}, tmp_path, durable=False, overwrite=True)
    assert not (tmp_path / f"{old.save_id}-report.json").exists()
    assert len(names(str(tmp_path))) == 2
