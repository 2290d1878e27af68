"""Who may ask over HTTP, and what does the browser get? Read-only, for this machine's user alone.

Whoever asks must know the token that was printed, be on this machine by the name of the host
(else a page of the web could ask through the user's browser under a name of its own), and may
only GET. Pages run no script but their own.
"""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from shardkeep.errors import CorruptError, InvalidError, NotFoundError, ShardkeepError
from shardkeep.view.web.answers import Answers

_log = logging.getLogger("shardkeep")

STATIC = Path(__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Another port of this machine is the same site to a browser.
_OTHERS = frozenset({"cross-site", "same-site"})
_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_STATUS: dict[type[ShardkeepError], int] = {
    NotFoundError: 404,
    InvalidError: 400,
    CorruptError: 422,
}
_NO_TOKEN = (
    "This address needs the token that `shardkeep serve` printed: open the whole address, "
    "with what stands behind the question mark.\n"
)


def make_app(answers: Answers, token: str) -> Starlette:
    """The viewer; `token` opens it."""
    gate = _Gate(token)

    async def page(request: Request) -> Response:
        refused = gate.refused(request)
        if refused is not None:
            return refused
        return await run_in_threadpool(_answered, answers, request)

    async def file(request: Request) -> Response:
        return gate.refused(request) or _static(request.path_params.get("name", "index.html"))

    async def nothing(request: Request, error: Exception) -> Response:
        return gate.refused(request) or _plain("there is no such page\n", 404)

    return Starlette(
        routes=[
            Route("/api/{page}", page, methods=["GET"]),
            Route("/", file, methods=["GET"]),
            Route("/assets/{name}", file, methods=["GET"]),
        ],
        exception_handlers={404: nothing, 405: nothing},
    )


class _Gate:
    """Lets in those who know the token, from this machine."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._cookie = f"shardkeep-{token[:8]}"

    def refused(self, request: Request) -> Response | None:
        """What to say instead of an answer; None to those who may have one."""
        host = request.headers.get("host", "").lower()
        if host.rpartition(":")[0] not in _HOSTS and host not in _HOSTS:
            return _plain("the viewer answers to 127.0.0.1 and localhost only\n", 403)
        if request.headers.get("sec-fetch-site") in _OTHERS and request.url.path != "/":
            return _plain("the viewer answers to its own pages only\n", 403)
        given = request.query_params.get("token")
        if given is not None and request.url.path == "/" and self._is_token(given):
            return self._let_in()
        if self._is_token(request.cookies.get(self._cookie, "")):
            return None
        if self._is_token(request.headers.get("authorization", "").removeprefix("Bearer ")):
            return None
        return _plain(_NO_TOKEN, 403)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _let_in(self) -> Response:
        """From now on the browser knows the token by itself; it leaves the address bar."""
        response = RedirectResponse("/", 303, headers=_HEADERS)
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return response


def _answered(answers: Answers, request: Request) -> Response:
    page = request.path_params["page"]
    try:
        found = answers.answer(page, request.query_params)
    except ShardkeepError as error:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        return _as_json({"kind": error.kind, "message": str(error)}, status)
    except Exception as error:
        _log.exception("the viewer failed to answer %r", page)
        said = f"{type(error).__name__}: {error}; the terminal has the traceback"
        return _as_json({"kind": "error", "message": said}, 500)
    return Response(found, media_type="application/json", headers=_HEADERS)


def _as_json(value: dict[str, str], status: int) -> Response:
    return Response(msgspec.json.encode(value), status, _HEADERS, "application/json")


def _static(name: str) -> Response:
    # Only names that are there: nothing of a request becomes a path.
    found = {path.name: path for path in STATIC.rglob("*") if path.is_file()}.get(name)
    if found is None or found.suffix not in _TYPES:
        return _plain("there is no such file\n", 404)
    return Response(found.read_bytes(), headers=_HEADERS, media_type=_TYPES[found.suffix])


def _plain(text: str, status: int) -> Response:
    return PlainTextResponse(text, status, _HEADERS)
