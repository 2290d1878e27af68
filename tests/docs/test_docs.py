"""What the pages show is what happens: every example is run, and what it prints compared."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import shardkeep
from shardkeep import errors
from shardkeep.errors import ShardkeepError
from shardkeep.sharded import functions
from tests.distributed.pool import Pool
from tests.docs.blocks import PAGES, ROOT, Block, Way, blocks_of, run_block, run_on_rank

# A Python of an environment of its own: .venv-peers, unless SHARDKEEP_PEERS names another.
PEERS = Path(os.environ.get("SHARDKEEP_PEERS", ROOT / ".venv-peers"), "bin", "python")
WHOLE = Path(__file__).with_name("whole_script.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def page_blocks(page: str, way: Way) -> list[Block]:
    return [block for block in blocks_of((ROOT / page).read_text()) if block.way == way]


def pages_with(way: Way) -> list[str]:
    return [page for page in PAGES if page_blocks(page, way)]


def assert_prints(page: str, block: Block, printed: str) -> None:
    where = f"{page}:{block.line}"
    assert stripped(printed) == stripped(block.shown), f"{where} prints\n{printed}"


def stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.fixture
def own_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page registers ends with it."""
    for table in ("_user_ops", "_spec_ops"):
        monkeypatch.setattr(functions, table, dict(getattr(functions, table)))


@pytest.fixture(scope="module")
def pool4() -> Iterator[Pool]:
    pool = Pool(4, call_seconds=180)
    yield pool
    pool.close()


@pytest.mark.usefixtures("own_ops")
@pytest.mark.parametrize("page", pages_with("here"))
def test_a_page_runs_in_one_process_without_a_group(page, tmp_path, monkeypatch):
    assert not dist.is_initialized()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in page_blocks(page, "here"):
        assert_prints(page, block, run_block(page, block.line, block.code, names))


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
@pytest.mark.parametrize("page", pages_with("ranks"))
def test_a_page_runs_on_four_ranks_and_rank_0_prints_what_it_shows(pool4, page):
    blocks = page_blocks(page, "ranks")
    calls = [(block.line, block.code) for block in blocks]
    printed = pool4.run(run_on_rank, page=page, blocks=calls)[0]
    for block, text in zip(blocks, printed, strict=True):
        assert_prints(page, block, text)


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
@pytest.mark.parametrize("page", pages_with("torchrun"))
def test_the_scripts_of_a_page_run_under_torchrun_in_one_folder(tmp_path, page):
    for block in page_blocks(page, "torchrun"):
        command = [*TORCHRUN, str(block.processes)]
        assert_prints(page, block, run_script(block, [*command, str(WHOLE)], tmp_path))


@pytest.mark.skipif(not PEERS.exists(), reason="make torture-peers installs other libraries")
@pytest.mark.parametrize("page", pages_with("peers"))
def test_the_scripts_of_a_page_run_beside_other_libraries(tmp_path, page):
    for block in page_blocks(page, "peers"):
        assert_prints(page, block, run_script(block, [str(PEERS)], tmp_path))


def run_script(block: Block, command: list[str], folder: Path) -> str:
    script = folder / "script.py"
    script.write_text(block.code)
    done = subprocess.run(
        [*command, str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_of_the_command_line_begins_with_its_help():
    shown = (ROOT / "docs" / "command-line.md").read_text().partition("$ shardkeep --help\n")[2]
    printed = subprocess.run(
        [sys.executable, "-m", "shardkeep", "--help"],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert printed.startswith(shown.partition("```")[0])


def test_every_public_name_is_in_the_docs():
    text = "\n".join((ROOT / page).read_text() for page in PAGES)
    missing = [name for name in vars(shardkeep)["__all__"] if not re.search(rf"\b{name}\b", text)]
    assert missing == [], "these names are exported; say in docs/ what they are for"


def test_every_error_is_in_the_table_with_its_kind_and_builtins():
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.*?) \|", index_page(), re.MULTILINE)
    shown = {name: (kind, set(re.findall(r"\w+", bases))) for name, kind, bases in rows}
    real = {
        error.__name__: (
            error.kind,
            {base.__name__ for base in error.__bases__ if base is not ShardkeepError},
        )
        for error in vars(errors).values()
        if isinstance(error, type)
        and issubclass(error, ShardkeepError)
        and error is not ShardkeepError
    }
    assert shown == real


def index_page() -> str:
    return (ROOT / "docs" / "index.md").read_text()


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_of_a_page_lead_somewhere(page):
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text())
    for target in (link for link in links if "://" not in link):
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        # What follows the name of a picture says when it is shown.
        is_page = file.suffix == ".md"
        assert not anchor or not is_page or anchor in anchors(file), f"{page} links to {target}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


PAGE = """\
```python
a = 1
print(a)
```

```text
1
```

```python ranks=4
print(a + 1)
```
Some prose.
```text
not what it prints
```
"""


def test_blocks_come_with_their_line_and_what_they_print():
    assert blocks_of(PAGE) == [
        Block("here", 1, 2, "a = 1\nprint(a)\n", "1\n"),
        Block("ranks", 4, 11, "print(a + 1)\n"),
    ]


def test_an_unknown_way_to_run_a_block_is_an_error():
    with pytest.raises(KeyError, match="python ranks=3"):
        blocks_of("```python ranks=3\n```\n")


def test_a_page_that_shows_something_else_fails():
    block = Block("here", 1, 1, "print(1)", "2\n")
    with pytest.raises(AssertionError, match=r"README\.md:1 prints"):
        assert_prints("README.md", block, run_block("README.md", 1, block.code, {}))


def test_an_error_names_the_line_of_the_page():
    with pytest.raises(ZeroDivisionError, match="division") as caught:
        run_block("README.md", 3, "a = 1\na / 0\n", {})
    assert caught.traceback[-1].lineno + 1 == 4
