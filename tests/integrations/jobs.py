"""How does a test run a script on two ranks, and hear what each of them saw?"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RANKS = 2


def run_job(name: str, folder: Path) -> list[dict[str, Any]]:
    """What each rank of `tests.integrations.<name>` wrote down with `say`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    done = subprocess.run(
        [*command, str(RANKS), "-m", f"tests.integrations.{name}", str(folder)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(RANKS)]


def say(folder: Path, said: dict[str, Any]) -> None:
    """Called by a rank at its end."""
    (folder / f"said-{os.environ['RANK']}.json").write_text(json.dumps(said))


def raised(act: Any) -> str:
    """The error that `act` ends with, in words."""
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def import_without(package: str, module: str) -> str:
    """What importing a module says where a package is not installed."""
    code = f"import sys; sys.modules[{package!r}] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]
