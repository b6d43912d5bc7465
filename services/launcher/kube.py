"""The launcher's side of the Kubernetes API: watches, and the execution of actions.

Promise: an action that is performed twice, or late, does no harm. An existing object is left as it
is, a missing one counts as deleted, and only the pod with the uid of the action is deleted (a
precondition). `Refused`: the action can never work. `RetryLater`: it may work soon; it may have
been performed in part.

A failed action is not retried here. After a delay it is reported as failed, and the reconciler
orders it again if it is still wanted. The delay grows with each failure in a row.

`Minter` makes the credentials of a job's trainers. They are for the subjects of this job and its
program only, and have an end. They do not depend on the place of the program's contents, so they
stay valid if the same program is stored again. They are not renewed. The environment of a pod does
not change after its start, and the program could read a file that is renewed. So they last longer
than any job (`credentials_s`). Their end limits a leak in time; it is no fence.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
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
from services.launcher.facts import ObjectKind, ServiceObject
from services.launcher.settings import Settings
from services.launcher.steps import pod_actions
from shared.auth import authority, permissions
from shared.auth.authority import Signer
from shared.bus import programs
from shared.kube import objects
from shared.kube.client import READ_ERRORS, Api, ApiError, Event, ListWatch
from shared.kube.objects import SELECTOR
from shared.messages import AllocationDecided

log = structlog.get_logger()

OnFailure = Callable[[Action, str | None], None]
OnSecretCreated = Callable[[CreateSecret], None]


class Executor:
    """Performs actions.

    `on_failure(action, refusal)` is called when an action has failed and may be ordered again;
    `refusal` is the reason if the action can never work, else None. `on_secret_created` is called
    when a secret has been created, because secrets are not watched.
    """

    def __init__(
        self,
        api: Api,
        settings: Settings,
        on_failure: OnFailure,
        on_secret_created: OnSecretCreated,
        minter: Minter | None = None,
    ) -> None:
        self.api = api
        self.settings = settings
        self.on_failure = on_failure
        self.on_secret_created = on_secret_created
        self.minter = minter
        self.failures: dict[str, int] = {}  # in a row, by key of the action
        self.slots = asyncio.Semaphore(settings.kube_parallel)

    async def perform(self, action: Action) -> None:
        log.info(type(action).__name__, action=action.key())
        try:
            async with self.slots:
                await perform(self._with_credentials(action), self.api, self.settings)
            self.failures.pop(action.key(), None)
            if isinstance(action, CreateSecret):
                self.on_secret_created(action)
        except Refused as error:
            await self.handle_refusal(action, str(error))
        except RetryLater as error:
            await self.retry_later(action, str(error))

    def _with_credentials(self, action: Action) -> Action:
        """Return the action with new credentials if it creates a secret; they are stored nowhere
        else.
        """
        if isinstance(action, CreateSecret) and self.minter:
            return self.minter.fill_secret(action)
        return action

    async def handle_refusal(self, action: Action, reason: str) -> None:
        """Report a refused creation at once, drop a refused resize, and retry a deletion."""
        log.warning("Refused", action=action.key(), error=reason)
        if isinstance(action, CreateAction):
            self.on_failure(action, reason)
        elif not isinstance(action, ResizePod):
            await self.retry_later(action, reason)

    async def retry_later(self, action: Action, reason: str) -> None:
        count = self.failures.get(action.key(), 0) + 1
        self.failures[action.key()] = count
        wait_s = self.api.backoff_s(count)
        log.warning("TryingAgain", action=action.key(), in_s=wait_s, error=reason)
        await asyncio.sleep(wait_s)
        self.on_failure(action, None)


Body = dict[str, Any]
BAD_REQUEST = 400
FORBIDDEN = 403
NOT_FOUND = 404
CONFLICT = 409
TOO_LARGE = 413
INVALID = 422
PERMANENT = (BAD_REQUEST, FORBIDDEN, NOT_FOUND, 405, TOO_LARGE, 415, INVALID)


class Refused(Exception):
    """The cluster refuses the action, and will refuse it again."""


class RetryLater(Exception):
    """The cluster does not answer, or an obstacle will go away."""


async def perform(action: Action, api: Api, settings: Settings) -> None:
    try:
        await _PERFORM[type(action)](action, api, settings)
    except ApiError as error:
        if error.status in PERMANENT:
            raise Refused(str(error)) from error
        raise RetryLater(str(error)) from error
    except READ_ERRORS as error:
        raise RetryLater(repr(error)) from error


async def _create_service(action: CreateService, api: Api, settings: Settings) -> None:
    await _create(api, "services", pods.service_manifest(action.decision))


async def _create_policy(action: CreatePolicy, api: Api, settings: Settings) -> None:
    await _create(api, "networkpolicies", pod_actions.policy_manifest(action))


async def _create_secret(action: CreateSecret, api: Api, settings: Settings) -> None:
    """Create the secret of a job's trainers.

    An existing secret is the job's own, because its name has the uid of its owner. So the launcher
    needs no permission to read secrets.
    """
    await _create_object(api, "secrets", pods.secret_manifest(action))


async def _create_pod(action: CreatePod, api: Api, settings: Settings) -> None:
    await _create(api, "pods", pods.pod_manifest(action, settings))


async def _create(api: Api, kind: str, body: Body) -> None:
    if not await _create_object(api, kind, body):
        meta = body["metadata"]
        existing = await _read_object(api, meta["namespace"], kind, meta["name"])
        _require_own(existing, body)


async def _create_object(api: Api, kind: str, body: Body) -> bool:
    """Return False if an object of this name exists already."""
    try:
        await api.call("POST", object_path(kind, body["metadata"]["namespace"]), body)
    except ApiError as error:
        if error.status != CONFLICT or error.reason != "AlreadyExists":
            raise
        return False
    return True


async def _read_object(api: Api, namespace: str, kind: str, name: str) -> Body:
    try:
        return await api.call("GET", object_path(kind, namespace, name))
    except ApiError as error:
        if error.status == NOT_FOUND:
            raise RetryLater(f"{kind}/{name} was deleted meanwhile") from error
        raise


def _require_own(found: Body, wanted: Body) -> None:
    """Raise an error if an existing object is not the wanted one of this job."""
    meta = msgspec.convert(found, ServiceObject).metadata
    name = wanted["metadata"]["name"]
    tags = meta.labels or {}
    if tags.get(objects.UID_LABEL) == wanted["metadata"]["labels"][objects.UID_LABEL]:
        return
    if tags.get(objects.MANAGED_BY) == objects.OURS or meta.deletion_timestamp is not None:
        raise RetryLater(f"{name} still belongs to an earlier job")
    raise Refused(f"the name {name} is taken by an object that is not Weir's")


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
    """Return the path of one object, or of all in a namespace, or of all."""
    path = GROUPS.get(kind, CORE)
    if namespace:
        path += f"/namespaces/{namespace}"
    path += f"/{kind}"
    return f"{path}/{name}" if name else path


KINDS: tuple[ObjectKind, ...] = ("nodes", "services", "networkpolicies", "pods")
READERS: dict[ObjectKind, Callable[[bytes], Any]] = {
    "nodes": facts.node_fact,
    "services": facts.service_fact,
    "networkpolicies": facts.policy_fact,
    "pods": facts.pod_fact,
}
OnEvent = Callable[[ObjectKind, str, Event[Any]], None]
"""The kind, the watched namespace (empty: all), and the event."""


def watched_kinds(settings: Settings) -> list[tuple[ObjectKind, str]]:
    """Return each watched kind with each watched namespace; empty: all namespaces."""
    watched: list[tuple[ObjectKind, str]] = []
    for kind in KINDS:
        if kind == "nodes":
            watched.append((kind, ""))
        elif kind != "networkpolicies" or settings.network_policies:
            watched += [(kind, namespace) for namespace in settings.job_namespaces or ("",)]
    return watched


async def watch_objects(api: Api, kind: ObjectKind, namespace: str, on_event: OnEvent) -> None:
    """Pass on every event of a kind, for ever."""
    query = {} if kind == "nodes" else {"labelSelector": SELECTOR}
    watch = ListWatch(api, object_path(kind, namespace), READERS[kind], query)
    async for event in watch.follow():
        on_event(kind, namespace, event)


class BadKey(ValueError):
    """The file with the launcher's key cannot be used."""


class Minter:
    def __init__(self, signer: Signer, lasts_s: float) -> None:
        self.signer = signer
        self.lasts_s = lasts_s

    def fill_secret(self, action: CreateSecret) -> CreateSecret:
        """Return the action with a new credential in it."""
        return msgspec.structs.replace(action, text=self._mint_credentials(action.decision))

    def _mint_credentials(self, decision: AllocationDecided) -> str:
        request = decision.request
        meta = programs.meta_token(request.program.digest)
        seed = os.urandom(authority.SEED_BYTES)
        return authority.job_credentials(
            self.signer,
            decision.namespace,
            decision.job,
            meta,
            seed,
            time.time(),
            self.lasts_s,
            permissions.reader_blocks(1 + request.ps.max + request.workers.max),
        )


def load_minter(key_file: str, lasts_s: float) -> Minter | None:
    """Return the minter; None without a key file: the bus requires no credentials.

    Raises `BadKey`.
    """
    if not key_file:
        return None
    try:
        return Minter(msgspec.json.decode(Path(key_file).read_bytes(), type=Signer), lasts_s)
    except (OSError, msgspec.DecodeError) as error:
        raise BadKey(f"cannot use the key in {key_file}: {error}") from error
