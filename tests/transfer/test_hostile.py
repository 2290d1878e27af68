"""Does loading run code or leave its folder, whatever lies in it?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXPECTED = {
    "good": "loaded",
    "flipped": "CorruptError",
    "linked": "CorruptError",
    "linked_manifest": "CorruptError",
    "pipe": "CorruptError",
    "unknown_type": "InvalidError",
    "builtin_type": "CorruptError",
    "odd_dtype": "CorruptError",
    "odd_device": "CorruptError",
    "escape": "CorruptError",
    "pickled": "CorruptError",
}


def test_loading_runs_no_code_and_stays_in_its_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.transfer.hostile_loads", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("FORBIDDEN")] == []
    found = dict(line.split(" ", 1) for line in lines)
    # The hook was armed: it saw the folders' own files being opened.
    assert int(found.pop("opened")) > len(EXPECTED)
    assert found == EXPECTED
    assert not list(tmp_path.rglob("hacked"))
