"""The doors. Who may enter, who answers, and how a refusal is said.

The server runs commands for whoever may create pods, so it answers on loopback only, and never a
web page: a request with an Origin, or with a Host that is not this machine, is refused. There are
no accounts. A cluster that was started with a token (`weir up` always gives one) refuses every
request without it (401); one without a token lets in requests without credentials.
"""

import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from aiohttp import BasicAuth, web

from services.local.api import discovery, reading, subresources, watching, writing
from services.local.api.metrics import Metrics
from services.local.api.options import JSON, body_of, truth
from services.local.api.paths import Place, locate
from services.local.api.protobuf import PROTOBUF
from services.local.objects.bodies import Body
from services.local.objects.refusals import (
    Refusal,
    bad_request,
    forbidden,
    no_such_path,
    not_allowed,
    unauthorized,
)
from services.local.store import Store

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LOCAL_NAMES = ("127.0.0.1", "localhost")
LARGEST_BODY = 4 * 2**20


class Server:
    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        logs: Path,
        token: str = "",
        bookmark_s: float = watching.BOOKMARK_S,
    ) -> None:
        self.store = store
        self.metrics = metrics
        self.logs = logs
        self.token = token
        self.bookmark_s = bookmark_s

    def app(self) -> web.Application:
        """The table of contents."""
        app = web.Application(middlewares=[said, self.guarded], client_max_size=LARGEST_BODY)
        for path in ("/healthz", "/livez", "/readyz"):
            app.router.add_get(path, healthy)
        for path in ("/version", "/version/"):  # the official Python client asks for the latter
            app.router.add_get(path, constant(discovery.version()))
        app.router.add_get("/api", constant(discovery.core_versions()))
        app.router.add_get("/apis", constant(discovery.group_list()))
        app.router.add_get("/api/v1", resources)
        app.router.add_get("/apis/{group}", one_group)
        app.router.add_get("/apis/{group}/{version}", resources)
        app.router.add_get("/openapi/v3", constant(discovery.openapi_index()))
        app.router.add_get("/openapi/v3/{path:.+}", openapi)
        app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", reviewed)
        app.router.add_get("/debug/cpu-seconds", self.cpu_seconds)
        app.router.add_get("/apis/metrics.k8s.io/v1beta1/{rest:.+}", self.measures)
        app.router.add_route("*", "/{path:.*}", self.objects)
        return app

    @web.middleware
    async def guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Origin") or (
            request.host.rpartition(":")[0] not in LOCAL_NAMES and request.host not in LOCAL_NAMES
        ):
            raise forbidden("only programs on this machine are answered")
        given = _token(request.headers.get("Authorization", ""))
        if (given or self.token) and not (
            self.token and hmac.compare_digest(given.encode(), self.token.encode())
        ):
            raise unauthorized()
        return await handler(request)

    async def cpu_seconds(self, request: web.Request) -> web.Response:
        return self.metrics.cpu_seconds(request)

    async def measures(self, request: web.Request) -> web.Response:
        return self.metrics.serve(request)

    async def objects(self, request: web.Request) -> web.StreamResponse:
        place = locate(request.path)
        if place.sub and place.sub != "status":
            return await self.subresource(request, place)
        return await (self.one(request, place) if place.name else self.many(request, place))

    async def many(self, request: web.Request, place: Place) -> web.StreamResponse:
        if request.method == "GET" and truth(request.query.get("watch")):
            return await watching.serve(request, self.store, place, self.bookmark_s)
        if request.method == "GET":
            return reading.get_list(request, self.store, place)
        if place.kind.namespaced and not place.namespace:
            raise not_allowed(request.method)
        if request.method == "POST":
            return await writing.create(request, self.store, place)
        if request.method == "DELETE":
            return await writing.delete_collection(request, self.store, place)
        raise not_allowed(request.method)

    async def one(self, request: web.Request, place: Place) -> web.StreamResponse:
        if request.method == "GET" and truth(request.query.get("watch")):
            return await watching.serve(request, self.store, place, self.bookmark_s)
        if request.method == "GET":
            return reading.get_one(request, self.store, place)
        verbs = {"PUT": writing.replace, "PATCH": writing.patch, "DELETE": writing.delete}
        if request.method not in verbs or (place.sub and request.method == "DELETE"):
            raise not_allowed(request.method)
        return await verbs[request.method](request, self.store, place)

    async def subresource(self, request: web.Request, place: Place) -> web.StreamResponse:
        if place.sub == "log":
            return await subresources.log(request, self.store, place, self.logs)
        verbs = {
            ("POST", "binding"): subresources.bind,
            ("POST", "eviction"): subresources.evict,
            ("GET", "resize"): subresources.resize,
            ("PUT", "resize"): subresources.resize,
            ("PATCH", "resize"): subresources.resize,
            ("PUT", "finalize"): subresources.finalize,
        }
        if (request.method, place.sub) not in verbs:
            raise not_allowed(request.method)
        return await verbs[request.method, place.sub](request, self.store, place)


@web.middleware
async def said(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal as a Status object."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return reading.answer(refusal.as_status(), refusal.code)
    except web.HTTPRequestEntityTooLarge:
        return reading.answer(
            Refusal(413, "RequestEntityTooLarge", "the body is too large").as_status(), 413
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.warning("OddRequest", method=request.method, path=request.path, exc_info=True)
        wrong = bad_request(
            f"the object is not of the form that its kind has: {type(error).__name__}: {error}"
        )
        return reading.answer(wrong.as_status(), wrong.code)


async def reviewed(request: web.Request) -> web.Response:
    """May the asker do this? There are no accounts here: who is let in may do everything."""
    asked = await body_of(request, JSON, PROTOBUF)
    told = {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
    }
    return reading.answer(
        {**told, "spec": asked.get("spec") or {}, "status": {"allowed": True}}, 201
    )


def _token(authorization: str) -> str:
    """Return the token of a request: a bearer token, or the password of HTTP basic authentication.

    kubectl sends no bearer token over http, but it does send the user and password of a server's
    URL.
    """
    try:
        password: str = BasicAuth.decode(authorization).password
    except ValueError:
        return authorization.removeprefix("Bearer ")
    return password


def constant(body: Body) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return reading.answer(body)

    return handler


async def healthy(request: web.Request) -> web.Response:
    return web.Response(text="ok")


async def one_group(request: web.Request) -> web.Response:
    found = discovery.one_group(request.match_info["group"])
    return reading.answer(found) if found else refuse()


async def openapi(request: web.Request) -> web.Response:
    found = discovery.openapi(request.match_info["path"])
    return reading.answer(found) if found else refuse()


async def resources(request: web.Request) -> web.Response:
    found = discovery.resource_list(
        request.match_info.get("group", ""), request.match_info.get("version", "v1")
    )
    return reading.answer(found) if found else refuse()


def refuse() -> web.Response:
    raise no_such_path()
