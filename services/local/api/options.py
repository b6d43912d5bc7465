"""What a request says besides its path: the query, typed; the options of a deletion; the body."""

from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from services.local.api.protobuf import PROTOBUF, body_in
from services.local.objects.bodies import Body
from services.local.objects.kinds import Kind
from services.local.objects.refusals import bad_request, unsupported_media
from services.local.objects.selection import Match, both, field_selector, label_selector
from services.local.store import Deletion

JSON = "application/json"


class ListOptions(msgspec.Struct, frozen=True, kw_only=True):
    match: Match
    selects: bool = False  # whether there is a selector
    limit: int = 0
    go_on: str = ""
    revision: str = ""
    timeout_s: float | None = None
    bookmarks: bool = False
    initial_events: bool | None = None  # None: as the revision says


def truth(text: str | None) -> bool:
    return text in ("true", "1", "True")


def number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    if not text.isdigit():
        raise bad_request(f"{name}: {text!r} is no whole number")
    return int(text)


def list_options(kind: Kind, query: Mapping[str, str]) -> ListOptions:
    initial = query.get("sendInitialEvents")
    return ListOptions(
        match=both(
            label_selector(query.get("labelSelector", "")),
            field_selector(query.get("fieldSelector", ""), kind.fields),
        ),
        selects=bool(query.get("labelSelector") or query.get("fieldSelector")),
        limit=number(query, "limit") or 0,
        go_on=query.get("continue", ""),
        revision=query.get("resourceVersion", ""),
        timeout_s=number(query, "timeoutSeconds"),
        bookmarks=truth(query.get("allowWatchBookmarks")),
        initial_events=None if initial is None else truth(initial),
    )


async def body_of(request: web.Request, *media: str) -> Any:
    """The decoded body; a body of no stated type is JSON. Raises what a bad one deserves."""
    given = request.content_type if "Content-Type" in request.headers else JSON
    if given not in media:
        raise unsupported_media(given, ", ".join(media))
    if given == PROTOBUF:
        return body_in(await request.read())
    try:
        return msgspec.json.decode(await request.read())
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}") from error


async def deletion_of(request: web.Request) -> Deletion:
    """From the body and from the query; the query wins, as it does in a real one."""
    raw: Body = (
        await body_of(request, JSON, PROTOBUF)
        if request.can_read_body and await request.read()
        else {}
    )
    asked = number(request.query, "gracePeriodSeconds")
    policy = request.query.get("propagationPolicy") or raw.get("propagationPolicy")
    legacy = truth(request.query.get("orphanDependents")) or bool(raw.get("orphanDependents"))
    before = raw.get("preconditions") or {}
    return Deletion(
        grace_s=raw.get("gracePeriodSeconds") if asked is None else asked,
        uid=before.get("uid"),
        revision=before.get("resourceVersion"),
        orphan=legacy or policy == "Orphan",
        foreground=policy == "Foreground",
    )


def is_dry(request: web.Request) -> bool:
    return "All" in request.query.getall("dryRun", [])
