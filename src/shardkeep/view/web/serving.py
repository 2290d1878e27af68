"""How does the viewer run until somebody stops it?"""

from __future__ import annotations

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence

from shardkeep.errors import InvalidError, UnsupportedError
from shardkeep.view.places import Place
from shardkeep.view.web.answers import Answers
from shardkeep.view.web.library import Library

_HOST = "127.0.0.1"


def serve(
    paths: Sequence[Place], *, port: int, open_browser: bool, say: Callable[[str], None]
) -> None:
    """Answer a browser on this machine until Ctrl-C; `say` is told the address."""
    library = Library(paths)
    try:
        import uvicorn

        from shardkeep.view.web.app import make_app
    except ImportError as error:
        raise UnsupportedError(
            f"the viewer needs {error.name}, which is not installed: "
            "pip install 'shardkeep[viewer]'. `shardkeep report` needs nothing more"
        ) from None
    token = secrets.token_urlsafe(24)
    with _listen(port) as listening:
        url = f"http://{_HOST}:{listening.getsockname()[1]}/?token={token}"
        say(url)
        if open_browser:
            # A browser without a window of its own would hold the terminal.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        app = make_app(Answers(library), token)
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            library.close()


def _listen(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((_HOST, port))
        # From now on a browser waits for its answer, however soon it asks.
        found.listen()
    except OSError as error:
        found.close()
        raise InvalidError(
            f"port {port} of {_HOST} cannot be had: {error.strerror}; name another with --port, "
            "or none for any that is free"
        ) from error
    return found
