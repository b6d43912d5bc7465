"""The launcher's side of the Kubernetes API: watches, and the execution of actions.

Promise: an action that is performed twice, or late, does no harm. An existing object is left as it
is, a missing one counts as deleted, and only the pod that was meant is deleted (its uid is a
precondition). `Refused`: the action cannot work, and why. `TryLater`: it may work soon; nothing or
everything may have been done.

A failed action is not retried here. After a delay it is handed back, and the reconciler orders it
again if it is still wanted. The delay grows with each failure in a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from services.launcher import facts, pods
from services.launcher.actions import (
    Action,
    CreateAction,
    CreatePod,
    CreatePolicy,
    CreateSecret,
    CreateService,
    DeletePod,
    DeleteService,
    ResizePod,
)
from services.launcher.credentials import Minter
from services.launcher.facts import ObjectKind, ServiceObject
from services.launcher.settings import Settings
from services.launcher.steps import pod_actions
from shared.kube import labels
from shared.kube.client import READ_ERRORS, Api, ApiError
from shared.kube.labels import SELECTOR
from shared.kube.watch import Event, ListWatch

log = structlog.get_logger()

OnOutcome = Callable[[Action, str | None], None]
OnMade = Callable[[Action], None]


class Executor:
    """`on_outcome(action, refusal)`: it was not done, and may be ordered again; `refusal` says why
    it never will be. `on_made(action)`: it is done, and no watch will show it.
    """

    def __init__(
        self,
        api: Api,
        settings: Settings,
        on_outcome: OnOutcome,
        on_made: OnMade,
        minter: Minter | None = None,
    ) -> None:
        self.api = api
        self.settings = settings
        self.on_failure = on_outcome
        self.on_secret_created = on_made
        self.minter = minter
        self.failures: dict[str, int] = {}  # in a row, by action
        self.slots = asyncio.Semaphore(settings.kube_parallel)

    async def perform(self, action: Action) -> None:
        log.info(type(action).__name__, action=action.key())
        try:
            async with self.slots:
                await perform(self._whole(action), self.api, self.settings)
            self.failures.pop(action.key(), None)
            if isinstance(action, CreateSecret):
                self.on_secret_created(action)
        except Refused as error:
            await self.handle_refusal(action, str(error))
        except RetryLater as error:
            await self.retry_later(action, str(error))

    def _whole(self, action: Action) -> Action:
        """With the secret in it that it is about, which is nowhere else."""
        return (
            self.minter.fill_secret(action)
            if isinstance(action, CreateSecret) and self.minter
            else action
        )

    async def handle_refusal(self, action: Action, why: str) -> None:
        """What cannot be made is handed back at once; a resize that cannot be is left; a deletion
        is tried again.
        """
        log.warning("Refused", action=action.key(), error=why)
        if isinstance(action, CreateAction):
            self.on_failure(action, why)
        elif not isinstance(action, ResizePod):
            await self.retry_later(action, why)

    async def retry_later(self, action: Action, why: str) -> None:
        count = self.failures[action.key()] = self.failures.get(action.key(), 0) + 1
        wait_s = self.api.backoff_s(count)
        log.warning("TryingAgain", action=action.key(), in_s=wait_s, error=why)
        await asyncio.sleep(wait_s)
        self.on_failure(action, None)


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


class RetryLater(Exception):
    """The cluster cannot be asked just now, or something is in the way that will go."""


async def perform(action: Action, api: Api, settings: Settings) -> None:
    try:
        await _PERFORM[type(action)](action, api, settings)
    except ApiError as error:
        raise (Refused if error.status in HOPELESS else RetryLater)(str(error)) from error
    except READ_ERRORS as error:
        raise RetryLater(repr(error)) from error


async def _create_service(action: CreateService, api: Api, settings: Settings) -> None:
    await _create(api, "services", pods.service_manifest(action.decision))


async def _create_policy(action: CreatePolicy, api: Api, settings: Settings) -> None:
    await _create(api, "networkpolicies", pod_actions.policy_manifest(action))


async def _create_secret(action: CreateSecret, api: Api, settings: Settings) -> None:
    """One that is there is this job's own: its name holds its owner's uid. So nobody has to be let
    read any.
    """
    await _create_object(api, "secrets", pods.secret_manifest(action))


async def _create_pod(action: CreatePod, api: Api, settings: Settings) -> None:
    await _create(api, "pods", pods.pod_manifest(action, settings))


async def _create(api: Api, kind: str, body: Body) -> None:
    if not await _create_object(api, kind, body):
        meta = body["metadata"]
        _must_be_ours(await _existing(api, meta["namespace"], kind, meta["name"]), body)


async def _create_object(api: Api, kind: str, body: Body) -> bool:
    """False where there is one of this name already."""
    try:
        await api.call("POST", object_path(kind, body["metadata"]["namespace"]), body)
    except ApiError as error:
        if error.status != CONFLICT or error.reason != "AlreadyExists":
            raise
        return False
    return True


async def _existing(api: Api, namespace: str, kind: str, name: str) -> Body:
    try:
        return await api.call("GET", object_path(kind, namespace, name))
    except ApiError as error:
        raise (
            RetryLater(f"{kind}/{name} was there and is gone")
            if error.status == NOT_FOUND
            else error
        ) from error


def _must_be_ours(found: Body, wanted: Body) -> None:
    meta, name = msgspec.convert(found, ServiceObject).metadata, wanted["metadata"]["name"]
    tags = meta.labels or {}
    if tags.get(labels.UID) == wanted["metadata"]["labels"][labels.UID]:
        return
    if tags.get(labels.MANAGED_BY) == labels.OURS or meta.deletion_timestamp is not None:
        raise RetryLater(f"{name} still belongs to an earlier job")
    raise Refused(f"the name {name} is taken by something that is not Weir's")


async def _delete_pod(action: DeletePod, api: Api, settings: Settings) -> None:
    await _delete(
        api, object_path("pods", action.namespace, action.name), action.uid, action.grace_s
    )


async def _delete_service(action: DeleteService, api: Api, settings: Settings) -> None:
    await _delete(api, object_path("services", action.namespace, action.name), action.uid)


async def _delete(api: Api, where: str, uid: str, grace_s: int | None = None) -> None:
    options: Body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
    grace = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
    try:
        await api.call("DELETE", where, {**options, "propagationPolicy": "Background", **grace})
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise


async def _resize(action: ResizePod, api: Api, settings: Settings) -> None:
    where = object_path("pods", action.namespace, action.name) + "/resize"
    await api.call(
        "PATCH", where, pods.resize_patch(action.task.resources, action.cpu_limits), patch=True
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

GROUPS = {"networkpolicies": "/apis/networking.k8s.io/v1"}
CORE = "/api/v1"


def object_path(kind: str, namespace: str = "", name: str = "") -> str:
    """All of a kind; in one namespace, where one is given; or one object."""
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"{GROUPS.get(kind, CORE)}{inside}/{kind}" + (f"/{name}" if name else "")


KINDS: tuple[ObjectKind, ...] = ("nodes", "services", "networkpolicies", "pods")
READERS: dict[ObjectKind, Callable[[bytes], Any]] = {
    "nodes": facts.node_fact,
    "services": facts.service_fact,
    "networkpolicies": facts.policy_fact,
    "pods": facts.pod_fact,
}
OnEvent = Callable[[ObjectKind, str, Event[Any]], None]
"""Kind, the namespace that was looked at (empty: all), and what was seen there."""


def watched_kinds(settings: Settings) -> list[tuple[ObjectKind, str]]:
    """Each kind with each namespace in which it is looked at; empty: in all of them."""
    inside = settings.job_namespaces or ("",)
    kinds = [kind for kind in KINDS if kind != "networkpolicies" or settings.network_policies]
    return [
        (kind, namespace) for kind in kinds for namespace in (("",) if kind == "nodes" else inside)
    ]


async def watch_objects(api: Api, kind: ObjectKind, namespace: str, on_event: OnEvent) -> None:
    """Tell everything of a kind, for ever."""
    query = {} if kind == "nodes" else {"labelSelector": SELECTOR}
    async for event in ListWatch(api, object_path(kind, namespace), READERS[kind], query).follow():
        on_event(kind, namespace, event)
