"""Who may come in, and how what is sent is to be treated: HTTP around the page. Edge.

Who answers on this machine only, answers this machine's names only (so that no site can have its
own name point here), and no other site's page gets an answer to what it posts. A browser is told to
load nothing from anywhere else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STATIC = Path(__file__).with_name("static")
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def guard(host: str) -> Middleware:
    """`host`: on which we listen."""
    local = host in LOOPBACK

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if local and _name(request.host) not in LOOPBACK:
            raise web.HTTPForbidden(text="this page answers to this machine's own names only\n")
        origin = request.headers.get("Origin")
        if origin and urlsplit(origin).netloc != request.host:
            raise web.HTTPForbidden(text="another site may not ask here\n")
        return await handler(request)

    return guarded


def _name(host: str) -> str:
    """Without the port; of IPv6 without the brackets."""
    return urlsplit(f"//{host}").hostname or ""


async def say_how_to_treat(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in SAFE.items():
        response.headers.setdefault(name, value)


def files() -> list[web.RouteDef]:
    """Everything in `static/`, read once; `/` is the page itself."""
    routes = [
        web.get(f"/{path.name}", _file(path))
        for path in sorted(STATIC.iterdir())
        if path.suffix in TYPES
    ]
    return [web.get("/", _file(STATIC / "index.html")), *routes]


def _file(path: Path) -> Handler:
    body = path.read_bytes()

    async def send(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=TYPES[path.suffix], charset="utf-8")

    return send
