"""get and list. A list is joined from bytes that are there already; no object is encoded twice."""

import base64
import binascii
from collections.abc import Iterator
from itertools import islice

import msgspec
from aiohttp import web

from services.local.api.forms import form_of, many, one
from services.local.api.options import JSON, ListOptions, list_options
from services.local.api.paths import Place
from services.local.happenings import as_new
from services.local.journal import Stored, encode
from services.local.objects.bodies import Body, name_of, namespace_of
from services.local.objects.kinds import NEW_EVENT, Kind
from services.local.objects.refusals import bad_request, expired
from services.local.store import BEFORE_ALL, Key, Store


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Where a paged list goes on. Its revision is the first page's: a watch from there misses
    nothing.
    """

    revision: int
    after: Key


def answer(body: Body, code: int = 200) -> web.Response:
    return web.Response(body=encode(body), status=code, content_type=JSON)


def outward(kind: Kind, body: Body) -> Body:
    return as_new(body) if kind is NEW_EVENT else body


def get_one(request: web.Request, store: Store, place: Place) -> web.Response:
    body = outward(place.kind, store.read(place.kind, place.namespace, place.name))
    return answer(one(form_of(request.headers.get("Accept", "")), place.kind, body, store.clock()))


def matching(
    store: Store, place: Place, options: ListOptions, after: Key = BEFORE_ALL
) -> Iterator[Stored]:
    """What a list shows, in order, from behind a key."""
    for stored in store.stored_after(place.kind, place.namespace, after):
        seen = Stored(as_new(stored.body), stored.revision) if place.kind is NEW_EVENT else stored
        if options.match(seen.body) and place.name in ("", name_of(seen.body)):
            yield seen


def get_list(request: web.Request, store: Store, place: Place) -> web.Response:
    options = list_options(place.kind, request.query)
    page = read_token(options.go_on, store.journal(place.kind).floor) if options.go_on else None
    found = matching(store, place, options, page.after if page else BEFORE_ALL)
    chosen = list(islice(found, options.limit or None))
    revision = page.revision if page else store.revision
    meta: Body = {"resourceVersion": str(revision)}
    if options.limit and next(found, None):
        last = key_of(chosen[-1])
        meta["continue"] = write_token(Page(revision=revision, after=last))
        if not options.selects:  # as in the real server, which would have to look at all of them
            meta["remainingItemCount"] = store.count_after(place.kind, place.namespace, last)
    if form := form_of(request.headers.get("Accept", "")):
        return answer(many(form, place.kind, [s.body for s in chosen], store.clock(), meta))
    return joined(place.kind, meta, chosen)


def joined(kind: Kind, meta: Body, items: list[Stored]) -> web.Response:
    head = encode({"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": meta})
    body = head[:-1] + b',"items":[' + b",".join(s.encoded for s in items) + b"]}"
    return web.Response(body=body, content_type=JSON)


def key_of(stored: Stored) -> Key:
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
        raise expired(page.revision, floor)
    return page
