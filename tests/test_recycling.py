"""A run that recycles: what it holds, what others see of it, and that it takes no more space."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import shardkeep as sk
from shardkeep.cli import main
from shardkeep.storage.spares import SPARES


def state_of(step: int, size: int = 5000) -> dict[str, Any]:
    return {"w": torch.arange(size) + 1_000_000 * step, "step": step}


def inodes(folder: Path | str) -> set[int]:
    return {path.stat().st_ino for path in Path(folder).glob("*.safetensors")}


def run_at(path: Path, **options: Any) -> sk.Checkpointer:
    return sk.Checkpointer(path, durable=False, recycle=True, **options)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with run_at(tmp_path / "try", keep_last=1) as run:
        run.save(1, state_of(1))
        run.save(2, state_of(2))
        if not list((tmp_path / "try" / SPARES).glob("*")):
            pytest.skip("files are not recycled on this file system")
    return tmp_path / "run"


def typed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit, match="0"):
        main([str(word) for word in words])
    return capsys.readouterr().out


def assert_holds(run: sk.Checkpointer, step: int, size: int = 5000) -> None:
    found = sk.load(run.path_of(step))
    assert found["step"] == step
    assert torch.equal(found["w"], state_of(step, size)["w"])


def test_files_of_a_dropped_step_are_written_again(root: Path) -> None:
    sizes = {1: 5000, 2: 5000, 3: 4000, 4: 9000, 5: 10}
    with run_at(root, keep_last=2) as run:
        before: set[int] = set()
        for step, size in sizes.items():
            run.save(step, state_of(step, size))
            assert inodes(run.path_of(step)) == before or not before
            before = inodes(root / SPARES)
            for kept in run.steps():
                assert_holds(run, kept, sizes[kept])
        assert run.steps() == [4, 5]
    assert sorted(os.listdir(root)) == ["step-00000004", "step-00000005"]


def test_saves_in_the_background_take_them_too(root: Path) -> None:
    with run_at(root, keep_last=1) as run:
        run.save(1, state_of(1))
        run.save(2, state_of(2))
        spares = inodes(root / SPARES)
        run.save_async(3, state_of(3)).result()
        assert inodes(run.path_of(3)) == spares
        assert_holds(run, 3)


def test_a_reader_of_a_dropped_step_keeps_what_it_has(root: Path) -> None:
    with run_at(root, keep_last=1) as run:
        run.save(1, state_of(1))
        with sk.open(run.path_of(1)) as checkpoint:
            mapped = checkpoint["w"].mapped()
        for step in (2, 3, 4):
            run.save(step, state_of(step))
            assert (mapped == state_of(1)["w"].numpy()).all()
            assert_holds(run, step)


def test_there_is_never_more_than_one_checkpoint_to_spare(root: Path) -> None:
    with run_at(root) as run:
        for step in (1, 2, 3, 4):
            run.save(step, state_of(step))
    with run_at(root, keep_last=1) as run:
        assert run.prune().steps == (1, 2, 3)
        one = sum(path.stat().st_size for path in Path(run.path_of(4)).glob("*.safetensors"))
        found = sum(path.stat().st_size for path in (root / SPARES).iterdir())
        assert found == one


def test_prune_of_leftovers_takes_spare_files_and_tells(root: Path) -> None:
    run = run_at(root, keep_last=1)
    run.save(1, state_of(1))
    run.save(2, state_of(2))
    nbytes = sum(path.stat().st_size for path in (root / SPARES).iterdir())
    assert run.prune() == sk.RunPrune()
    assert run.prune(leftovers=True, dry_run=True) == sk.RunPrune(spare_nbytes=nbytes)
    assert (root / SPARES).exists()
    assert run.prune(leftovers=True) == sk.RunPrune(spare_nbytes=nbytes)
    assert os.listdir(root) == ["step-00000002"]


def test_a_run_that_does_not_recycle_removes_what_a_killed_one_left(root: Path) -> None:
    killed = run_at(root, keep_last=1)
    killed.save(1, state_of(1))
    killed.save(2, state_of(2))
    with sk.Checkpointer(root, durable=False) as run:
        run.save(3, state_of(3))
    assert sorted(os.listdir(root)) == ["step-00000002", "step-00000003"]


def test_the_command_line_says_what_spare_files_take_and_removes_them(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = run_at(root, keep_last=1)
    killed.save(1, state_of(1))
    killed.save(2, state_of(2))
    assert [line.split()[0] for line in typed(capsys, "ls", root).splitlines()[1:]] == ["2"]
    assert "of spare files would be removed" in typed(capsys, "prune", root, "--leftovers")
    assert (root / SPARES).exists()
    assert "of spare files removed" in typed(capsys, "prune", root, "--leftovers", "--yes")
    assert os.listdir(root) == ["step-00000002"]


def test_both_tiers_recycle(root: Path) -> None:
    slow, local = root / "slow", root / "local"
    with run_at(slow, local=local, keep_local=1, keep_last=1) as run:
        for step in (1, 2, 3):
            run.save(step, state_of(step))
            run.wait()
        spares = inodes(local / SPARES), inodes(slow / SPARES)
        assert all(spares)
        run.save(4, state_of(4))
        run.wait()
        name = Path(run.path_of(4)).name
        assert (inodes(local / name), inodes(slow / name)) == spares
        assert_holds(run, 4)
    assert not (local / SPARES).exists()
    assert not (slow / SPARES).exists()
