"""The pool tells what went wrong, recovers, and leaves no process behind."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed import cases_pool
from tests.distributed.pool import ROOT, Pool, RanksFailed

PYTEST_THAT_IS_KILLED = """
import time
from tests.distributed import cases_pool
from tests.distributed.pool import Pool
pool = Pool(1)
print(*pool.run(cases_pool.pid), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def pool2() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()


def test_a_call_runs_on_all_ranks_of_one_group(pool2):
    assert pool2.run(cases_pool.sum_of_ranks, times=10) == [10, 10]


def test_ranks_are_kept_from_call_to_call(pool2):
    assert pool2.run(cases_pool.pid) == pool2.run(cases_pool.pid)


def test_a_failure_shows_every_rank_and_the_next_call_gets_new_ranks(pool2):
    before = pool2.run(cases_pool.pid)

    with pytest.raises(RanksFailed, match=r"(?s)rank 0: Traceback.*unhappy.*rank 1: .*is gone"):
        pool2.run(cases_pool.one_rank_raises_another_dies)

    assert not set(before) & set(pool2.run(cases_pool.pid))
    assert not [pid for pid in before if is_alive(pid)]


def test_ranks_that_hang_are_shown_with_the_line_they_are_at(pool2, monkeypatch):
    pool2.run(cases_pool.pid)
    monkeypatch.setattr(pool2, "call_seconds", 1.0)

    with pytest.raises(RanksFailed, match=r"(?s)rank 0: no answer.*barrier.*rank 1: .*sleep\(600"):
        pool2.run(cases_pool.one_rank_never_comes)


def test_workers_die_with_pytest():
    killed = subprocess.Popen(
        [sys.executable, "-c", PYTEST_THAT_IS_KILLED], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert killed.stdout is not None
    pids = [int(pid) for pid in killed.stdout.readline().split()]
    assert len(pids) == 1
    assert all(map(is_alive, pids))

    killed.kill()
    killed.wait()

    deadline = time.monotonic() + 20
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody has waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"
