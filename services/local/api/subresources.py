"""What is written apart from an object: binding, eviction, resize, log, finalize; not `status`."""

import asyncio
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from services.local.api.decoding import decoded
from services.local.api.options import JSON, body_of, is_dry, number, truth
from services.local.api.paths import Place
from services.local.api.protobuf import PROTOBUF
from services.local.api.reading import answer
from services.local.api.writing import PATCHES
from services.local.objects.admission import check, risen
from services.local.objects.bodies import (
    Body,
    containers_of,
    is_over,
    meta,
    name_of,
    node_of,
    spec,
    status,
    with_condition,
    with_spec,
)
from services.local.objects.kinds import NAMESPACE, POD
from services.local.objects.pod_rules import resize_causes, resized
from services.local.objects.refusals import bad_request, conflict, not_allowed
from services.local.scheduling import bound
from services.local.store import Deletion, Store

LOOK_S = 0.1  # between two looks at a log that is followed
OF_TIME = ("timestamps", "sinceSeconds", "sinceTime")
EVICTED = ("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")
SUCCESS: Body = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Success",
    "code": 201,
}


async def bind(request: web.Request, store: Store, place: Place) -> web.Response:
    binding = await body_of(request, JSON)
    name = place.name or name_of(binding)
    node = str((binding.get("target") or {}).get("name") or "")
    pod = store.read(POD, place.namespace, name)
    if not node:
        raise bad_request("target.name: Required value")
    if node_of(pod):
        raise conflict(
            "pods/binding", name, f"pod {name} is already assigned to node {node_of(pod)!r}"
        )
    if not is_dry(request):
        store.update(POD, bound(pod, node, store.now()))
    return answer(SUCCESS, 201)


async def evict(request: web.Request, store: Store, place: Place) -> web.Response:
    """No disruption budget is looked at. As a real one, it first says on the pod why it goes."""
    eviction = await body_of(request, JSON, PROTOBUF)
    options = eviction.get("deleteOptions") or {}
    before = options.get("preconditions") or {}
    how = Deletion(
        grace_s=options.get("gracePeriodSeconds"),
        uid=before.get("uid"),
        revision=before.get("resourceVersion"),
    )
    pod = store.read(POD, place.namespace, place.name)
    if not is_dry(request):
        if not is_over(pod) and not (how.uid and how.uid != meta(pod)["uid"]) and not how.revision:
            store.update(POD, with_condition(pod, store.now(), *EVICTED))
        store.delete(POD, place.namespace, place.name, how)
    return answer(SUCCESS, 201)


async def resize(request: web.Request, store: Store, place: Place) -> web.Response:
    old = store.read(POD, place.namespace, place.name)
    if request.method == "GET":
        return answer(old)
    change = await body_of(request, JSON if request.method == "PUT" else request.content_type)
    old = store.read(POD, place.namespace, place.name)
    wanted = decoded(POD, change if request.method == "PUT" else patched(request, old, change))
    if meta(wanted).get("resourceVersion") not in (None, "", meta(old)["resourceVersion"]):
        raise conflict("pods", place.name, "the object has been modified")
    check(POD, old, resize_causes(old, wanted))
    new = risen(old, resized(old, wanted))
    return answer(new if is_dry(request) else store.update(POD, new))


def patched(request: web.Request, old: Body, change: object) -> Body:
    how = PATCHES.get(request.content_type)
    if how is None:
        raise bad_request(f"unknown kind of patch: {request.content_type}")
    body: Body = how(old, change)
    return body


async def finalize(request: web.Request, store: Store, place: Place) -> web.Response:
    given = await body_of(request, JSON)
    old = store.read(NAMESPACE, "", place.name)
    return answer(
        store.update(NAMESPACE, with_spec(old, finalizers=spec(given).get("finalizers") or None))
    )


# ---- logs


async def log(request: web.Request, store: Store, place: Place, logs: Path) -> web.StreamResponse:
    """No time is kept with a line, so what asks for one is refused."""
    if request.method != "GET":
        raise not_allowed(request.method)
    pod = store.read(POD, place.namespace, place.name)
    container = chosen_container(pod, request.query.get("container", ""))
    for asked in OF_TIME:
        if request.query.get(asked) not in (None, "", "false"):
            raise bad_request(f"{asked}: no time is kept with a line")
    if not node_of(pod):
        raise bad_request(f'pod "{place.name}" does not have a host assigned')
    file = logs / f"{place.namespace}_{place.name}_{meta(pod)['uid']}" / f"{container}.log"
    if not file.exists():
        raise bad_request(
            f'container "{container}" in pod "{place.name}" is waiting to start: ContainerCreating'
        )
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    position = await send_tail(
        response, file, number(request.query, "tailLines"), number(request.query, "limitBytes")
    )
    if truth(request.query.get("follow")):
        with suppress(ConnectionResetError):  # the client has gone
            await follow(response, store, place, file, position, str(meta(pod)["uid"]))
    return response


def chosen_container(pod: Body, asked: str) -> str:
    names = [c["name"] for c in [*containers_of(pod), *(spec(pod).get("initContainers") or [])]]
    if asked and asked not in names:
        raise bad_request(f"container {asked} is not valid for pod {name_of(pod)}")
    if not asked and len(containers_of(pod)) > 1:
        raise bad_request(
            f"a container name must be specified for pod {name_of(pod)}, choose one of: [{' '.join(names)}]"
        )
    return asked or str(names[0])


def tail_of(text: bytes, lines: int | None) -> bytes:
    if lines is None:
        return text
    return b"".join(text.splitlines(keepends=True)[-lines:]) if lines else b""


async def send_tail(
    response: web.StreamResponse, file: Path, lines: int | None, limit: int | None
) -> int:
    """Gives the position up to which the file was read."""
    text = file.read_bytes()
    await response.write(tail_of(text, lines)[:limit])
    return len(text)


async def follow(
    response: web.StreamResponse, store: Store, place: Place, file: Path, position: int, uid: str
) -> None:
    while True:
        pod = store.find(POD, place.namespace, place.name)
        ended = pod is None or is_over(pod) or meta(pod)["uid"] != uid or not status(pod)
        if file.exists():
            with file.open("rb") as stream:
                stream.seek(position)
                more = stream.read()
            position += len(more)
            await response.write(more)
        if ended:
            return
        await asyncio.sleep(LOOK_S)
