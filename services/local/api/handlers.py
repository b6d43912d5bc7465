"""The verbs and the subresources.

A list is joined from bytes that exist already; no object is encoded twice. Each write is one step:
nothing waits between reading and writing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from services.local.api.request import (
    JSON,
    PROTOBUF,
    ListOptions,
    ResourcePath,
    check_types,
    is_dry_run,
    list_options,
    parse_boolean,
    parse_number,
    read_body,
    read_deletion,
)
from services.local.api.tables import format_list, format_object, requested_form
from services.local.controllers import bound_pod
from services.local.events import to_core_v1, to_events_v1
from services.local.objects import bodies, patches
from services.local.objects.admission import (
    admit_new,
    admit_status,
    admit_update,
    raise_if_invalid,
    resize_causes,
    with_new_resources,
    with_next_generation,
)
from services.local.objects.api_errors import (
    bad_request,
    conflict,
    expired_error,
    not_allowed,
    not_found,
)
from services.local.objects.bodies import (
    Body,
    containers_of,
    has_ended,
    meta,
    name_of,
    namespace_of,
    node_of,
    spec,
    status,
    uid_of,
    with_condition,
    with_spec,
)
from services.local.objects.kinds import EVENT, NAMESPACE, NEW_EVENT, POD, Kind
from services.local.store import (
    BEFORE_ALL,
    CONFLICT_MESSAGE,
    Deletion,
    Key,
    ObjectVersion,
    Store,
    encode,
)


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Where a paged list goes on. Its revision is the first page's: a watch from there misses
    nothing.
    """

    revision: int
    after: Key


def json_response(body: Body, code: int = 200) -> web.Response:
    return web.Response(body=encode(body), status=code, content_type=JSON)


def to_requested_version(kind: Kind, body: Body) -> Body:
    return to_events_v1(body) if kind is NEW_EVENT else body


def get_one(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    body = to_requested_version(place.kind, store.read(place.kind, place.namespace, place.name))
    return json_response(
        format_object(
            requested_form(request.headers.get("Accept", "")), place.kind, body, store.clock()
        )
    )


def matching_objects(
    store: Store, place: ResourcePath, options: ListOptions, after: Key = BEFORE_ALL
) -> Iterator[ObjectVersion]:
    """What a list shows, in order, from behind a key."""
    for stored in store.list_after(place.kind, place.namespace, after):
        seen = (
            ObjectVersion(to_events_v1(stored.body), stored.revision)
            if place.kind is NEW_EVENT
            else stored
        )
        if options.match(seen.body) and place.name in ("", name_of(seen.body)):
            yield seen


def get_list(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    options = list_options(place.kind, request.query)
    page = read_token(options.go_on, store.watch_cache(place.kind).floor) if options.go_on else None
    found = matching_objects(store, place, options, page.after if page else BEFORE_ALL)
    chosen = list(islice(found, options.limit or None))
    revision = page.revision if page else store.revision
    meta: Body = {"resourceVersion": str(revision)}
    if options.limit and next(found, None):
        last = key_of(chosen[-1])
        meta["continue"] = write_token(Page(revision=revision, after=last))
        if not options.selects:  # as in the real server, which would have to look at all of them
            meta["remainingItemCount"] = store.count_after(place.kind, place.namespace, last)
    if form := requested_form(request.headers.get("Accept", "")):
        return json_response(
            format_list(form, place.kind, [s.body for s in chosen], store.clock(), meta)
        )
    return list_response(place.kind, meta, chosen)


def list_response(kind: Kind, meta: Body, items: list[ObjectVersion]) -> web.Response:
    head = encode({"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": meta})
    body = head[:-1] + b',"items":[' + b",".join(s.encoded_body for s in items) + b"]}"
    return web.Response(body=body, content_type=JSON)


def key_of(stored: ObjectVersion) -> Key:
    return namespace_of(stored.body), name_of(stored.body)


def write_token(page: Page) -> str:
    return base64.urlsafe_b64encode(encode(page)).decode().rstrip("=")


def read_token(text: str, floor: int) -> Page:
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        page = msgspec.json.decode(raw, type=Page)
    except (binascii.Error, msgspec.DecodeError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error
    if page.revision < floor:
        raise expired_error(page.revision, floor)
    return page


JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    JSON_PATCH: patches.json_patch,
    MERGE: patches.merge_patch,
    STRATEGIC: patches.strategic_merge,
}
Admit = Callable[[Kind, Body, Body], Body]  # kind, old, new -> what is stored


def to_stored_version(request: web.Request, kind: Kind, body: Body) -> tuple[Kind, Body]:
    """As it may be stored, by its types; both forms of events are stored in the first one."""
    check_types(kind, body, strict=request.query.get("fieldValidation") == "Strict")
    return (
        (EVENT, to_core_v1(body)) if kind is NEW_EVENT and isinstance(body, dict) else (kind, body)
    )


async def create_object(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    media = (JSON, PROTOBUF) if place.kind is NAMESPACE else (JSON,)
    kind, given = to_stored_version(request, place.kind, await read_body(request, *media))
    if kind.namespaced and store.find(NAMESPACE, "", place.namespace) is None:
        raise not_found("namespaces", place.namespace)
    body = admit_new(kind, place.namespace, given, store.now(), store.uids(), store.revision)
    stored = body if is_dry_run(request) else store.create(kind, body)
    return json_response(to_requested_version(place.kind, stored), 201)


def admit_for(place: ResourcePath) -> Admit:
    return admit_status if place.sub == "status" else admit_update


async def replace_object(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    kind, given = to_stored_version(request, place.kind, await read_body(request, JSON))
    return store_update(request, store, place, kind, given)


async def patch_object(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    change = await read_body(request, *PATCHES)
    if isinstance(change, list) != (request.content_type == JSON_PATCH):
        raise bad_request("a JSON patch is a list of operations, any other patch is an object")
    kind, old = place.kind, store.read(place.kind, place.namespace, place.name)
    changed = PATCHES[request.content_type](to_requested_version(kind, old), change)
    kind, new = to_stored_version(request, kind, changed)
    return store_update(request, store, place, kind, new)


def store_update(
    request: web.Request, store: Store, place: ResourcePath, kind: Kind, given: Body
) -> web.Response:
    old = store.read(kind, place.namespace, place.name)
    if meta(given).get("resourceVersion") not in (None, "", meta(old)["resourceVersion"]):
        raise conflict(kind.plural, place.name, CONFLICT_MESSAGE)
    new = admit_for(place)(kind, old, given)
    stored = new if is_dry_run(request) else store.update(kind, new)
    return json_response(to_requested_version(place.kind, stored))


def delete_object(store: Store, kind: Kind, body: Body, how: Deletion) -> Body:
    if how.orphan:
        for dependent, owned in store.dependents(uid_of(body)):
            store.update(dependent, bodies.without_owner(owned, uid_of(body)))
    return store.delete(kind, namespace_of(body), name_of(body), how)


async def delete_one(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    how = await read_deletion(request)
    body = store.read(place.kind, place.namespace, place.name)
    gone = body if is_dry_run(request) else delete_object(store, place.kind, body, how)
    return json_response(gone if place.kind.returns_deleted else success_status(place.kind, gone))


def success_status(kind: Kind, body: Body) -> Body:
    details = {"name": name_of(body), "group": kind.group, "kind": kind.plural, "uid": uid_of(body)}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }


async def delete_collection(
    request: web.Request, store: Store, place: ResourcePath
) -> web.Response:
    how = await read_deletion(request)
    options = list_options(place.kind, request.query)
    chosen = list(matching_objects(store, place, options))  # before anything is removed
    gone = [delete_object(store, place.kind, stored.body, how) for stored in chosen]
    listed = {"kind": f"{place.kind.name}List", "apiVersion": place.kind.api_version}
    return json_response(
        {**listed, "metadata": {"resourceVersion": str(store.revision)}, "items": gone}
    )


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


async def bind_pod(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    binding = await read_body(request, JSON)
    name = place.name or name_of(binding)
    node = str((binding.get("target") or {}).get("name") or "")
    pod = store.read(POD, place.namespace, name)
    if not node:
        raise bad_request("target.name: Required value")
    if node_of(pod):
        raise conflict(
            "pods/binding", name, f"pod {name} is already assigned to node {node_of(pod)!r}"
        )
    if not is_dry_run(request):
        store.update(POD, bound_pod(pod, node, store.now()))
    return json_response(SUCCESS, 201)


async def evict_pod(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    """No disruption budget is looked at. As a real one, it first says on the pod why it goes."""
    eviction = await read_body(request, JSON, PROTOBUF)
    options = eviction.get("deleteOptions") or {}
    before = options.get("preconditions") or {}
    how = Deletion(
        grace_s=options.get("gracePeriodSeconds"),
        uid=before.get("uid"),
        revision=before.get("resourceVersion"),
    )
    pod = store.read(POD, place.namespace, place.name)
    if not is_dry_run(request):
        if (
            not has_ended(pod)
            and not (how.uid and how.uid != meta(pod)["uid"])
            and not how.revision
        ):
            store.update(POD, with_condition(pod, store.now(), *EVICTED))
        store.delete(POD, place.namespace, place.name, how)
    return json_response(SUCCESS, 201)


async def resize_pod(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    old = store.read(POD, place.namespace, place.name)
    if request.method == "GET":
        return json_response(old)
    change = await read_body(request, JSON if request.method == "PUT" else request.content_type)
    old = store.read(POD, place.namespace, place.name)
    wanted = check_types(
        POD, change if request.method == "PUT" else apply_patch(request, old, change)
    )
    if meta(wanted).get("resourceVersion") not in (None, "", meta(old)["resourceVersion"]):
        raise conflict("pods", place.name, "the object has been modified")
    raise_if_invalid(POD, old, resize_causes(old, wanted))
    new = with_next_generation(old, with_new_resources(old, wanted))
    return json_response(new if is_dry_run(request) else store.update(POD, new))


def apply_patch(request: web.Request, old: Body, change: object) -> Body:
    how = PATCHES.get(request.content_type)
    if how is None:
        raise bad_request(f"unknown kind of patch: {request.content_type}")
    body: Body = how(old, change)
    return body


async def finalize_namespace(
    request: web.Request, store: Store, place: ResourcePath
) -> web.Response:
    given = await read_body(request, JSON)
    old = store.read(NAMESPACE, "", place.name)
    return json_response(
        store.update(NAMESPACE, with_spec(old, finalizers=spec(given).get("finalizers") or None))
    )


# ---- logs


async def send_log(
    request: web.Request, store: Store, place: ResourcePath, logs: Path
) -> web.StreamResponse:
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
        response,
        file,
        parse_number(request.query, "tailLines"),
        parse_number(request.query, "limitBytes"),
    )
    if parse_boolean(request.query.get("follow")):
        with suppress(ConnectionResetError):  # the client has gone
            await follow_log(response, store, place, file, position, str(meta(pod)["uid"]))
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


async def follow_log(
    response: web.StreamResponse,
    store: Store,
    place: ResourcePath,
    file: Path,
    position: int,
    uid: str,
) -> None:
    while True:
        pod = store.find(POD, place.namespace, place.name)
        ended = pod is None or has_ended(pod) or meta(pod)["uid"] != uid or not status(pod)
        if file.exists():
            with file.open("rb") as stream:
                stream.seek(position)
                more = stream.read()
            position += len(more)
            await response.write(more)
        if ended:
            return
        await asyncio.sleep(LOOK_S)
