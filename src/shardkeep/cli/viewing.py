"""`shardkeep serve | report`: checkpoints in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from shardkeep.cli.printing import print_lines
from shardkeep.errors import InvalidError
from shardkeep.view.words import size_text

_HIGHEST_PORT = 65535


def serve(*paths: Path, port: int = 0, no_open: bool = False) -> int:
    """Open runs and checkpoints in a browser, on this machine alone; Ctrl-C ends it.

    The address has a token: who does not know it sees nothing. Nothing can be
    changed there. From another machine: ssh -L 8000:127.0.0.1:8000 HOST, and
    --port 8000 here.

    Examples:

      shardkeep serve runs/a
      shardkeep serve s3://bucket/runs/a
      shardkeep serve runs/a/step-00000100 hf-folder --port 8000 --no-open

    Parameters
    ----------
    paths
        Runs and checkpoints, also as URLs; folders of Hugging Face or DCP,
        safetensors files.
    port
        The port; any that is free by default.
    no_open
        Only print the address.
    """
    from shardkeep.view.web.serving import serve as serve_all

    if not 0 <= port <= _HIGHEST_PORT:
        raise InvalidError(f"--port is a number up to {_HIGHEST_PORT}, got {port}")
    serve_all(paths, port=port, open_browser=not no_open, say=_say)
    return 0


def _say(url: str) -> None:
    print(f"{url}\nopen this address in a browser; Ctrl-C ends it", flush=True)


def report(*paths: Path, output: Annotated[Path, Parameter(alias="-o")]) -> int:
    """Write what the viewer shows as one HTML file, to attach or to keep.

    It needs no server and no network. It holds the structure of the first and
    the newest checkpoints, values of their largest tensors, what changed
    between them, and load plans for some meshes.

    Examples:

      shardkeep report runs/a -o run.html
      shardkeep report hf-folder other-folder -o compared.html

    Parameters
    ----------
    paths
        Runs and checkpoints, also as URLs; folders of Hugging Face or DCP,
        safetensors files.
    output
        The file to write.
    """
    from shardkeep.view.web.report_file import write_report

    nbytes = write_report(list(paths), output)
    print_lines([f"{output}: {size_text(nbytes)}; open it in a browser"])
    return 0
