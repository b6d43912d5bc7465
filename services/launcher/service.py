"""The launcher's shell: remember each fact, ask the one pure question, perform the answer.

Every fact is dealt with in the same way, whatever it is: it is folded into the view and the
reconciler is woken. A burst of facts is answered once. Nothing is performed before all that was
said is read and all that exists is listed.
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

from services.launcher import facts, view
from services.launcher import snapshot as snapshot_module
from services.launcher.actions import Action, CreateAction, CreateSecret, Publish
from services.launcher.credentials import Minter, load_minter
from services.launcher.events import EventWriter, job_event
from services.launcher.facts import ObjectKind
from services.launcher.kube import Executor, watch_objects, watched_kinds
from services.launcher.metrics import LauncherMetrics
from services.launcher.reconcile import next_check_s, reconcile
from services.launcher.settings import Settings as Settings
from services.launcher.steps import task_reports
from shared.bounds import within_bounds
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.client import RETRY_S
from shared.bus.consumer import StoredMessage, StreamSetBack
from shared.bus.publisher import Stale
from shared.bus.snapshots import SnapshotStore
from shared.kube import limiter
from shared.kube.client import Api, connect_api
from shared.kube.watch import Deleted, Event, Listed
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
        self.sequences: dict[str, int] = {}  # by stream: the last message in the view
        self.stored_s: dict[str, float] = {}  # by stream: when that message was stored
        self.replaying = True  # until all that was said is read
        self.unlisted, self.all_listed = set(watched_kinds(settings)), asyncio.Event()
        self.dirty, self.wake = set[int](), asyncio.Event()
        self.backing_off = set[
            int
        ]()  # jobs whose last order was refused: they are looked at again `RETRY_S` later
        self.check_times: dict[int, float] = {}  # when time alone changes something, by job
        self.executor = Executor(api, settings, self.on_failure, self.on_secret_created, minter)
        self.last_orders: dict[
            str, int
        ] = {}  # by job: the last order for it, though it may not have come back yet
        self.saved_s, self.unsaved = clock(), False
        self.metrics, self.snapshots = LauncherMetrics(), SnapshotStore(bus, snapshot_module.KEY)
        self.events = EventWriter(api, settings, clock)

    # ------------------------------------------------------------ remember

    async def on_fact(self, heard: StoredMessage) -> None:
        if not self.replaying:
            self.events.add(
                job_event(cast(JobMessage, heard.message), self.view), self.view.services
            )
        self.apply(heard)
        if not self.replaying:
            self.metrics.count_fact(heard.message)

    def apply(self, heard: StoredMessage) -> None:
        message = cast(JobMessage, heard.message)
        if not self.ends_job_to_come(message, heard.sequence):
            self.fold_message(message, heard.stored_s)
        if heard.sequence > self.sequences.get(heard.stream, 0):
            self.sequences[heard.stream], self.stored_s[heard.stream] = (
                heard.sequence,
                heard.stored_s,
            )

    def ends_job_to_come(self, message: JobMessage, sequence: int) -> bool:
        """Return whether this announces the end of a job whose request is not stored yet.

        A uid is the sequence of a request in the stream in which ends are, too. A job that guesses
        the uid of the next job of its name would otherwise keep it from ever being started.
        """
        return (
            isinstance(message, JobFinished)
            and message.uid > sequence
            and message.uid not in self.view.bus_state.jobs
        )

    def fold_message(self, message: JobMessage, at_s: float) -> None:
        before, self.view = self.view, view.fold_message(self.view, message, at_s)
        if isinstance(message, ProgressReported) and self.view is before:
            return  # it trains, as we know
        self.unsaved = True
        self.mark_changed(message.uid)

    def on_event(self, kind: ObjectKind, namespace: str, event: Event[Any]) -> None:
        if isinstance(event, Listed):
            self.on_list(kind, namespace, event.facts)
        else:
            self.on_change(event.fact, isinstance(event, Deleted))

    def on_list(self, kind: ObjectKind, namespace: str, found: Iterable[Any]) -> None:
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

    def on_change(self, fact: Any, gone: bool) -> None:
        if isinstance(fact, facts.NodeFact):
            self.on_node(fact, gone)
        elif isinstance(fact, facts.ServiceFact):
            self.view = view.with_service(self.view, fact, gone)
            self.events.on_service(fact)
            self.mark_changed(fact.job_uid, *self.view.bus_state.jobs)
        elif isinstance(fact, facts.PolicyFact):
            self.view = view.with_policy(self.view, fact, gone)
            self.mark_changed(fact.job_uid)
        elif isinstance(fact, facts.PodFact):
            self.view = view.with_pod(self.view, facts.deleted_pod(fact) if gone else fact)
            self.mark_changed(fact.job_uid, *(self.jobs_named_like(fact) if gone else ()))

    def on_node(self, node: facts.NodeFact, gone: bool) -> None:
        """Nodes report themselves all the time; only their readiness matters, and whether their
        pods have to go.
        """
        known = self.view.nodes.get(node.name)
        if (
            gone
            or known is None
            or (known.ready, known.eviction_reason, known.eviction_taint)
            != (node.ready, node.eviction_reason, node.eviction_taint)
        ):
            self.view = view.with_node(self.view, node, gone, self.clock())
            self.mark_changed(*self.view.uids())

    def jobs_named_like(self, pod: facts.PodFact) -> list[int]:
        """The jobs that may have waited for a pod's name."""
        return [
            uid
            for uid, job in self.view.bus_state.jobs.items()
            if (job.namespace, job.job) == (pod.namespace, pod.job)
        ]

    def mark_changed(self, *uids: int) -> None:
        self.dirty.update(uids)
        self.wake.set()

    # ------------------------------------------------------------ ask, perform

    async def run(self) -> None:
        self.view = view.start_watching(self.view, self.clock())
        log.info(
            "Awake", jobs=len(self.view.bus_state.jobs), pods=sum(map(len, self.view.pods.values()))
        )
        while True:
            await self.reconcile_changed()
            await self.store_snapshot_if_due()
            await self.wait_for_change()

    async def reconcile_changed(self) -> None:
        """Once for all that has happened since the last time."""
        self.wake.clear()
        uids, self.dirty = self.dirty - self.backing_off, self.dirty & self.backing_off
        for action in reconcile(self.view, self.clock(), self.settings, uids):
            if isinstance(action, Publish):
                await self.publish(action.message)
            else:
                self.view = view.with_pending_action(self.view, action.key())
                self.bus.spawn(self.executor.perform(action))
        for uid in uids:
            self.view = task_reports.drop_reported_pods(self.view, uid)
            self.schedule_check(uid)

    def schedule_check(self, uid: int) -> None:
        due = next_check_s(self.view, self.clock(), self.settings, uid)
        if due is not None:
            self.check_times[uid] = due
        else:
            self.check_times.pop(uid, None)

    async def wait_for_change(self) -> None:
        """Sleep until something happens, or until time alone changes something."""
        saving = [self.saved_s + self.settings.snapshot_s] if self.unsaved else []
        dues = [at for uid, at in self.check_times.items() if uid not in self.backing_off]
        due = min([*dues, *saving], default=None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self.wake.wait(), None if due is None else max(0.0, due - self.clock())
            )
        self.mark_changed(*(uid for uid, at in self.check_times.items() if at <= self.clock()))

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
            message = within_bounds(
                message
            )  # as it is heard, or what was said would not be what is remembered
            await self.bus.publish(message)
            self.fold_message(message, self.clock())
            self.metrics.count_published(message)

    async def publish_order(self, message: JobMessage) -> None:
        """On top of all orders for the job that we know; if another has given one, we hear it and
        think again.

        We looked while we led, so a later leader's order is behind what we saw, and ours is
        refused.
        """
        if message.uid in self.backing_off:
            return  # what this order follows on was refused
        key, over = message.key(), subjects.area_pattern(message.key(), "cluster")
        last = max(
            await self.bus.last_sequence_matching(over), self.last_orders.get(key, 0)
        )  # a copy that lags has not even our own
        if not await self.has_read_order(last, key):
            return self.mark_changed(message.uid)
        try:
            self.last_orders[key] = await self.bus.publish(message, expect_last=last, over=over)
        except Stale:
            log.warning("OrderedOnAnOldView", job=key)
            self.last_orders.pop(key, None)  # the subject may hold less: it was purged
            return self.back_off(message.uid)
        self.fold_message(message, self.clock())
        self.metrics.count_published(message)

    def back_off(self, uid: int) -> None:
        """Leave a job alone for `RETRY_S`, then look again; other jobs do not wait for that.

        Any copy of the stream may have said what is there. While it lags, every order that goes by
        it is refused.
        """
        self.backing_off.add(uid)
        self.dirty.add(uid)
        asyncio.get_running_loop().call_later(RETRY_S, self.end_backoff, uid)

    def end_backoff(self, uid: int) -> None:
        self.backing_off.discard(uid)
        self.mark_changed(uid)

    async def has_read_order(self, sequence: int, key: str) -> bool:
        """Whether an order is ours or in the view; else wait for it. One that never comes cannot be
        read.
        """
        if sequence <= max(self.sequences.get(subjects.ORDERS, 0), self.last_orders.get(key, 0)):
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.echo_s):
                while sequence > self.sequences.get(subjects.ORDERS, 0):
                    await asyncio.sleep(POLL_S)
        self.last_orders[key] = sequence
        return False

    def on_failure(self, action: Action, refusal: str | None) -> None:
        """It may be ordered again; what cannot be made ends its generation."""
        if refusal is not None and isinstance(action, CreateAction):
            decision = action.decision
            self.view = view.with_refusal(self.view, decision.uid, decision.generation, refusal)
        self.view = view.without_pending_action(self.view, action.key())
        self.mark_changed(*self.view.uids())

    def on_secret_created(self, action: Action) -> None:
        if isinstance(action, CreateSecret):
            self.view = view.without_pending_action(
                view.with_credentials(self.view, action.owner_uid), action.key()
            )
            self.mark_changed(action.decision.uid)

    async def store_snapshot_if_due(self) -> None:
        if self.unsaved and self.clock() >= self.saved_s + self.settings.snapshot_s:
            self.saved_s, self.unsaved = self.clock(), False
            await self.snapshots.store(snapshot_module.encode_snapshot(self.snapshot()))

    def snapshot(self) -> snapshot_module.Snapshot:
        return snapshot_module.Snapshot(
            after=dict(self.sequences), stored_s=dict(self.stored_s), told=self.view.bus_state
        )

    def restore(self, known: snapshot_module.Snapshot) -> None:
        self.view = view.View(bus_state=known.told)
        self.sequences, self.stored_s = dict(known.after), dict(known.stored_s)

    async def read_log(self, known: snapshot_module.Snapshot) -> None:
        """Hear what a snapshot lacks; all, where a stream was set back and it is of messages that
        are no more.
        """
        self.restore(known)
        try:
            await self.bus.follow(
                (*CONSUMED, *PUBLISHED), self.on_fact, known.after, stored_s=known.stored_s
            )
        except StreamSetBack as error:
            log.warning("StartsFromTheLog", reason=str(error))
            self.restore(snapshot_module.Snapshot())
            await self.bus.follow((*CONSUMED, *PUBLISHED), self.on_fact, {})
        self.replaying = False


def complete_settings(settings: Settings) -> Settings:
    """With the text of what pods, which have not our files, need too."""
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
    launcher = Launcher(
        bus, api, settings, minter=load_minter(settings.signing_key, settings.credentials_s)
    )
    bus.health.require("the lists of what is there", launcher.all_listed.is_set)
    bus.health.add_source("kubernetes", lambda: limiter.request_measures(api.requests))
    bus.health.add_source("the snapshot", launcher.snapshots.measures)
    bus.health.add_source("launcher", lambda: launcher.metrics.measures(launcher.view))
    await launcher.read_log(await snapshot_module.load(bus))
    for kind, namespace in watched_kinds(settings):
        bus.spawn(watch_objects(api, kind, namespace, launcher.on_event))
    await launcher.all_listed.wait()
    bus.spawn(launcher.run())
    bus.spawn(launcher.events.run())
