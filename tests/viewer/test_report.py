"""A report holds what it should, and is there as a whole or not at all."""

import pytest
import torch

import shardkeep as sk
from shardkeep.errors import InvalidError, NotFoundError, StorageError
from shardkeep.view.web.answers import Answers
from shardkeep.view.web.library import Library
from shardkeep.view.web.report_file import answer_all, write_report
from tests.runs import flip_a_bit
from tests.test_cli import run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "c"
    sk.save({"w": torch.ones(100), "</script>": torch.ones(2)}, path, durable=False)
    return path


def test_the_command_writes_one_file_without_markup_from_names(capsys, saved, tmp_path):
    target = tmp_path / "r.html"
    code, out, _ = run(capsys, "report", saved, "-o", target)
    assert code == 0
    assert "open it in a browser" in out
    text = target.read_text()
    assert text.count("</script>") == 2
    assert "src=" not in text.split("<body>")[1][:200]
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_a_damaged_tensor_leaves_the_rest_of_the_report(tmp_path):
    sk.save({"w": torch.ones(1000), "v": torch.ones(2)}, tmp_path / "c", durable=False)
    flip_a_bit(tmp_path / "c")
    library = Library([tmp_path / "c"])
    pages = [key.split("\n")[0] for key in answer_all(Answers(library), library)]
    assert {"home", "checkpoint", "tensor", "what-if"} <= set(pages)
    assert pages.count("tensor") == 2


def test_two_checkpoints_are_compared(saved, tmp_path):
    sk.save({"w": torch.zeros(100)}, tmp_path / "d", durable=False)
    library = Library([saved, tmp_path / "d"])
    found = answer_all(Answers(library), library)
    assert b'"keys":["w"]' in found["compare\na=0\nb=1"]


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        (".", InvalidError, "is a folder"),
        ("no/such/folder/r.html", StorageError, "writing the report"),
    ],
)
def test_a_place_that_cannot_be_written_is_told(saved, tmp_path, name, error, said):
    with pytest.raises(error, match=said):
        write_report([saved], tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_checkpoints_has_nothing_to_report(tmp_path):
    with pytest.raises(NotFoundError, match="no committed checkpoint"):
        write_report([tmp_path], tmp_path / "r.html")


def test_what_is_not_there_is_told_in_one_line(capsys, tmp_path):
    for words in (["serve", tmp_path / "no"], ["report", tmp_path / "no", "-o", "x"], ["serve"]):
        code, _, err = run(capsys, *words)
        assert code == 2
        assert len(err.splitlines()) == 1
    code, _, err = run(capsys, "serve", f"file://{tmp_path}/no", "--no-open")
    assert (code, f"{tmp_path}/no" in err, len(err.splitlines())) == (2, True, 1)
    code, _, err = run(capsys, "serve", tmp_path, "--port", "99999", "--no-open")
    assert (code, "--port is a number" in err) == (2, True)
