"""A program that ends while a save is under way: it is finished, or its loss is told."""

import subprocess
import sys

import pytest

import shardkeep as sk
from tests.distributed.pool import ROOT

PROGRAM = """
import sys, torch
import shardkeep as sk
from shardkeep.transfer import save as save_module

def main(path):
    state = {"w": torch.arange(2_000_000), "v": torch.ones(3)}
    sk.save_async(state, path)
    state["w"].zero_()

# Slow enough to be under way when main returns.
commit = save_module.commit
def slow_commit(*arguments):
    import time
    time.sleep(1)
    commit(*arguments)
save_module.commit = slow_commit
write_files = save_module.write_files
def slow_write(*arguments):
    import time
    time.sleep(1)
    return write_files(*arguments)
save_module.write_files = slow_write
main(sys.argv[1])
print("main is done", flush=True)
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """The folder, and how the two programs ended: one that can save, one that cannot."""
    folder = tmp_path_factory.mktemp("exit")
    (folder / "file").write_text("a file, where a folder is needed")
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for path in (folder / "good", folder / "file" / "bad")
    ]
    return folder, [(*program.communicate(timeout=120), program.returncode) for program in begun]


def test_a_save_that_is_under_way_at_exit_is_finished(ends):
    folder, [(said, errors, _), _] = ends

    assert said == "main is done\n"
    assert errors == ""
    state = sk.load(folder / "good")
    assert state["w"].tolist() == list(range(2_000_000))


def test_a_save_that_fails_at_exit_is_told(ends):
    folder, [_, (said, errors, _)] = ends

    assert said == "main is done\n"
    assert f"the checkpoint {folder / 'file' / 'bad'} was NOT saved" in errors
    assert "file" in errors
