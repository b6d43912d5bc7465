"""The events recorder, and the two versions of an event: core/v1 and events.k8s.io/v1.

Written by hand: the official client has models of events, but neither a recorder nor a conversion.
"""

from __future__ import annotations

import contextlib

from services.local.objects.api_errors import ApiError
from services.local.objects.bodies import Body, meta, name_of, namespace_of, without_none
from services.local.objects.kinds import EVENT, NEW_EVENT
from services.local.store import Store

NORMAL, WARNING = "Normal", "Warning"
SAME = (
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
    about = {
        "kind": body["kind"],
        "apiVersion": body["apiVersion"],
        "name": name_of(body),
        "namespace": namespace_of(body) or None,
        "uid": meta(body).get("uid"),
        "resourceVersion": meta(body).get("resourceVersion"),
    }
    return {
        "kind": EVENT.name,
        "apiVersion": EVENT.api_version,
        "metadata": {
            "name": f"{name_of(body)}.{uid.replace('-', '')[:16]}",
            "namespace": namespace_of(body) or "default",
            "uid": uid,
            "creationTimestamp": now,
        },
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
    """core/v1 -> events.k8s.io/v1"""
    old = {
        "regarding": event.get("involvedObject"),
        "note": event.get("message"),
        "reportingController": event.get("reportingComponent")
        or (event.get("source") or {}).get("component"),
        "deprecatedCount": event.get("count"),
        "deprecatedFirstTimestamp": event.get("firstTimestamp"),
        "deprecatedLastTimestamp": event.get("lastTimestamp"),
        "deprecatedSource": event.get("source"),
    }
    kept = {field: event.get(field) for field in SAME}
    return {
        "kind": NEW_EVENT.name,
        "apiVersion": NEW_EVENT.api_version,
        **without_none({**kept, **old}),
    }


def to_core_v1(event: Body) -> Body:
    """events.k8s.io/v1 -> core/v1"""
    controller = event.get("reportingController")
    new = {
        "involvedObject": event.get("regarding"),
        "message": event.get("note"),
        "reportingComponent": controller,
        "count": event.get("deprecatedCount", 1),
        "source": event.get("deprecatedSource") or {"component": controller},
        "firstTimestamp": event.get("deprecatedFirstTimestamp") or event.get("eventTime"),
        "lastTimestamp": event.get("deprecatedLastTimestamp") or event.get("eventTime"),
    }
    kept = {field: event.get(field) for field in SAME}
    return {"kind": EVENT.name, "apiVersion": EVENT.api_version, **without_none({**kept, **new})}


def record_event(
    store: Store, about: Body, component: str, kind: str, reason: str, message: str
) -> None:
    with contextlib.suppress(ApiError):
        store.create(
            EVENT, new_event(about, component, kind, reason, message, store.now(), store.uids())
        )
