"""The events recorder, and the two versions of an event: core/v1 and events.k8s.io/v1.

Written by hand: the official client has models of events, but neither a recorder nor a conversion.
"""

from __future__ import annotations

import contextlib

from services.local.objects.bodies import ApiError, Body, meta, name_of, namespace_of, without_none
from services.local.objects.kinds import EVENT, NEW_EVENT
from services.local.store import Store

NORMAL, WARNING = "Normal", "Warning"
SHARED_FIELDS = (
    "metadata",
    "reason",
    "type",
    "action",
    "related",
    "series",
    "reportingInstance",
    "eventTime",
)


def new_event(
    body: Body, component: str, kind: str, reason: str, message: str, now: str, uid: str
) -> Body:
    namespace = namespace_of(body)
    about = {
        "kind": body["kind"],
        "apiVersion": body["apiVersion"],
        "name": name_of(body),
        "namespace": namespace or None,
        "uid": meta(body).get("uid"),
        "resourceVersion": meta(body).get("resourceVersion"),
    }
    metadata = {
        "name": f"{name_of(body)}.{uid.replace('-', '')[:16]}",
        "namespace": namespace or "default",
        "uid": uid,
        "creationTimestamp": now,
    }
    return {
        "kind": EVENT.name,
        "apiVersion": EVENT.api_version,
        "metadata": metadata,
        "involvedObject": without_none(about),
        "reason": reason,
        "message": message,
        "type": kind,
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": "",
        "eventTime": None,
    }


def to_events_v1(event: Body) -> Body:
    """Convert core/v1 to events.k8s.io/v1."""
    source = event.get("source")
    new = _shared_fields(event)
    new["regarding"] = event.get("involvedObject")
    new["note"] = event.get("message")
    new["reportingController"] = event.get("reportingComponent") or (source or {}).get("component")
    new["deprecatedCount"] = event.get("count")
    new["deprecatedFirstTimestamp"] = event.get("firstTimestamp")
    new["deprecatedLastTimestamp"] = event.get("lastTimestamp")
    new["deprecatedSource"] = source
    return {"kind": NEW_EVENT.name, "apiVersion": NEW_EVENT.api_version, **without_none(new)}


def to_core_v1(event: Body) -> Body:
    """Convert events.k8s.io/v1 to core/v1."""
    controller = event.get("reportingController")
    time = event.get("eventTime")
    new = _shared_fields(event)
    new["involvedObject"] = event.get("regarding")
    new["message"] = event.get("note")
    new["reportingComponent"] = controller
    new["count"] = event.get("deprecatedCount", 1)
    new["source"] = event.get("deprecatedSource") or {"component": controller}
    new["firstTimestamp"] = event.get("deprecatedFirstTimestamp") or time
    new["lastTimestamp"] = event.get("deprecatedLastTimestamp") or time
    return {"kind": EVENT.name, "apiVersion": EVENT.api_version, **without_none(new)}


def _shared_fields(event: Body) -> Body:
    return {field: event.get(field) for field in SHARED_FIELDS}


def record_event(
    store: Store, about: Body, component: str, kind: str, reason: str, message: str
) -> None:
    """Store an event. An event that cannot be stored is dropped."""
    event = new_event(about, component, kind, reason, message, store.now(), store.uids())
    with contextlib.suppress(ApiError):
        store.create(EVENT, event)
