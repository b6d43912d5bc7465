"""The HTTP server: routes, access control, error responses, and metrics.k8s.io for `kubectl top`.

The API runs commands for every client that may create pods. So it listens on loopback only, and
refuses a request with an Origin or with a foreign Host: a web page gets no answer. There are no
accounts. A cluster with a token (`weir up` always sets one) refuses every request without it (401).
A cluster without a token accepts requests without credentials.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from aiohttp import BasicAuth, web

from services.local.api import discovery, handlers, watch
from services.local.api.handlers import json_response
from services.local.api.request import (
    JSON,
    PROTOBUF,
    ResourcePath,
    parse_boolean,
    parse_path,
    read_body,
)
from services.local.kubelet.container import KubeletContext
from services.local.kubelet.kubelet import Sample, Usage
from services.local.objects.bodies import (
    ApiError,
    Body,
    bad_request,
    forbidden,
    format_time,
    labels,
    no_such_path,
    not_allowed,
    not_found,
    status,
    unauthorized_error,
)
from services.local.objects.kinds import NODE, POD
from services.local.objects.label_selectors import label_selector
from services.local.objects.resources import parse_amounts
from services.local.store import Store

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LOCAL_NAMES = ("127.0.0.1", "localhost")
LARGEST_BODY = 4 * 2**20
ObjectHandler = Callable[[web.Request, Store, ResourcePath], Awaitable[web.StreamResponse]]
OBJECT_HANDLERS: dict[str, ObjectHandler] = {
    "PUT": handlers.replace_object,
    "PATCH": handlers.patch_object,
    "DELETE": handlers.delete_one,
}
SUBRESOURCE_HANDLERS: dict[tuple[str, str], ObjectHandler] = {
    ("POST", "binding"): handlers.bind_pod,
    ("POST", "eviction"): handlers.evict_pod,
    ("GET", "resize"): handlers.resize_pod,
    ("PUT", "resize"): handlers.resize_pod,
    ("PATCH", "resize"): handlers.resize_pod,
    ("PUT", "finalize"): handlers.finalize_namespace,
}


class ApiServer:
    def __init__(
        self,
        store: Store,
        metrics: MetricsApi,
        logs: Path,
        token: str = "",
        bookmark_s: float = watch.BOOKMARK_S,
    ) -> None:
        self.store = store
        self.metrics = metrics
        self.logs = logs
        self.token = token
        self.bookmark_s = bookmark_s

    def app(self) -> web.Application:
        """Return the application with all routes."""
        app = web.Application(
            middlewares=[error_responses, self.check_access], client_max_size=LARGEST_BODY
        )
        for path in ("/healthz", "/livez", "/readyz"):
            app.router.add_get(path, healthy)
        for path in ("/version", "/version/"):  # the official Python client asks for the latter
            app.router.add_get(path, constant(discovery.version_info()))
        app.router.add_get("/api", constant(discovery.core_versions()))
        app.router.add_get("/apis", constant(discovery.group_list()))
        app.router.add_get("/api/v1", resources)
        app.router.add_get("/apis/{group}", one_group)
        app.router.add_get("/apis/{group}/{version}", resources)
        app.router.add_get("/openapi/v3", constant(discovery.openapi_index()))
        app.router.add_get("/openapi/v3/{path:.+}", openapi)
        app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review_access)
        app.router.add_get("/debug/cpu-seconds", self.cpu_seconds)
        app.router.add_get("/apis/metrics.k8s.io/v1beta1/{rest:.+}", self.measures)
        app.router.add_route("*", "/{path:.*}", self.objects)
        return app

    @web.middleware
    async def check_access(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Origin") or not is_local_host(request.host):
            raise forbidden("only programs on this machine may use this API")
        given = _token(request.headers.get("Authorization", ""))
        if not self.accepts_token(given):
            raise unauthorized_error()
        return await handler(request)

    def accepts_token(self, given: str) -> bool:
        if not self.token:
            return not given
        return hmac.compare_digest(given.encode(), self.token.encode())

    async def cpu_seconds(self, request: web.Request) -> web.Response:
        return self.metrics.cpu_seconds(request)

    async def measures(self, request: web.Request) -> web.Response:
        return self.metrics.serve(request)

    async def objects(self, request: web.Request) -> web.StreamResponse:
        place = parse_path(request.path)
        if place.sub and place.sub != "status":
            return await self.subresource(request, place)
        if request.method == "GET" and parse_boolean(request.query.get("watch")):
            return await watch.serve_watch(request, self.store, place, self.bookmark_s)
        if place.name:
            return await self.one(request, place)
        return await self.many(request, place)

    async def many(self, request: web.Request, place: ResourcePath) -> web.StreamResponse:
        if request.method == "GET":
            return handlers.get_list(request, self.store, place)
        if place.kind.namespaced and not place.namespace:
            raise not_allowed(request.method)
        if request.method == "POST":
            return await handlers.create_object(request, self.store, place)
        if request.method == "DELETE":
            return await handlers.delete_collection(request, self.store, place)
        raise not_allowed(request.method)

    async def one(self, request: web.Request, place: ResourcePath) -> web.StreamResponse:
        if request.method == "GET":
            return handlers.get_one(request, self.store, place)
        handler = OBJECT_HANDLERS.get(request.method)
        if handler is None or (place.sub and request.method == "DELETE"):
            raise not_allowed(request.method)
        return await handler(request, self.store, place)

    async def subresource(self, request: web.Request, place: ResourcePath) -> web.StreamResponse:
        if place.sub == "log":
            return await handlers.send_log(request, self.store, place, self.logs)
        handler = SUBRESOURCE_HANDLERS.get((request.method, place.sub))
        if handler is None:
            raise not_allowed(request.method)
        return await handler(request, self.store, place)


def is_local_host(host: str) -> bool:
    """`host`: the Host header, with or without a port."""
    return host in LOCAL_NAMES or host.rpartition(":")[0] in LOCAL_NAMES


@web.middleware
async def error_responses(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error with a Status object."""
    try:
        return await handler(request)
    except ApiError as error:
        refusal = error
    except web.HTTPRequestEntityTooLarge:
        refusal = ApiError(413, "RequestEntityTooLarge", "the body is too large")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.warning("OddRequest", method=request.method, path=request.path, exc_info=True)
        refusal = bad_request(
            f"the object does not match the schema of its kind: {type(error).__name__}: {error}"
        )
    return handlers.json_response(refusal.as_status(), refusal.code)


async def review_access(request: web.Request) -> web.Response:
    """Answer an access review. There are no accounts, so everything is allowed."""
    review = await read_body(request, JSON, PROTOBUF)
    answer = {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
        "spec": review.get("spec") or {},
        "status": {"allowed": True},
    }
    return handlers.json_response(answer, 201)


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
        return handlers.json_response(body)

    return handler


async def healthy(request: web.Request) -> web.Response:
    return web.Response(text="ok")


async def one_group(request: web.Request) -> web.Response:
    return found_or_error(discovery.find_group(request.match_info["group"]))


async def openapi(request: web.Request) -> web.Response:
    return found_or_error(discovery.openapi_document(request.match_info["path"]))


async def resources(request: web.Request) -> web.Response:
    group, version = request.match_info.get("group", ""), request.match_info.get("version", "v1")
    return found_or_error(discovery.resource_list(group, version))


def found_or_error(found: Body | None) -> web.Response:
    if not found:
        raise no_such_path()
    return handlers.json_response(found)


VERSION = "metrics.k8s.io/v1beta1"


def usage_amounts(sample: Sample) -> Body:
    return {"cpu": f"{round(sample.cores * 1e9)}n", "memory": f"{sample.memory // 1024}Ki"}


def metrics_head(kind: str, meta: Body, sample: Sample) -> Body:
    when = format_time(sample.at_s)
    return {
        "kind": kind,
        "apiVersion": VERSION,
        "metadata": {**meta, "creationTimestamp": when},
        "timestamp": when,
        "window": f"{sample.window_s:.3f}s",
    }


def node_metrics(name: str, sample: Sample, node: Body) -> Body:
    return {
        **metrics_head("NodeMetrics", {"name": name, "labels": labels(node)}, sample),
        "usage": usage_amounts(sample),
    }


def pod_metrics(place: tuple[str, str], sample: Sample, pod: Body) -> Body:
    """Return the metrics of a pod. Pods are measured as a whole; the first container gets the
    usage.
    """
    meta = {"namespace": place[0], "name": place[1], "labels": labels(pod)}
    container = {"name": pod["spec"]["containers"][0]["name"], "usage": usage_amounts(sample)}
    return {**metrics_head("PodMetrics", meta, sample), "containers": [container]}


class MetricsApi:
    """metrics.k8s.io, and the CPU seconds for benchmarks."""

    def __init__(self, context: KubeletContext, usage: Usage) -> None:
        self.context, self.usage = context, usage

    def serve(self, request: web.Request) -> web.Response:
        namespace, rest = "", request.path.strip("/").split("/")[3:]
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            _, namespace, *rest = rest
        if rest[:1] not in (["nodes"], ["pods"]) or len(rest) > 2:
            raise no_such_path()
        plural = rest[0]
        metrics = self.nodes() if plural == "nodes" else self.pods(namespace)
        if len(rest) == 1:
            return self.metrics_list(plural, metrics, request.query.get("labelSelector", ""))
        name = rest[1]
        for each in metrics:
            if each["metadata"]["name"] == name:
                return json_response(each)
        raise not_found(plural, name, "metrics.k8s.io")

    def metrics_list(self, plural: str, metrics: list[Body], selector: str) -> web.Response:
        kind = "NodeMetricsList" if plural == "nodes" else "PodMetricsList"
        items = list(filter(label_selector(selector), metrics))
        return json_response({"kind": kind, "apiVersion": VERSION, "metadata": {}, "items": items})

    def nodes(self) -> list[Body]:
        metrics = []
        for name, sample in self.usage.nodes.items():
            node = self.context.store.find(NODE, "", name)
            if node is not None:
                metrics.append(node_metrics(name, sample, node))
        return metrics

    def pods(self, namespace: str) -> list[Body]:
        metrics = []
        for place, sample in self.usage.pods.items():
            if namespace in ("", place[0]):
                pod = self.context.store.find(POD, *place)
                if pod is not None:
                    metrics.append(pod_metrics(place, sample, pod))
        return metrics

    def cpu_seconds(self, request: web.Request) -> web.Response:
        measured = self.usage.cpu_seconds()
        nodes = {}
        for name, seconds in measured["nodes"].items():
            nodes[name] = {"allocatable": self.allocatable(name), "seconds": seconds}
        enforced = self.context.cgroups.enforced
        return json_response({"enforced": enforced, "nodes": nodes, "pods": measured["pods"]})

    def allocatable(self, name: str) -> float:
        """Return the allocatable cores of a node."""
        node = self.context.store.find(NODE, "", name) or {}
        return parse_amounts(status(node).get("allocatable")).get("cpu", 0) / 1000
