"""The handlers of the verbs and the subresources.

A list is joined from the encoded objects, so no object is encoded twice. Each write is one step:
nothing waits between its read and its write.
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
from services.local.objects.bodies import (
    Body,
    bad_request,
    conflict,
    containers_of,
    expired_error,
    has_ended,
    init_containers_of,
    meta,
    name_of,
    namespace_of,
    node_of,
    not_allowed,
    not_found,
    spec,
    status,
    uid_of,
    with_condition,
    with_spec,
)
from services.local.objects.kinds import EVENT, NAMESPACE, NEW_EVENT, POD, Kind
from services.local.store import (
    BEFORE_ALL,
    Deletion,
    Key,
    ObjectVersion,
    Store,
    check_revision,
    encode,
)


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a paged list. Its revision is that of the first page, so a watch from that
    revision misses nothing.
    """

    revision: int
    after: Key


def json_response(body: Body, code: int = 200) -> web.Response:
    return web.Response(body=encode(body), status=code, content_type=JSON)


def to_requested_version(kind: Kind, body: Body) -> Body:
    return to_events_v1(body) if kind is NEW_EVENT else body


def get_one(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    body = to_requested_version(place.kind, store.read(place.kind, place.namespace, place.name))
    return json_response(format_object(form_of(request), place.kind, body, store.clock()))


def form_of(request: web.Request) -> str:
    return requested_form(request.headers.get("Accept", ""))


def matching_objects(
    store: Store, place: ResourcePath, options: ListOptions, after: Key = BEFORE_ALL
) -> Iterator[ObjectVersion]:
    """Yield the objects of a list in order, after a key."""
    for stored in store.list_after(place.kind, place.namespace, after):
        shown = stored
        if place.kind is NEW_EVENT:
            shown = ObjectVersion(to_events_v1(stored.body), stored.revision)
        if options.match(shown.body) and place.name in ("", name_of(shown.body)):
            yield shown


def get_list(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    kind = place.kind
    options = list_options(kind, request.query)
    page = Page(revision=store.revision, after=BEFORE_ALL)
    if options.continue_token:
        page = read_token(options.continue_token, store.watch_cache(kind).floor)
    found = matching_objects(store, place, options, page.after)
    chosen = list(islice(found, options.limit or None))
    meta: Body = {"resourceVersion": str(page.revision)}
    if options.limit and next(found, None):
        last = key_of(chosen[-1])
        meta["continue"] = write_token(Page(revision=page.revision, after=last))
        if not options.selects:  # as in the real server, which would have to count them
            meta["remainingItemCount"] = store.count_after(kind, place.namespace, last)
    if form := form_of(request):
        items = [stored.body for stored in chosen]
        return json_response(format_list(form, kind, items, store.clock(), meta))
    return list_response(kind, meta, chosen)


def list_response(kind: Kind, meta: Body, items: list[ObjectVersion]) -> web.Response:
    head = encode({**list_head(kind), "metadata": meta})
    encoded = b",".join(stored.encoded_body for stored in items)
    return web.Response(body=head[:-1] + b',"items":[' + encoded + b"]}", content_type=JSON)


def list_head(kind: Kind) -> Body:
    return {"kind": f"{kind.name}List", "apiVersion": kind.api_version}


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


def to_stored_version(request: web.Request, kind: Kind, body: Body) -> tuple[Kind, Body]:
    """Check the types of a body; return its kind and body as they are stored. Both versions of
    events are stored as core/v1.
    """
    check_types(kind, body, strict=request.query.get("fieldValidation") == "Strict")
    if kind is NEW_EVENT and isinstance(body, dict):
        return EVENT, to_core_v1(body)
    return kind, body


async def create_object(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    media = (JSON, PROTOBUF) if place.kind is NAMESPACE else (JSON,)
    kind, given = to_stored_version(request, place.kind, await read_body(request, *media))
    if kind.namespaced and store.find(NAMESPACE, "", place.namespace) is None:
        raise not_found("namespaces", place.namespace)
    body = admit_new(kind, place.namespace, given, store.now(), store.uids(), store.revision)
    if not is_dry_run(request):
        body = store.create(kind, body)
    return json_response(to_requested_version(place.kind, body), 201)


async def replace_object(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    kind, given = to_stored_version(request, place.kind, await read_body(request, JSON))
    return store_update(request, store, place, kind, given)


async def patch_object(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    patch = await read_body(request, *PATCHES)
    if isinstance(patch, list) != (request.content_type == JSON_PATCH):
        raise bad_request("a JSON patch is a list of operations, any other patch is an object")
    kind = place.kind
    old = to_requested_version(kind, store.read(kind, place.namespace, place.name))
    kind, new = to_stored_version(request, kind, apply_patch(request, old, patch))
    return store_update(request, store, place, kind, new)


def store_update(
    request: web.Request, store: Store, place: ResourcePath, kind: Kind, given: Body
) -> web.Response:
    old = store.read(kind, place.namespace, place.name)
    check_revision(kind, old, given)
    admit = admit_status if place.sub == "status" else admit_update
    new = admit(kind, old, given)
    if not is_dry_run(request):
        new = store.update(kind, new)
    return json_response(to_requested_version(place.kind, new))


def delete_object(store: Store, kind: Kind, body: Body, options: Deletion) -> Body:
    if options.orphan:
        for dependent, owned in store.dependents(uid_of(body)):
            store.update(dependent, bodies.without_owner(owned, uid_of(body)))
    return store.delete(kind, body, options)


async def delete_one(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    options = await read_deletion(request)
    body = store.read(place.kind, place.namespace, place.name)
    if not is_dry_run(request):
        body = delete_object(store, place.kind, body, options)
    if not place.kind.returns_deleted:
        body = success_status(place.kind, body)
    return json_response(body)


def success_status(kind: Kind, body: Body) -> Body:
    details = {"name": name_of(body), "group": kind.group, "kind": kind.plural, "uid": uid_of(body)}
    return {**SUCCESS_HEAD, "details": details}


async def delete_collection(
    request: web.Request, store: Store, place: ResourcePath
) -> web.Response:
    options = await read_deletion(request)
    selected = list_options(place.kind, request.query)
    chosen = list(matching_objects(store, place, selected))  # before anything is removed
    deleted = [delete_object(store, place.kind, stored.body, options) for stored in chosen]
    meta = {"resourceVersion": str(store.revision)}
    return json_response({**list_head(place.kind), "metadata": meta, "items": deleted})


LOOK_S = 0.1  # seconds between two reads of a log that is followed
TIME_OPTIONS = ("timestamps", "sinceSeconds", "sinceTime")
EVICTED = ("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")
SUCCESS_HEAD: Body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
SUCCESS: Body = {**SUCCESS_HEAD, "code": 201}


async def bind_pod(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    binding = await read_body(request, JSON)
    name = place.name or name_of(binding)
    node = str((binding.get("target") or {}).get("name") or "")
    pod = store.read(POD, place.namespace, name)
    if not node:
        raise bad_request("target.name: Required value")
    if node_of(pod):
        why = f"pod {name} is already assigned to node {node_of(pod)!r}"
        raise conflict("pods/binding", name, why)
    if not is_dry_run(request):
        store.update(POD, bound_pod(pod, node, store.now()))
    return json_response(SUCCESS, 201)


async def evict_pod(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    """Delete a pod. Disruption budgets are not checked. As in a real cluster, a condition of the
    pod gives the reason first.
    """
    eviction = await read_body(request, JSON, PROTOBUF)
    raw = eviction.get("deleteOptions") or {}
    preconditions = raw.get("preconditions") or {}
    options = Deletion(
        grace_s=raw.get("gracePeriodSeconds"),
        uid=preconditions.get("uid"),
        revision=preconditions.get("resourceVersion"),
    )
    pod = store.read(POD, place.namespace, place.name)
    if not is_dry_run(request):
        same_uid = not options.uid or options.uid == uid_of(pod)
        if same_uid and not options.revision and not has_ended(pod):
            store.update(POD, with_condition(pod, store.now(), *EVICTED))
        store.delete(POD, pod, options)
    return json_response(SUCCESS, 201)


async def resize_pod(request: web.Request, store: Store, place: ResourcePath) -> web.Response:
    old = store.read(POD, place.namespace, place.name)
    if request.method == "GET":
        return json_response(old)
    wanted = await read_body(request, JSON if request.method == "PUT" else request.content_type)
    old = store.read(POD, place.namespace, place.name)
    if request.method != "PUT":
        wanted = apply_patch(request, old, wanted)
    check_types(POD, wanted)
    if meta(wanted).get("resourceVersion") not in (None, "", meta(old)["resourceVersion"]):
        raise conflict("pods", place.name, "the object has been modified")
    raise_if_invalid(POD, old, resize_causes(old, wanted))
    new = with_next_generation(old, with_new_resources(old, wanted))
    if not is_dry_run(request):
        new = store.update(POD, new)
    return json_response(new)


def apply_patch(request: web.Request, old: Body, patch: object) -> Body:
    apply = PATCHES.get(request.content_type)
    if apply is None:
        raise bad_request(f"unknown kind of patch: {request.content_type}")
    body: Body = apply(old, patch)
    return body


async def finalize_namespace(
    request: web.Request, store: Store, place: ResourcePath
) -> web.Response:
    given = await read_body(request, JSON)
    old = store.read(NAMESPACE, "", place.name)
    new = with_spec(old, finalizers=spec(given).get("finalizers") or None)
    return json_response(store.update(NAMESPACE, new))


# ---- logs


async def send_log(
    request: web.Request, store: Store, place: ResourcePath, logs: Path
) -> web.StreamResponse:
    """Send the log of a container. Lines have no time, so options of time are refused."""
    if request.method != "GET":
        raise not_allowed(request.method)
    query = request.query
    pod = store.read(POD, place.namespace, place.name)
    container = chosen_container(pod, query.get("container", ""))
    for option in TIME_OPTIONS:
        if query.get(option) not in (None, "", "false"):
            raise bad_request(f"{option}: not supported, because log lines have no time")
    if not node_of(pod):
        raise bad_request(f'pod "{place.name}" does not have a host assigned')
    uid = str(meta(pod)["uid"])
    file = logs / f"{place.namespace}_{place.name}_{uid}" / f"{container}.log"
    if not file.exists():
        raise bad_request(
            f'container "{container}" in pod "{place.name}" is waiting to start: ContainerCreating'
        )
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    lines, limit = parse_number(query, "tailLines"), parse_number(query, "limitBytes")
    position = await send_tail(response, file, lines, limit)
    if parse_boolean(query.get("follow")):
        with suppress(ConnectionResetError):  # the client has gone
            await follow_log(response, store, place, file, position, uid)
    return response


def chosen_container(pod: Body, requested: str) -> str:
    """Return the requested container, or the only one. Raises a refusal (400)."""
    names = []
    for container in [*containers_of(pod), *init_containers_of(pod)]:
        names.append(str(container["name"]))
    if requested:
        if requested not in names:
            raise bad_request(f"container {requested} is not valid for pod {name_of(pod)}")
        return requested
    if len(containers_of(pod)) > 1:
        raise bad_request(
            f"a container name must be specified for pod {name_of(pod)}, choose one of:"
            f" [{' '.join(names)}]"
        )
    return names[0]


def tail_of(text: bytes, lines: int | None) -> bytes:
    """Return the last lines; all if `lines` is None."""
    if lines is None:
        return text
    if not lines:
        return b""
    return b"".join(text.splitlines(keepends=True)[-lines:])


async def send_tail(
    response: web.StreamResponse, file: Path, lines: int | None, limit: int | None
) -> int:
    """Send the last lines, at most `limit` bytes; return the position of the end of the file."""
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
    """Send the lines that are added, until the pod of this uid has ended."""
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
