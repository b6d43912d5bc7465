"""create, replace, patch, delete. Each is one step: nothing waits between reading and writing."""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from services.local import garbage
from services.local.api.decoding import decoded
from services.local.api.options import JSON, body_of, deletion_of, is_dry, list_options
from services.local.api.paths import Place
from services.local.api.protobuf import PROTOBUF
from services.local.api.reading import answer, matching, outward
from services.local.happenings import as_core
from services.local.objects import patches
from services.local.objects.admission import admit_new, admit_status, admit_update
from services.local.objects.bodies import Body, meta, name_of, namespace_of, uid_of
from services.local.objects.kinds import EVENT, NAMESPACE, NEW_EVENT, Kind
from services.local.objects.refusals import bad_request, conflict, not_found
from services.local.store import STALE, Deletion, Store

JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    JSON_PATCH: patches.json_patch,
    MERGE: patches.merge_patch,
    STRATEGIC: patches.strategic_merge,
}
Admit = Callable[[Kind, Body, Body], Body]  # kind, old, new -> what is stored


def inward(request: web.Request, kind: Kind, body: Body) -> tuple[Kind, Body]:
    """As it may be stored, by its types; both forms of events are stored in the first one."""
    decoded(kind, body, strict=request.query.get("fieldValidation") == "Strict")
    return (EVENT, as_core(body)) if kind is NEW_EVENT and isinstance(body, dict) else (kind, body)


async def create(request: web.Request, store: Store, place: Place) -> web.Response:
    media = (JSON, PROTOBUF) if place.kind is NAMESPACE else (JSON,)
    kind, given = inward(request, place.kind, await body_of(request, *media))
    if kind.namespaced and store.find(NAMESPACE, "", place.namespace) is None:
        raise not_found("namespaces", place.namespace)
    body = admit_new(kind, place.namespace, given, store.now(), store.uids(), store.revision)
    stored = body if is_dry(request) else store.create(kind, body)
    return answer(outward(place.kind, stored), 201)


def admit_for(place: Place) -> Admit:
    return admit_status if place.sub == "status" else admit_update


async def replace(request: web.Request, store: Store, place: Place) -> web.Response:
    kind, given = inward(request, place.kind, await body_of(request, JSON))
    return settle(request, store, place, kind, given)


async def patch(request: web.Request, store: Store, place: Place) -> web.Response:
    change = await body_of(request, *PATCHES)
    if isinstance(change, list) != (request.content_type == JSON_PATCH):
        raise bad_request("a JSON patch is a list of operations, any other patch is an object")
    kind, old = place.kind, store.read(place.kind, place.namespace, place.name)
    changed = PATCHES[request.content_type](outward(kind, old), change)
    kind, new = inward(request, kind, changed)
    return settle(request, store, place, kind, new)


def settle(
    request: web.Request, store: Store, place: Place, kind: Kind, given: Body
) -> web.Response:
    old = store.read(kind, place.namespace, place.name)
    if meta(given).get("resourceVersion") not in (None, "", meta(old)["resourceVersion"]):
        raise conflict(kind.plural, place.name, STALE)
    new = admit_for(place)(kind, old, given)
    stored = new if is_dry(request) else store.update(kind, new)
    return answer(outward(place.kind, stored))


def remove(store: Store, kind: Kind, body: Body, how: Deletion) -> Body:
    if how.orphan:
        for dependent, owned in store.dependents(uid_of(body)):
            store.update(dependent, garbage.orphaned(owned, uid_of(body)))
    return store.delete(kind, namespace_of(body), name_of(body), how)


async def delete(request: web.Request, store: Store, place: Place) -> web.Response:
    how = await deletion_of(request)
    body = store.read(place.kind, place.namespace, place.name)
    gone = body if is_dry(request) else remove(store, place.kind, body, how)
    return answer(gone if place.kind.returns_deleted else done(place.kind, gone))


def done(kind: Kind, body: Body) -> Body:
    details = {"name": name_of(body), "group": kind.group, "kind": kind.plural, "uid": uid_of(body)}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }


async def delete_collection(request: web.Request, store: Store, place: Place) -> web.Response:
    how = await deletion_of(request)
    options = list_options(place.kind, request.query)
    chosen = list(matching(store, place, options))  # before anything is removed
    gone = [remove(store, place.kind, stored.body, how) for stored in chosen]
    listed = {"kind": f"{place.kind.name}List", "apiVersion": place.kind.api_version}
    return answer({**listed, "metadata": {"resourceVersion": str(store.revision)}, "items": gone})
