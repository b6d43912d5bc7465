"""The service: fold each message into the state, decide, and publish the decisions.

Every message is folded and starts a pass; so does the timer of the last pass. After publishing a
decision, the service waits until it has read it back. So no decision is taken on a state that lacks
the last one. While the log is replayed nothing is published.

The garbage collector of Python runs seldom, so that it hardly ever interrupts a decision. Reference
counting frees nearly all objects of the allocator: its state never changes, so it has no cycles;
only errors and tasks of the event loop make some. By default the collector runs after every 700 new
containers. A decision about hundreds of jobs makes forty times as many, and none is in a cycle.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Annotated

import msgspec
import structlog
from msgspec import Meta
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from services.allocator import snapshot
from services.allocator.admission import requests as admission_requests
from services.allocator.admission.pod_policy_file import with_pod_policy
from services.allocator.admission.removal import Removal
from services.allocator.admission.requests import ProgramFault, answer_change, unanswered_changes
from services.allocator.admission.validation import InvalidRequest, answer_name, check_request
from services.allocator.custom_policies import register_policies
from services.allocator.decide import Decisions, decide, prepare_tables
from services.allocator.failures import Failure
from services.allocator.metrics import PASS, Meters
from services.allocator.settings import Rules
from services.allocator.snapshot import ViewBucket, wait_for_change
from services.allocator.state.state import (
    CONSUMED,
    EVIDENCE,
    State,
    add_refusal,
    apply,
    forget_messages,
    with_last_fact,
)
from shared.bus import programs, subjects
from shared.bus.bus import Bus
from shared.bus.client import RETRY_S
from shared.bus.consumer import StoredMessage, StreamSetBack
from shared.bus.dead_letters import DeadLetterCount, namespace_of
from shared.bus.log_reader import LastNodeFacts, read_last_node_facts
from shared.bus.publisher import Stale
from shared.bus.snapshots import SnapshotStore
from shared.messages import (
    AllocationDecided,
    CapacityFact,
    Change,
    ChangeRejected,
    ForgetRequested,
    JobAccepted,
    JobChanged,
    JobFinished,
    JobRejected,
    JobRequested,
    Message,
)
from shared.runtime.app import BAD_SETTINGS, ServiceExit
from shared.runtime.config import BadSettings
from shared.runtime.log import RateLimitedWarning, bind_message

log = structlog.get_logger()

FAILURE_LOG_INTERVAL_S = 600.0
"""Seconds between two log lines about one job that is set aside for the same error."""
FAILURE_WARNINGS_KEPT = 1_000
NEW_CONTAINERS_PER_COLLECTION = 100_000
"""About ten megabytes."""

DECISIVE_FIELDS = (
    "asked",
    "changes",
    "jobs",
    "closed",
    "nodes",
    "quotas",
    "claims",
    "last_decision_seq",
)
"""The fields of the state that decisions depend on."""

Refusal = JobRejected | ChangeRejected
Request = JobRequested | Change | Refusal
"""A message that is answered: a refusal stands for an unreadable one."""
Answer = JobAccepted | JobRejected | JobChanged | ChangeRejected
ANSWERED_AT_ONCE = 8
"""Requests of one namespace that are answered before the next decision. Unreadable requests have a
count of their own.
"""


def collect_garbage_seldom() -> None:
    """Change the threshold of Python's garbage collector in this process."""
    gc.set_threshold(NEW_CONTAINERS_PER_COLLECTION, *gc.get_threshold()[1:])


def first_numbers_by_namespace(namespaces: Mapping[int, str], most: int) -> list[int]:
    """Return the `most` lowest numbers of each namespace, in ascending order."""
    found: list[int] = []
    counts: Counter[str] = Counter()
    for number in sorted(namespaces):
        namespace = namespaces[number]
        if counts[namespace] < most:
            counts[namespace] += 1
            found.append(number)
    return found


def changes_no_decision(before: State, after: State) -> bool:
    """Return True if a message changed nothing that a decision depends on: its job is not known, or
    it is a repetition.
    """
    return all(getattr(before, name) is getattr(after, name) for name in DECISIVE_FIELDS)


class Settings(Rules, frozen=True, kw_only=True):
    """The rules, and the timers of the service."""

    view_s: float = 0.5
    """Seconds. Shortest time between two updates of the jobs' view."""
    unreported_s: Annotated[float, Meta(ge=0)] = 10.0
    """Seconds. A job that trains and reports nothing for so long is shown as silent, because its
    program may hang; 0: never.
    """
    snapshot_s: float = 10.0
    """Seconds. Shortest time between two snapshots of the state."""
    finished_kept_s: Annotated[float, Meta(ge=0)] = 7 * 86_400.0
    """Seconds after its end after which a job is removed from the bus; 0: never."""
    removal_s: Annotated[float, Meta(gt=0)] = 3_600.0
    """Seconds between two passes of removal."""
    echo_s: float = 5.0
    """Seconds. Longest wait for a published message to be read back."""


class Allocator:
    """The state, the decisions of the last pass, and the tasks that act on them."""

    def __init__(self, bus: Bus, rules: Settings, state: State) -> None:
        self.bus = bus
        self.rules = rules
        self.state = state
        self.decisions = Decisions()
        self.expected: dict[str, int] = {}
        # Subjects with a refused message: nothing is published on them for `RETRY_S`.
        self.resting = set[str]()
        # Jobs with a refused decision and a lower last sequence than that of the state.
        self.maybe_purged = set[str]()
        # By sequence of an unreadable request: the namespace that it came from.
        self.refused_in: dict[int, str] = {}
        self.replaying = True
        self.node_facts = LastNodeFacts()
        self.forget_asked = asyncio.Event()
        self.awake = asyncio.Event()
        self.folded = asyncio.Condition()
        self.changed = asyncio.Event()
        self.unsaved = asyncio.Event()
        self.meters = Meters()
        self.snapshots = SnapshotStore(bus, snapshot.KEY)
        self.failure_warnings: dict[tuple[str, str], RateLimitedWarning] = {}
        # When the first fact since the last pass was stored, by the server's clock.
        self.first_fact_s: float | None = None

    # ------------------------------------------------------------ facts

    def begin_from(self, state: State, node_facts: Sequence[StoredMessage]) -> None:
        """Begin with this state, before the rest of the log is read. `node_facts`: the last fact of
        each node and quota, for those that the log no longer has.
        """
        self.state = state
        last_fact = state.sequences.get(subjects.FACTS, 0)
        self.node_facts = LastNodeFacts(node_facts, last_fact)

    async def on_fact(self, stored: StoredMessage) -> None:
        """Fold a message, and start a pass if decisions depend on the change."""
        before = self.state
        message = stored.message
        if self.replaying:
            self.node_facts.note_fact(message)
        self._fold(stored)
        if isinstance(message, ForgetRequested):
            self.forget_asked.set()

        unchanged = isinstance(message, EVIDENCE) and self.state.jobs is before.jobs
        if self.replaying or unchanged:
            return

        self.meters.count_fact(message, before, stored.stored_s)
        if changes_no_decision(before, self.state):
            await self._notify_folded()
            return
        if self.first_fact_s is None:
            self.first_fact_s = stored.stored_s
        await self._start_pass()

    async def on_unreadable(self, subject: str, body: bytes, sequence: int, error: str) -> bool:
        """Answer a request that cannot be read, because a person waits for the answer. Return False
        if it is no request.
        """
        refusal = self._refusal(subject, body, sequence, error)
        if refusal is None:
            return False
        self.state = add_refusal(self.state, refusal)
        self.refused_in[sequence] = namespace_of(subject)
        if not self.replaying:
            await self._start_pass()
        return True

    def _refusal(self, subject: str, body: bytes, sequence: int, error: str) -> Refusal | None:
        """Return the answer to an unreadable message; None: it is neither a request nor a
        change.
        """
        requests = subjects.pattern(JobRequested, "")
        if not f"{subject}.".startswith(requests):
            return admission_requests.refusal_of_change(subject, sequence, error)
        found = check_request(body, self.rules)
        reasons = found.reasons if isinstance(found, InvalidRequest) else (error,)
        job, namespace = answer_name(subject, body)
        return admission_requests.rejection_of(InvalidRequest(job, namespace, reasons), sequence)

    async def begin_deciding(self) -> None:
        """End the replay: add the nodes and quotas that the log no longer has, and start the first
        pass.
        """
        self.replaying = False
        for fact in self.node_facts.take_missing():
            if isinstance(fact.message, CapacityFact):
                self.state = with_last_fact(self.state, fact.message, fact.stored_s)
        # A request to forget a job may be older than the snapshot.
        self.forget_asked.set()
        await self._start_pass()

    def _fold(self, stored: StoredMessage) -> None:
        """Fold a message into the state. The namespace of an unreadable request is kept until the
        request's rejection is read back.
        """
        self.state = apply(
            self.state, stored.message, stored.stream, stored.sequence, stored.stored_s
        )
        if isinstance(stored.message, JobRejected | ChangeRejected):
            self.refused_in.pop(stored.message.uid, None)

    async def _start_pass(self) -> None:
        self.awake.set()
        self.changed.set()
        await self._notify_folded()

    async def _notify_folded(self) -> None:
        self.unsaved.set()
        async with self.folded:
            self.folded.notify_all()

    # ------------------------------------------------------------ passes

    async def run_passes(self) -> None:
        """Answer requests, decide, publish the decisions, and wait for the next message or timer.
        Each decision is read back before the next pass, so none is taken on an old state.
        """
        while True:
            self.awake.clear()
            await self._answer_requests()
            await self._answer_changes()
            since_s = self.first_fact_s
            self.first_fact_s = None
            self.decisions = self._decide()
            self.changed.set()
            for action in self.decisions.actions:
                await self._publish_decision(action, since_s)
            await self._sleep(self.decisions.wake_s)

    def _decide(self) -> Decisions:
        """Take one pass over the state, and report the failures in it."""
        started_s = time.monotonic()
        last = self.decisions
        self.state = prepare_tables(self.state, self.rules)
        now = time.time()
        decisions = decide(
            self.state, now, self.rules, last.pending_changes, last.failures, last.untried
        )
        self.meters.deciding.observe(time.monotonic() - started_s)
        for failure in decisions.failures:
            self._report_failure(failure)
        return decisions

    def _report_failure(self, failure: Failure) -> None:
        """Count a failure. Log it with its traceback once, and again every `FAILURE_LOG_INTERVAL_S`
        or if the error is another.
        """
        self.meters.failures.count(failure.policy or PASS)
        warning = self.failure_warnings.setdefault(
            (failure.job, failure.error), RateLimitedWarning(FAILURE_LOG_INTERVAL_S)
        )
        warning.warn(
            "JobSetAside",
            job=failure.job,
            policy=failure.policy,
            error=failure.error,
            traceback=failure.traceback,
        )
        while len(self.failure_warnings) > FAILURE_WARNINGS_KEPT:
            oldest = next(iter(self.failure_warnings))
            del self.failure_warnings[oldest]

    async def _sleep(self, until_s: float | None) -> None:
        """Wait until something changes, at most until this time (s); None: no limit. While a
        subject is not published to after a refusal, a timer waits for at least `RETRY_S`.
        """
        timeout_s = None
        if until_s is not None:
            shortest_s = RETRY_S if self.resting else 0.0
            timeout_s = max(shortest_s, until_s - time.time())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.awake.wait(), timeout_s)

    # ------------------------------------------------------------ answers to requests

    async def _answer_requests(self) -> None:
        """Answer the oldest requests of each namespace. Only a few at a time, so that the jobs of
        others are decided in between.
        """
        refusals_of_name: dict[str, list[Refusal]] = {}
        for uid in self._next_numbers(self.state.unreadable_requests):
            refusal = self.state.unreadable_requests[uid]
            refusals_of_name.setdefault(refusal.key(), []).append(refusal)
        requests = {}  # one of each name
        for uid, open_request in admission_requests.oldest_requests(self.state).items():
            requests[uid] = open_request.request

        answering: list[Coroutine[None, None, None]] = []
        for refusals in refusals_of_name.values():
            answering.append(self._answer_in_turn(refusals))
        for uid in self._next_numbers(requests):
            answering.append(self._answer_request(uid))
        await asyncio.gather(*answering)

    async def _answer_changes(self) -> None:
        """Answer the oldest change of each job, of a few jobs of each namespace at a time."""
        answering = []
        for sequence in self._next_numbers(unanswered_changes(self.state)):
            answer = answer_change(self.state, sequence, self.rules)
            answering.append(self._answer(answer))
        await asyncio.gather(*answering)

    def _next_numbers(self, messages: Mapping[int, Request]) -> list[int]:
        """Return the numbers of the messages that are answered next: the first few of each
        namespace. If there are more, the next pass begins soon.
        """
        namespaces = {}
        for number, message in messages.items():
            if self._may_answer(message.key()):
                namespaces[number] = self.refused_in.get(number, message.namespace)
        numbers = first_numbers_by_namespace(namespaces, ANSWERED_AT_ONCE)
        if len(numbers) < len(namespaces):
            self.awake.set()
        return numbers

    async def _answer_in_turn(self, answers: Sequence[Refusal]) -> None:
        """Publish answers on one subject, each on top of the last, until one is refused."""
        for answer in answers:
            if self._may_answer(answer.key()):
                await self._answer(answer)

    def _may_answer(self, key: str) -> bool:
        return subjects.area_pattern(key, "job") not in self.resting

    async def _answer_request(self, uid: int) -> None:
        """Accept or reject a request. Publish nothing if it was answered while its stored program
        was read.
        """
        open_request = self.state.asked.get(uid)
        if open_request is None:
            return
        program = await self._stored_program(open_request.request)
        if uid in self.state.asked:
            answer = admission_requests.answer_request(
                self.state, uid, program, time.time(), self.rules
            )
            await self._answer(answer)

    async def _answer(self, answer: Answer) -> None:
        """Publish an answer as the next message about its name. If another message comes first, the
        request is answered again later.

        The last sequence is read while this process leads. So if a later leader has answered since,
        this answer is refused.
        """
        pattern = subjects.area_pattern(answer.key(), "job")
        last = await self.bus.last_sequence_matching(pattern)
        try:
            sequence = await self.bus.publish(answer, expect_last=last, over=pattern)
        except Stale:
            log.info("AnswersAgain", job=answer.key(), uid=answer.uid)
            self._pause_publishing(pattern)  # the state keeps the request until its answer is read
            return
        await self._await_fold(sequence)

    async def _stored_program(self, request: JobRequested) -> int | ProgramFault:
        """Return the size of the stored program in bytes, or the fault that makes it unusable.

        Only the description is read here. The job's own pods fetch the program and check it.
        """
        digest = request.program.digest
        try:
            info = await programs.read_description(self.bus, request.namespace, digest)
        except (NotFoundError, msgspec.DecodeError):
            return ProgramFault.MISSING
        except programs.NotProvisioned:
            return ProgramFault.NO_BUCKET
        if not info.describes(digest):
            return ProgramFault.OTHER
        return info.size

    # ------------------------------------------------------------ publishing

    async def _publish_decision(
        self, action: AllocationDecided | JobFinished, since_s: float | None
    ) -> None:
        """Publish a decision or a job's end as the next message after the last one that was folded,
        and wait until it is read back. If there is another last message, catch up with it and try
        again after `RETRY_S`.
        """
        decided = subjects.pattern(AllocationDecided, action.key())
        if decided in self.resting:
            return
        with bind_message(action):
            last = self._expected_sequence(action)
            try:
                sequence = await self.bus.publish(action, expect_last=last, over=decided)
            except Stale:
                log.warning("DecidedOnAnOldState")
                await self._catch_up(action)
                self._pause_publishing(decided)
                return
            self._note_published(action, since_s)
            await self._await_fold(sequence)

    def _expected_sequence(self, action: Message) -> int:
        """Return the sequence of the job's last decision that was folded. The bus refuses an action
        if it has another last one.
        """
        key = action.key()
        folded = self.state.last_decision_seq.get(key, 0)
        return self.expected.pop(key, folded)

    def _note_published(
        self, action: AllocationDecided | JobFinished, since_s: float | None
    ) -> None:
        """Log and count an action that the bus has stored."""
        key = action.key()
        self.maybe_purged.discard(key)
        log.info(type(action).__name__, why=self.decisions.why.get(key, ""))
        waited_s = None
        if since_s is not None:
            waited_s = max(0.0, time.time() - since_s)
        self.meters.count_decision(action, self.state, self.rules.policy, waited_s)

    async def _catch_up(self, action: Message) -> None:
        """Expect the last sequence that the subject has from now on. It is higher than that of the
        state if a message is not read yet or unreadable, and lower if messages were purged.

        A replica of the stream that lags returns a lower one, too. So a lower one is used only if
        the next decision is refused as well.
        """
        key = action.key()
        known = self.state.last_decision_seq.get(key, 0)
        last = await self.bus.last_sequence(AllocationDecided, key)
        if last < known and key not in self.maybe_purged:
            self.maybe_purged.add(key)
            return
        self.expected[key] = last
        if last > known:
            await self._await_fold(last)

    def _pause_publishing(self, filtered: str) -> None:
        """Publish nothing on these subjects for `RETRY_S`, then start a pass. Other jobs do not
        wait for that.

        The last sequence may have come from a replica of the stream that lags. Until it has caught
        up, every message that expects this sequence is refused.
        """
        self.resting.add(filtered)
        asyncio.get_running_loop().call_later(RETRY_S, self._end_rest, filtered)

    def _end_rest(self, filtered: str) -> None:
        self.resting.discard(filtered)
        self.awake.set()

    async def _await_fold(self, sequence: int) -> None:
        """Wait until the order with this sequence is folded, at most `echo_s`."""
        async with self.folded:
            until_folded = self.folded.wait_for(lambda: self._has_folded(sequence))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(until_folded, self.rules.echo_s)

    def _has_folded(self, sequence: int) -> bool:
        return self.state.sequences.get(subjects.ORDERS, 0) >= sequence

    # ------------------------------------------------------------ snapshots, views, removal

    async def store_snapshots(self) -> None:
        """Store a snapshot of the state after it has changed, at most one in `snapshot_s`."""
        while True:
            await self.unsaved.wait()
            self.unsaved.clear()
            if self.state.tables is not None:
                self.state = prepare_tables(self.state, self.rules)
            await self.snapshots.store(snapshot.encode_snapshot(self.state))
            await asyncio.sleep(self.rules.snapshot_s)

    async def update_views(self, views: ViewBucket) -> None:
        """Keep the views of jobs up to date, at most one update in `view_s`. After an error of the
        bus they are written again.
        """
        warning = RateLimitedWarning()
        unreported_s = self.rules.unreported_s
        while True:
            await wait_for_change(self.changed, self.state.jobs.values(), unreported_s)
            self.changed.clear()
            try:
                await views.show(self.state, self.decisions.why, unreported_s)
            except NatsError as error:
                warning.warn_error("ViewWaits", error)
                self.changed.set()
            await asyncio.sleep(self.rules.view_s)

    def forget_removed(self, key: str) -> None:
        """Note that the bus has no more messages of a name."""
        self.state = forget_messages(self.state, key)

    def new_removal(self) -> Removal:
        return Removal(
            self.bus, self.rules.finished_kept_s, lambda: self.state, self.forget_removed
        )


def load_policies(settings: Settings) -> Settings:
    """Register the custom policies of the settings, and return the settings with the owner's policy
    for pods. Raises `ServiceExit` if a policy cannot be imported, or the file cannot be used. A
    policy that fails later only delays changes of its own jobs.
    """
    try:
        register_policies((settings.policy, *settings.policies))
        return with_pod_policy(settings)
    except BadSettings as bad:
        log.error("BadSettings", why=str(bad))
        raise ServiceExit(BAD_SETTINGS) from bad


async def follow(bus: Bus, allocator: Allocator) -> None:
    """Subscribe to all messages after those in the state. If a stream was set back, the state has
    messages that no longer exist: then begin without a state, and read the whole log.
    """
    follow_from = partial(
        bus.follow, CONSUMED, allocator.on_fact, unusable=allocator.on_unreadable, strays=True
    )
    node_facts = await read_last_node_facts(bus)
    known = allocator.state
    allocator.begin_from(known, node_facts)
    try:
        await follow_from(known.sequences, stored_s=known.stored_s)
    except StreamSetBack as error:
        log.warning("StartsFromTheLog", reason=str(error))
        allocator.begin_from(State(), node_facts)
        await follow_from({})


async def start(bus: Bus, settings: Settings) -> None:
    """Load the snapshot, read the rest of the log, then begin to decide. Returns when the loops of
    the allocator run in the background.
    """
    settings = load_policies(settings)
    state = await snapshot.load_snapshot_for_leader(bus)
    allocator = Allocator(bus, settings, state)
    bus.health.add_source("the snapshot", allocator.snapshots.measures)
    bus.health.add_source(
        "allocator", lambda: allocator.meters.measures(allocator.state, time.time())
    )

    await follow(bus, allocator)
    await allocator.begin_deciding()

    bus.spawn(allocator.run_passes())
    views = ViewBucket(bus, await bus.bucket(subjects.JOBS))
    bus.spawn(allocator.update_views(views))
    bus.spawn(allocator.store_snapshots())
    if settings.finished_kept_s:
        bus.spawn(allocator.new_removal().run_expired(settings.removal_s))
    bus.spawn(allocator.new_removal().run_forgotten(allocator.forget_asked))

    letters = DeadLetterCount()
    bus.health.add_source("dead letters", letters.measures)
    bus.spawn(letters.keep_counting(bus.js))
