"""The live page: a small Starlette app that shows the runs of a folder and their charts while they grow.

Reads run folders only. Bound to loopback it answers loopback names only, so that no page elsewhere can reach it by a
name of its own; bound anywhere else it asks for a token.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.report.shelf import Shelf, size_of
from anisoscope.store.run import Run

PORT = 8733
_COOKIE = "anisoscope_token"
_DIGITS = 18  # of a position in a file: what 64 bits hold
_LOOK_EVERY = 0.4  # seconds between looks at a growing file
_ALIVE_EVERY = 15.0  # seconds of silence after which a comment keeps proxies from hanging up
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# On every answer. Other pages may neither read what is sent (nor load it as a script), nor show it in a frame.
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def live_app(root: str, *, token: str | None = None) -> Starlette:
    """The app over the runs of a folder; with a token every request must carry it, as a cookie or `?token=`."""
    shelf = Shelf(root)
    guards = [Middleware(_Token, token=token) if token else Middleware(_Loopback)]
    routes = [
        Route("/", _index),
        Route("/assets/{name}", _asset),
        Route("/api/runs", _runs),
        Route("/api/book", _book),
        Route("/api/events", _events),
        Route("/report", _report),
    ]
    app = Starlette(routes=routes, middleware=guards, exception_handlers={AnisoscopeError: _refused})
    app.state.shelf = shelf
    return app


def serve(root: str, *, host: str = "127.0.0.1", port: int = PORT, told: Callable[[str], None] | None = None) -> None:
    """Serves the live page until interrupted; `told` is given the address to open."""
    import uvicorn

    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    app = live_app(root, token=token)
    if told is not None:
        told(f"http://{_shown(host)}:{port}/" + (f"?token={token}" if token else ""))
    server = uvicorn.Server(
        uvicorn.Config(app, host=host, port=port, log_level="error", timeout_graceful_shutdown=1, lifespan="off")
    )
    try:
        server.run()
    except SystemExit as error:  # how uvicorn says that it could not bind
        raise InputError(f"cannot listen on {host} port {port}; choose another with --port") from error


def _shown(host: str) -> str:
    """A host as it stands in an address; one that means every interface is shown as this machine's name."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _index(request: Request) -> Response:
    from anisoscope.report.page import live_page

    page = await run_in_threadpool(live_page)
    return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})


async def _asset(request: Request) -> Response:
    from anisoscope.report.page import asset, own_scripts, vega_script

    makers: dict[str, tuple[Callable[[], str], str]] = {
        "vega.js": (vega_script, "text/javascript"),
        "page.js": (lambda: own_scripts("startLive();", "live.js"), "text/javascript"),
        "page.css": (lambda: asset("page.css"), "text/css"),
    }
    name = request.path_params["name"]
    if name not in makers:
        return PlainTextResponse("no such file", status_code=404)
    make, kind = makers[name]
    # Vega is large and changes only with the package: the browser may keep it for a while.
    kept = {"Cache-Control": "private, max-age=3600"} if name == "vega.js" else {}
    return Response(await run_in_threadpool(make), media_type=kind, headers=kept)


async def _runs(request: Request) -> Response:
    shelf: Shelf = request.app.state.shelf
    return JSONResponse(await run_in_threadpool(shelf.listing))


async def _book(request: Request) -> Response:
    """The records of the chosen runs, packed as in a report, and the positions from which to follow them."""
    return JSONResponse(await run_in_threadpool(_packed, _chosen(request)))


def _packed(runs: list[Run]) -> dict[str, Any]:
    from anisoscope.report.book import cards_of, outline_of
    from anisoscope.report.packed import pack
    from anisoscope.report.tidy import joined, run_labels

    read = [run.since(0) for run in runs]
    frames = [run.frame() if frame is None else frame for run, (frame, _) in zip(runs, read, strict=True)]
    table = joined(frames, run_labels(runs))
    return {"packed": pack(table, outline_of(table, cards_of(runs))), "positions": [end for _, end in read]}


async def _events(request: Request) -> Response:
    """A stream of the rows that are appended to the chosen runs; `again` says that they must be read whole."""
    runs = _chosen(request)
    given = request.query_params.getlist("position")
    positions = [int(text) for text in given if text.isascii() and text.isdigit() and len(text) <= _DIGITS]
    if len(positions) != len(runs):
        raise InputError("events need one position for each run; take them from /api/book")
    stream = _follow(runs, positions)
    return StreamingResponse(stream, media_type="text/event-stream")


async def _follow(runs: list[Run], positions: list[int]) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    quiet = 0.0
    while True:
        grown = [place for place, run in enumerate(runs) if size_of(run) != positions[place]]
        try:
            event = await run_in_threadpool(_grown_rows, runs, positions, grown) if grown else None
        except AnisoscopeError:
            event = {"again": True}  # reading the runs whole will say what is wrong with them
        if event is not None:
            yield f"data: {json.dumps(event)}\n\n"
            quiet = 0.0
        if event is not None and event.get("again"):
            return
        await asyncio.sleep(_LOOK_EVERY)
        quiet += _LOOK_EVERY
        if quiet > _ALIVE_EVERY:
            yield ": alive\n\n"
            quiet = 0.0


def _grown_rows(runs: list[Run], positions: list[int], grown: Sequence[int]) -> dict[str, Any] | None:
    """The rows appended since `positions`, which move on; None while only half a line is there."""
    from anisoscope.report.tidy import late_rows, run_labels

    labels = run_labels(runs)
    rows: list[dict[str, Any]] = []
    for place in grown:
        frame, positions[place] = runs[place].since(positions[place])
        if frame is None:
            return {"again": True}
        rows += late_rows(frame.assign(run=labels[place]))
    return {"rows": rows} if rows else None


async def _report(request: Request) -> Response:
    from anisoscope.report.page import report_page

    # The report brings its own policy, which allows its own inline scripts and nothing else.
    return HTMLResponse(await run_in_threadpool(report_page, _chosen(request)))


def _chosen(request: Request) -> list[Run]:
    names = request.query_params.getlist("run")
    if not names:
        raise InputError("no run was asked for; add ?run=NAME")
    shelf: Shelf = request.app.state.shelf
    return shelf.open(names)


async def _refused(request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), status_code=404)


class _Loopback:
    """Lets a request through that was sent to a name of this machine: a page elsewhere may point its own name here."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_loopback(_host(scope)):
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "http":
            told = "This page answers to 127.0.0.1 and localhost only."
            await PlainTextResponse(told, status_code=400, headers=_HEADERS)(scope, receive, send)


def _with_headers(send: Send) -> Send:
    """Sends every answer with our headers, those of the framework itself (no such page, no such method) included."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def _host(scope: Scope) -> str:
    """The name that a request was sent to, without the port; empty where there is none or it is no name.

    Read from the header itself: `request.url` takes the server's own address where the header is no proper name, such
    as one with an underscore in it, which a browser may well be sent to.
    """
    given = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"]
    try:
        return urlsplit(f"//{given[0]}").hostname or "" if len(given) == 1 else ""
    except ValueError:
        return ""


class _Token:
    """Lets a request through that carries the token; one that brings it in the address gets it as a cookie."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        if self._equal(request.cookies.get(_COOKIE)):
            await self.app(scope, receive, _with_headers(send))
        elif self._equal(request.query_params.get("token")):
            response: Response = RedirectResponse(_without_token(request), status_code=303, headers=_HEADERS)
            response.set_cookie(_COOKIE, self.token, httponly=True, samesite="strict")
            await response(scope, receive, send)
        else:
            told = "This page needs its token: open the address that `anisoscope serve` printed."
            await PlainTextResponse(told, status_code=401, headers=_HEADERS)(scope, receive, send)

    def _equal(self, given: str | None) -> bool:
        return given is not None and secrets.compare_digest(given.encode(), self.token.encode())


def _without_token(request: Request) -> str:
    rest = [(key, value) for key, value in request.query_params.multi_items() if key != "token"]
    query = "&".join(f"{quote(key)}={quote(value)}" for key, value in rest)
    # The path alone: an address that starts with // would lead elsewhere.
    return "/" + request.url.path.lstrip("/") + (f"?{query}" if query else "")
