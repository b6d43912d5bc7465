"""Performing what was decided, on a Kubernetes API server. Edge.

Promise: performing an action twice, or late, is harmless: what is there is left as it is, what is
gone is gone, and only the very pod that was meant (its uid is a precondition) is deleted.
`Refused`: it will not work this way, and why. `TryLater`: it may work soon; nothing, or everything,
may have been done.
"""

from __future__ import annotations

from typing import Any

import msgspec

from services.launcher import labels, pods, policies
from services.launcher.actions import (
    Action,
    CreatePod,
    CreatePolicy,
    CreateSecret,
    CreateService,
    DeletePod,
    DeleteService,
    ResizePod,
)
from services.launcher.paths import path
from services.launcher.settings import Settings
from services.launcher.shapes import ServiceObject
from shared.kube.client import READ_ERRORS, Api, ApiError

Body = dict[str, Any]
BAD_REQUEST = 400
FORBIDDEN = 403
NOT_FOUND = 404
CONFLICT = 409
TOO_LARGE = 413
INVALID = 422
HOPELESS = (BAD_REQUEST, FORBIDDEN, NOT_FOUND, 405, TOO_LARGE, 415, INVALID)


class Refused(Exception):
    """The cluster says no, and will say so again."""


class TryLater(Exception):
    """The cluster cannot be asked just now, or something is in the way that will go."""


async def perform(action: Action, api: Api, settings: Settings) -> None:
    try:
        await _PERFORM[type(action)](action, api, settings)
    except ApiError as error:
        raise (Refused if error.status in HOPELESS else TryLater)(str(error)) from error
    except READ_ERRORS as error:
        raise TryLater(repr(error)) from error


async def _create_service(action: CreateService, api: Api, settings: Settings) -> None:
    await _create(api, "services", pods.service(action.decision))


async def _create_policy(action: CreatePolicy, api: Api, settings: Settings) -> None:
    await _create(api, "networkpolicies", policies.manifest(action))


async def _create_secret(action: CreateSecret, api: Api, settings: Settings) -> None:
    """One that is there is this job's own: its name holds its owner's uid. So nobody has to be let
    read any.
    """
    await _posted(api, "secrets", pods.secret(action))


async def _create_pod(action: CreatePod, api: Api, settings: Settings) -> None:
    await _create(api, "pods", pods.pod(action, settings))


async def _create(api: Api, kind: str, body: Body) -> None:
    if not await _posted(api, kind, body):
        meta = body["metadata"]
        _must_be_ours(await _existing(api, meta["namespace"], kind, meta["name"]), body)


async def _posted(api: Api, kind: str, body: Body) -> bool:
    """False where there is one of this name already."""
    try:
        await api.call("POST", path(kind, body["metadata"]["namespace"]), body)
    except ApiError as error:
        if error.status != CONFLICT or error.reason != "AlreadyExists":
            raise
        return False
    return True


async def _existing(api: Api, namespace: str, kind: str, name: str) -> Body:
    try:
        return await api.call("GET", path(kind, namespace, name))
    except ApiError as error:
        raise (
            TryLater(f"{kind}/{name} was there and is gone") if error.status == NOT_FOUND else error
        ) from error


def _must_be_ours(found: Body, wanted: Body) -> None:
    meta, name = msgspec.convert(found, ServiceObject).metadata, wanted["metadata"]["name"]
    tags = meta.labels or {}
    if tags.get(labels.UID) == wanted["metadata"]["labels"][labels.UID]:
        return
    if tags.get(labels.MANAGED_BY) == labels.OURS or meta.deletion_timestamp is not None:
        raise TryLater(f"{name} still belongs to an earlier job")
    raise Refused(f"the name {name} is taken by something that is not Weir's")


async def _delete_pod(action: DeletePod, api: Api, settings: Settings) -> None:
    await _delete(api, path("pods", action.namespace, action.name), action.uid, action.grace_s)


async def _delete_service(action: DeleteService, api: Api, settings: Settings) -> None:
    await _delete(api, path("services", action.namespace, action.name), action.uid)


async def _delete(api: Api, where: str, uid: str, grace_s: int | None = None) -> None:
    options: Body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
    grace = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
    try:
        await api.call("DELETE", where, {**options, "propagationPolicy": "Background", **grace})
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise


async def _resize(action: ResizePod, api: Api, settings: Settings) -> None:
    where = path("pods", action.namespace, action.name) + "/resize"
    await api.call(
        "PATCH", where, pods.resize(action.task.resources, action.cpu_limits), patch=True
    )


_PERFORM: dict[type[Action], Any] = {
    CreateService: _create_service,
    CreatePolicy: _create_policy,
    CreateSecret: _create_secret,
    CreatePod: _create_pod,
    DeletePod: _delete_pod,
    DeleteService: _delete_service,
    ResizePod: _resize,
}
