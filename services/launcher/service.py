"""The service: fold each fact into the view, reconcile the changed jobs, and perform the actions.

Each fact is folded into the view and marks its job as changed. One loop reconciles the changed
jobs, so a burst of facts is answered once. Nothing is performed before the log has been read and
all objects of the cluster have been listed.

`Snapshot` is what the launcher has read from the bus. It is stored, so that a restart reads only
the rest of the log, even if old facts are gone. Promise: a loaded snapshot has the content of the
messages up to `after`, and no others. If it cannot be read, or if a stream was made anew and ends
before it, it counts as absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import msgspec
import structlog

from services.launcher import view
from services.launcher.actions import Action, CreateAction, CreateSecret, Publish
from services.launcher.events import EventWriter, job_event
from services.launcher.facts import NodeFact, ObjectKind, PodFact, PolicyFact, ServiceFact
from services.launcher.kube import Executor, Minter, load_minter, watch_objects, watched_kinds
from services.launcher.metrics import LauncherMetrics
from services.launcher.reconcile import next_check_s, reconcile
from services.launcher.settings import Settings as Settings
from services.launcher.steps.task_reports import drop_reported_pods
from services.launcher.view import BusState
from shared.bounds import within_bounds
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.client import RETRY_S
from shared.bus.consumer import StoredMessage, StreamSetBack
from shared.bus.publisher import Stale
from shared.bus.snapshots import NoSnapshot, SnapshotAhead, SnapshotStore, encode_state, load_state
from shared.kube import client
from shared.kube.client import Api, Deleted, Event, Listed, connect_api
from shared.messages import (
    AllocationDecided,
    CheckpointFailed,
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    GenerationPrepared,
    HandOverOrdered,
    JobFinished,
    JobMessage,
    Message,
    ProgressReported,
    TaskExited,
    TaskLeaving,
    TaskReady,
    TaskStarted,
    TaskUpdated,
    TrainingResumed,
)

log = structlog.get_logger()

KEY = "launcher"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`after`: by stream, the sequence of the last message in `told`; `stored_s`: by stream, when
    the server stored that message.
    """

    after: dict[str, int] = {}
    stored_s: dict[str, float] = {}
    told: BusState = BusState()


async def load_snapshot(bus: Bus) -> Snapshot:
    """Return the stored snapshot; an empty one if there is none that can be used."""
    try:
        return await load_state(bus, KEY, Snapshot, lambda stored: stored.after)
    except SnapshotAhead:
        return Snapshot()
    except NoSnapshot as absent:
        log.info("NoSnapshot", error=str(absent))
        return Snapshot()


async def store_snapshot(bus: Bus, snapshot: Snapshot) -> None:
    """Store the snapshot once."""
    await SnapshotStore(bus, KEY).store(encode_state(snapshot))


POLL_S = 0.02

ORDERS: tuple[type[Message], ...] = (ClusterSpecPublished, HandOverOrdered, GenerationAbandoned)
PUBLISHED: tuple[type[Message], ...] = (
    *ORDERS,
    TaskStarted,
    TaskLeaving,
    TaskExited,
    TaskUpdated,
)
CONSUMED: tuple[type[Message], ...] = (
    AllocationDecided,
    JobFinished,
    TaskReady,
    GenerationPrepared,
    CheckpointSaved,
    CheckpointFailed,
    TrainingResumed,
    ProgressReported,
)


class Launcher:
    def __init__(
        self,
        bus: Bus,
        api: Api,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        minter: Minter | None = None,
    ) -> None:
        self.bus = bus
        self.settings = settings
        self.clock = clock
        self.view = view.View()
        # By stream: the last message that is in the view, and when the server stored it.
        self.sequences: dict[str, int] = {}
        self.stored_s: dict[str, float] = {}
        # True until the stored log has been read.
        self.replaying = True
        self.unlisted = set(watched_kinds(settings))
        self.all_listed = asyncio.Event()
        # Jobs to reconcile, and those of them that wait for `RETRY_S` after a refused order.
        self.dirty = set[int]()
        self.backing_off = set[int]()
        self.wake = asyncio.Event()
        # By job: when its actions change without a new event.
        self.check_times: dict[int, float] = {}
        # By job: the sequence of its last order, which may not have been read back yet.
        self.last_orders: dict[str, int] = {}
        self.executor = Executor(api, settings, self.on_failure, self.on_secret_created, minter)
        self.saved_s = clock()
        self.unsaved = False
        self.metrics = LauncherMetrics()
        self.snapshots = SnapshotStore(bus, KEY)
        self.events = EventWriter(api, settings, clock)

    # ------------------------------------------------------------ facts of the bus

    async def on_fact(self, stored: StoredMessage) -> None:
        message = cast(JobMessage, stored.message)
        if not self.replaying:
            self.events.add(job_event(message, self.view), self.view.services)
        self.apply(stored)
        if not self.replaying:
            self.metrics.count_fact(message)

    def apply(self, stored: StoredMessage) -> None:
        message = cast(JobMessage, stored.message)
        if not self.ends_unknown_job(message, stored.sequence):
            self.fold_message(message, stored.stored_s)
        if stored.sequence > self.sequences.get(stored.stream, 0):
            self.sequences[stored.stream] = stored.sequence
            self.stored_s[stored.stream] = stored.stored_s

    def ends_unknown_job(self, message: JobMessage, sequence: int) -> bool:
        """Return True for the end of a job whose request is not stored yet.

        A uid is the sequence of the request, in the stream that also has the ends. Without this
        check a job could guess the uid of the next job of its name, and keep it from starting.
        """
        return (
            isinstance(message, JobFinished)
            and message.uid > sequence
            and message.uid not in self.view.bus_state.jobs
        )

    def fold_message(self, message: JobMessage, at_s: float) -> None:
        before = self.view
        self.view = view.fold_message(before, message, at_s)
        if isinstance(message, ProgressReported) and self.view is before:
            return  # the job is known to train
        self.unsaved = True
        self.mark_changed(message.uid)

    # ------------------------------------------------------------ facts of Kubernetes

    def on_event(self, kind: ObjectKind, namespace: str, event: Event[Any]) -> None:
        if isinstance(event, Listed):
            self.on_list(kind, namespace, event.facts)
        else:
            self.on_change(event.fact, isinstance(event, Deleted))

    def on_list(self, kind: ObjectKind, namespace: str, found: Iterable[Any]) -> None:
        """Fold the complete list of a kind (`namespace`: in this one only, unless empty)."""
        if kind == "nodes":
            self.view = view.with_node_list(self.view, found, self.clock())
        elif kind == "services":
            self.view = view.with_service_list(self.view, found, namespace)
            for service in self.view.services.values():
                self.events.on_service(service)
        elif kind == "networkpolicies":
            self.view = view.with_policy_list(self.view, found, namespace)
        else:
            self.view = view.with_pod_list(self.view, found, namespace)
        self.unlisted.discard((kind, namespace))
        if not self.unlisted:
            self.all_listed.set()
        self.mark_changed(*self.view.uids())

    def on_change(self, fact: Any, deleted: bool) -> None:
        if isinstance(fact, NodeFact):
            self.on_node(fact, deleted)
        elif isinstance(fact, ServiceFact):
            self.on_service(fact, deleted)
        elif isinstance(fact, PolicyFact):
            self.view = view.with_policy(self.view, fact, deleted)
            self.mark_changed(fact.job_uid)
        elif isinstance(fact, PodFact):
            self.on_pod(fact, deleted)

    def on_node(self, node: NodeFact, deleted: bool) -> None:
        """Fold a node that was deleted, or whose readiness or eviction has changed."""
        known = self.view.nodes.get(node.name)
        if known is not None and not deleted and known.has_same_state(node):
            return
        self.view = view.with_node(self.view, node, deleted, self.clock())
        self.mark_changed(*self.view.uids())

    def on_service(self, service: ServiceFact, deleted: bool) -> None:
        self.view = view.with_service(self.view, service, deleted)
        self.events.on_service(service)
        self.mark_changed(service.job_uid, *self.view.bus_state.jobs)

    def on_pod(self, pod: PodFact, deleted: bool) -> None:
        self.view = view.with_pod(self.view, pod.as_deleted() if deleted else pod)
        self.mark_changed(pod.job_uid)
        if deleted:
            self.mark_changed(*self.jobs_named_like(pod))

    def jobs_named_like(self, pod: PodFact) -> list[int]:
        """Return the jobs that may wait for the name of a pod."""
        name = (pod.namespace, pod.job)
        jobs = self.view.bus_state.jobs
        return [uid for uid, job in jobs.items() if (job.namespace, job.job) == name]

    def mark_changed(self, *uids: int) -> None:
        self.dirty.update(uids)
        self.wake.set()

    # ------------------------------------------------------------ outcomes of actions

    def on_failure(self, action: Action, refusal: str | None) -> None:
        """Let an action be ordered again. `refusal`: the reason if it can never work; then it ends
        its generation.
        """
        if refusal is not None and isinstance(action, CreateAction):
            decision = action.decision
            self.view = view.with_refusal(self.view, decision.uid, decision.generation, refusal)
        self.view = view.without_pending_action(self.view, action.key())
        self.mark_changed(*self.view.uids())

    def on_secret_created(self, action: CreateSecret) -> None:
        self.view = view.with_credentials(self.view, action.owner_uid)
        self.view = view.without_pending_action(self.view, action.key())
        self.mark_changed(action.decision.uid)

    # ------------------------------------------------------------ reconcile

    async def run(self) -> None:
        self.view = view.start_watching(self.view, self.clock())
        log.info(
            "Awake",
            jobs=len(self.view.bus_state.jobs),
            pods=sum(map(len, self.view.pods.values())),
        )
        while True:
            await self.reconcile_changed()
            await self.store_snapshot_if_due()
            await self.wait_for_change()

    async def reconcile_changed(self) -> None:
        """Reconcile the jobs that have changed since the last call, and start their actions."""
        self.wake.clear()
        uids = self.dirty - self.backing_off
        self.dirty &= self.backing_off
        for action in reconcile(self.view, self.clock(), self.settings, uids):
            if isinstance(action, Publish):
                await self.publish(action.message)
            else:
                self.view = view.with_pending_action(self.view, action.key())
                self.bus.spawn(self.executor.perform(action))
        for uid in uids:
            self.view = drop_reported_pods(self.view, uid)
            self.schedule_check(uid)

    def schedule_check(self, uid: int) -> None:
        time_s = next_check_s(self.view, self.clock(), self.settings, uid)
        if time_s is not None:
            self.check_times[uid] = time_s
        else:
            self.check_times.pop(uid, None)

    async def wait_for_change(self) -> None:
        """Wait for a change, or until a job has to be checked or the snapshot is due."""
        times = [at for uid, at in self.check_times.items() if uid not in self.backing_off]
        if self.unsaved:
            times.append(self.saved_s + self.settings.snapshot_s)
        timeout_s = max(0.0, min(times) - self.clock()) if times else None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wake.wait(), timeout_s)
        now = self.clock()
        self.mark_changed(*(uid for uid, at in self.check_times.items() if at <= now))

    # ------------------------------------------------------------ publish

    async def publish(self, message: JobMessage) -> None:
        log.info(
            type(message).__name__,
            job=message.key(),
            generation=message.generation,
            id=message.id(),
        )
        if type(message) in ORDERS:
            await self.publish_order(message)
        else:
            # A reader applies the same bounds, so the view has what the log has.
            message = within_bounds(message)
            await self.bus.publish(message)
            self.fold_message(message, self.clock())
            self.metrics.count_published(message)

    async def publish_order(self, message: JobMessage) -> None:
        """Publish an order on top of the last order for its job, if that one is in the view;
        otherwise reconcile the job again, after the last order has been read.

        The view was made while this process led. So an order of a later leader comes after the
        orders that were seen, and this one is refused.
        """
        if message.uid in self.backing_off:
            return  # an order that this one follows was refused
        key = message.key()
        area = subjects.area_pattern(key, "cluster")
        # A copy of the stream that lags may lack even this process's own last order.
        last = max(await self.bus.last_sequence_matching(area), self.last_orders.get(key, 0))
        if not await self.has_read_order(last, key):
            self.mark_changed(message.uid)
            return
        try:
            self.last_orders[key] = await self.bus.publish(message, expect_last=last, over=area)
        except Stale:
            log.warning("OrderedOnAnOldView", job=key)
            self.last_orders.pop(key, None)  # after a purge the subject may have less
            self.back_off(message.uid)
            return
        self.fold_message(message, self.clock())
        self.metrics.count_published(message)

    async def has_read_order(self, sequence: int, key: str) -> bool:
        """Return True if an order is in the view already. If not, wait for it for `echo_s`; an
        order that has not come by then cannot be read, and counts as read from then on.
        """
        if sequence <= max(self.sequences.get(subjects.ORDERS, 0), self.last_orders.get(key, 0)):
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.echo_s):
                while sequence > self.sequences.get(subjects.ORDERS, 0):
                    await asyncio.sleep(POLL_S)
        self.last_orders[key] = sequence
        return False

    def back_off(self, uid: int) -> None:
        """Leave a job alone for `RETRY_S`, then reconcile it again; other jobs do not wait.

        Any copy of the stream may have answered for the last order. While that copy lags, every
        order that relies on it is refused.
        """
        self.backing_off.add(uid)
        self.dirty.add(uid)
        asyncio.get_running_loop().call_later(RETRY_S, self.end_backoff, uid)

    def end_backoff(self, uid: int) -> None:
        self.backing_off.discard(uid)
        self.mark_changed(uid)

    # ------------------------------------------------------------ snapshot and log

    async def store_snapshot_if_due(self) -> None:
        if self.unsaved and self.clock() >= self.saved_s + self.settings.snapshot_s:
            self.saved_s = self.clock()
            self.unsaved = False
            await self.snapshots.store(encode_state(self.snapshot()))

    def snapshot(self) -> Snapshot:
        return Snapshot(
            after=dict(self.sequences), stored_s=dict(self.stored_s), told=self.view.bus_state
        )

    def restore(self, snapshot: Snapshot) -> None:
        self.view = view.View(bus_state=snapshot.told)
        self.sequences = dict(snapshot.after)
        self.stored_s = dict(snapshot.stored_s)

    async def read_log(self, snapshot: Snapshot) -> None:
        """Restore a snapshot, read the rest of the log, and subscribe. If a stream was set back to
        before the snapshot, read the whole log.
        """
        self.restore(snapshot)
        kinds = (*CONSUMED, *PUBLISHED)
        try:
            await self.bus.follow(kinds, self.on_fact, snapshot.after, stored_s=snapshot.stored_s)
        except StreamSetBack as error:
            log.warning("StartsFromTheLog", reason=str(error))
            self.restore(Snapshot())
            await self.bus.follow(kinds, self.on_fact, {})
        self.replaying = False


def complete_settings(settings: Settings) -> Settings:
    """Return the settings with the text of the certificates, because pods lack the file."""
    if settings.trainer_nats_ca or not settings.nats_ca:
        return settings
    return msgspec.structs.replace(settings, trainer_nats_ca=Path(settings.nats_ca).read_text())


async def start(bus: Bus, settings: Settings) -> None:
    settings = complete_settings(settings)
    api = await connect_api(settings, "weir-launcher", random.random)
    bus.on_close(api.close)
    api.report_to(bus.incidents)
    api.may_change = bus.must_lead
    bus.spawn(api.log_requests())
    minter = load_minter(settings.signing_key, settings.credentials_s)
    launcher = Launcher(bus, api, settings, minter=minter)
    bus.health.require("the lists of pods, services and nodes", launcher.all_listed.is_set)
    bus.health.add_source("kubernetes", lambda: client.request_measures(api.requests))
    bus.health.add_source("the snapshot", launcher.snapshots.measures)
    bus.health.add_source("launcher", lambda: launcher.metrics.measures(launcher.view))
    await launcher.read_log(await load_snapshot(bus))
    for kind, namespace in watched_kinds(settings):
        bus.spawn(watch_objects(api, kind, namespace, launcher.on_event))
    await launcher.all_listed.wait()
    bus.spawn(launcher.run())
    bus.spawn(launcher.events.run())
