"""The live page: a small Starlette app that shows the runs of a folder and their charts while they grow.

It reads run folders only. On a loopback address it answers only to loopback names, so that another web page cannot
reach it under a name of its own; on any other address every request needs a token.
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

from anisoscope.errors import AnisoscopeError, InputError
from anisoscope.extras import needs
from anisoscope.report.run_index import RunIndex, size_of
from anisoscope.store.run import Run

with needs("serve", "the live page"):
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

PORT = 8733
LIVE_SCRIPTS = (
    *("step_chart.js", "step_map.js", "step_cursor.js", "loop_charts.js", "live_sections.js", "run_table.js"),
    "live.js",
)
_COOKIE = "anisoscope_token"
_DIGITS = 18  # of a position in a file: fits 64 bits
_POLL_EVERY = 0.4  # seconds between two reads of a growing file
_ALIVE_EVERY = 15.0  # seconds without data after which a comment keeps the connection open
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# On every response: other pages may neither read it, nor load it as a script, nor show it in a frame.
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
_LONGEST_QUERY = 16 << 10  # bytes
_MOST_STREAMS = 32  # open at the same time: each reads files several times per second


def live_app(root: str, *, token: str | None = None) -> Starlette:
    """The app for the runs of a folder; with a token, every request must have it as a cookie or as `?token=`."""
    index = RunIndex(root)
    guards = [Middleware(_Token, token=token) if token else Middleware(_Loopback)]
    routes = [
        Route("/", _index),
        Route("/assets/{name}", _asset),
        Route("/api/runs", _runs),
        Route("/api/records", _records),
        Route("/api/events", _events),
        Route("/report", _report),
    ]
    app = Starlette(routes=routes, middleware=guards, exception_handlers={AnisoscopeError: _refused})
    app.state.index = index
    app.state.streams = 0
    return app


def serve(
    root: str, *, host: str = "127.0.0.1", port: int = PORT, announce: Callable[[str], None] | None = None
) -> None:
    """Serve the live page until interrupted; `announce` is called with the address to open."""
    with needs("serve", "the live page"):
        import uvicorn

    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    app = live_app(root, token=token)
    with _listening(host, port) as listener:  # before the address is announced: it may not be possible
        if announce is not None:
            announce(f"http://{_shown(host)}:{port}/" + (f"?token={token}" if token else ""))
        options = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, lifespan="off")
        uvicorn.Server(options).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        InputError: The name is unknown, the address is not one of this machine, or the port is taken.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:  # a name that is no host name is a UnicodeError
        why = str(getattr(error, "strerror", None) or error).partition(" (")[0]
        raise InputError(f"Cannot listen on {host!r}, port {port}: {why}. Choose another --host or --port.") from error


def _shown(host: str) -> str:
    """A host as it is written in an address; for all interfaces, this machine's name."""
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
    from anisoscope.report.page import own_scripts
    from anisoscope.report.templates import asset
    from anisoscope.report.vega import vega_script

    makers: dict[str, tuple[Callable[[], str], str]] = {
        "vega.js": (vega_script, "text/javascript"),
        "page.js": (
            lambda: own_scripts("startLive();", *LIVE_SCRIPTS),
            "text/javascript",
        ),
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
    index: RunIndex = request.app.state.index
    return JSONResponse(await run_in_threadpool(index.listing))


async def _records(request: Request) -> Response:
    """The records of the chosen runs, packed as in a report, and the positions after them."""
    return JSONResponse(await run_in_threadpool(_packed, _chosen(request)))


def _packed(runs: list[Run]) -> dict[str, Any]:
    from anisoscope.report.outline import cards_of, outline_of
    from anisoscope.report.packed_table import pack
    from anisoscope.report.tables import joined, run_labels, with_range

    read = [run.since(0) for run in runs]
    frames = [run.table() if frame is None else frame for run, (frame, _) in zip(runs, read, strict=True)]
    table = joined([with_range(frame, run) for frame, run in zip(frames, runs, strict=True)], run_labels(runs))
    return {"packed": pack(table, outline_of(table, cards_of(runs))), "positions": [end for _, end in read]}


async def _events(request: Request) -> ASGIApp:
    """A stream of the rows that are appended to the chosen runs; `again` means that they must be read whole."""
    runs = _chosen(request)
    texts = request.query_params.getlist("position")
    positions = [int(text) for text in texts if text.isascii() and text.isdigit() and len(text) <= _DIGITS]
    if len(positions) != len(runs):
        raise InputError("events need one position per run; take them from /api/records")
    stream = StreamingResponse(_follow(runs, positions), media_type="text/event-stream")
    return _counted(request.app.state, stream)


def _counted(state: Any, stream: Response) -> ASGIApp:
    """A response that counts as open until it ends or its page is closed; refused if too many are open.

    It counts when it starts to answer, in one step with the check, so that requests at the same time do not all pass.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if state.streams >= _MOST_STREAMS:
            message = f"{_MOST_STREAMS} pages are open already; close one"
            full = PlainTextResponse(message, status_code=503, headers={"Retry-After": "5"})
            await full(scope, receive, send)
            return
        state.streams += 1
        try:
            await stream(scope, receive, send)
        finally:
            state.streams -= 1

    return answer


async def _follow(runs: list[Run], positions: list[int]) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    quiet = 0.0
    while True:
        grown = [i for i, run in enumerate(runs) if size_of(run) != positions[i]]
        try:
            event = await run_in_threadpool(_grown_rows, runs, positions, grown) if grown else None
        except AnisoscopeError:
            event = {"again": True}  # reading the runs whole will report the error
        if event is not None:
            yield f"data: {json.dumps(event)}\n\n"
            quiet = 0.0
        if event is not None and event.get("again"):
            return
        await asyncio.sleep(_POLL_EVERY)
        quiet += _POLL_EVERY
        if quiet > _ALIVE_EVERY:
            yield ": alive\n\n"
            quiet = 0.0


def _grown_rows(runs: list[Run], positions: list[int], grown: Sequence[int]) -> dict[str, Any] | None:
    """The rows appended since `positions`, which are updated; None if there is no complete line yet."""
    from anisoscope.report.tables import late_rows, run_labels, with_range

    labels = run_labels(runs)
    rows: list[dict[str, Any]] = []
    for i in grown:
        frame, positions[i] = runs[i].since(positions[i])
        if frame is None:
            return {"again": True}
        rows += late_rows(with_range(frame, runs[i]).assign(run=labels[i]))
    return {"rows": rows} if rows else None


async def _report(request: Request) -> Response:
    from anisoscope.report.page import report_page

    # The report has its own policy in the page, which allows only its own inline scripts.
    page = await run_in_threadpool(report_page, _chosen(request))
    return HTMLResponse(page, headers={"Content-Security-Policy": "frame-ancestors 'none'"})


def _chosen(request: Request) -> list[Run]:
    names = request.query_params.getlist("run")
    if not names:
        raise InputError("no run in the request; add ?run=NAME")
    index: RunIndex = request.app.state.index
    return index.open(names)


async def _refused(request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), status_code=404)


class _Loopback:
    """Accepts only requests to a loopback name: another web page may let its own name point to this machine."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := _too_large(scope)) is not None:
            await refusal(scope, receive, send)
        elif scope["type"] == "http" and is_loopback(_host(scope)):
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "http":
            message = "This page answers only to 127.0.0.1 and localhost."
            await PlainTextResponse(message, status_code=400, headers=_HEADERS)(scope, receive, send)


def _too_large(scope: Scope) -> Response | None:
    """The refusal of a request that is longer than any that the page makes: a long query, or a body."""
    if len(scope["query_string"]) > _LONGEST_QUERY:
        return PlainTextResponse("the query is too long", status_code=414, headers=_HEADERS)
    body = any(name.lower() == b"content-length" and value.strip() != b"0" for name, value in scope["headers"])
    chunked = any(name.lower() == b"transfer-encoding" for name, _ in scope["headers"])
    if body or chunked:
        return PlainTextResponse("requests have no body here", status_code=413, headers=_HEADERS)
    return None


def _with_headers(send: Send) -> Send:
    """Add our headers to every response, also to those of the framework itself (404, 405)."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def _host(scope: Scope) -> str:
    """The host name of a request, without the port; empty if it is missing or not valid.

    Read from the header itself: `request.url` uses the server's address if the header is not a proper name, such as
    one with an underscore, which a browser does accept.
    """
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == b"host"]
    try:
        return urlsplit(f"//{hosts[0]}").hostname or "" if len(hosts) == 1 else ""
    except ValueError:
        return ""


class _Token:
    """Accepts only requests with the token; a token in the address is stored as a cookie."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        if (refusal := _too_large(scope)) is not None:
            await refusal(scope, receive, send)
        elif self._equal(request.cookies.get(_COOKIE)):
            await self.app(scope, receive, _with_headers(send))
        elif self._equal(request.query_params.get("token")):
            response: Response = RedirectResponse(_without_token(request), status_code=303, headers=_HEADERS)
            response.set_cookie(_COOKIE, self.token, httponly=True, samesite="strict")
            await response(scope, receive, send)
        else:
            message = "This page needs its token: open the address that `anisoscope serve` printed."
            await PlainTextResponse(message, status_code=401, headers=_HEADERS)(scope, receive, send)

    def _equal(self, token: str | None) -> bool:
        return token is not None and secrets.compare_digest(token.encode(), self.token.encode())


def _without_token(request: Request) -> str:
    rest = [(key, value) for key, value in request.query_params.multi_items() if key != "token"]
    query = "&".join(f"{quote(key)}={quote(value)}" for key, value in rest)
    # Only the path: an address that starts with // would lead to another host.
    return "/" + request.url.path.lstrip("/") + (f"?{query}" if query else "")
