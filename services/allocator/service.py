"""The allocator's shell: fold what is heard, decide, say it.

Every message is folded and wakes the decider; so does the timer of the last decision. The decider
says what it decided and waits until it has heard itself before it looks again: so no decision is
taken on a state that lacks the last one. While the log is replayed nothing is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Annotated, TypeVar

import msgspec
import structlog
from msgspec import Meta
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from services.allocator import snapshot
from services.allocator.admission import requests as admission_requests
from services.allocator.admission.removal import Removal
from services.allocator.admission.requests import ProgramFault, answer_change, unanswered_changes
from services.allocator.admission.validation import Wrong, answered_as, check_request
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
from shared.bus.node_facts import LastNodeFacts, read_last_node_facts
from shared.bus.publisher import Stale
from shared.bus.snapshots import SnapshotStore
from shared.messages import (
    AllocationDecided,
    CapacityFact,
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

FAILURE_TOLD_S = 600.0
"""Between two log lines about one job that is set aside for the same error."""
PLAINTS_KEPT = 1_000


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

M = TypeVar("M", bound=Message)
Refusal = JobRejected | ChangeRejected
Answer = JobAccepted | JobRejected | JobChanged | ChangeRejected
ANSWERED_AT_ONCE = 8
"""Requests of one namespace that are answered before the next decision; unreadable ones are counted
for themselves.
"""


def first_numbers_by_namespace(namespaces: Mapping[int, str], most: int) -> list[int]:
    """Return the lowest numbers of each namespace, at most so many, all in ascending order."""
    found: list[int] = []
    counts: Counter[str] = Counter()
    for number in sorted(namespaces):
        namespace = namespaces[number]
        if counts[namespace] < most:
            counts[namespace] += 1
            found.append(number)
    return found


def changes_no_decision(before: State, after: State) -> bool:
    """Return whether a message changed nothing that a decision depends on: it was of no job that we
    know, or a repetition.
    """
    return all(getattr(before, name) is getattr(after, name) for name in DECISIVE_FIELDS)


class Settings(Rules, frozen=True, kw_only=True):
    """The rules, and the shell's own timers."""

    view_s: float = 0.5
    """Shortest time between two updates of the jobs' view."""
    unreported_s: Annotated[float, Meta(ge=0)] = 10.0
    """Seconds. A job that trains and reports nothing for so long is shown as one whose program may
    hang; 0: never.
    """
    snapshot_s: float = 10.0
    """Shortest time between two snapshots of the state."""
    finished_kept_s: Annotated[float, Meta(ge=0)] = 7 * 86_400.0
    """What a job left on the bus is removed so long after its end; 0: never."""
    removal_s: Annotated[float, Meta(gt=0)] = 3_600.0
    """Between two looks for what can be removed."""
    echo_s: float = 5.0
    """Longest wait for what was said to be heard."""


class Allocator:
    def __init__(self, bus: Bus, rules: Settings, state: State) -> None:
        self.bus = bus
        self.rules = rules
        self.state = state
        self.decisions = Decisions()
        self.expected: dict[str, int] = {}
        # Subjects on which the last message was refused: nothing is published for `RETRY_S`.
        self.resting = set[str]()
        # Jobs whose subject held less than we know when their last decision was refused.
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
        self.plaints: dict[tuple[str, str], RateLimitedWarning] = {}
        # When the first fact since the last pass was stored, by the server's clock.
        self.first_fact_s: float | None = None

    # ------------------------------------------------------------ hearing

    def begin_from(self, state: State, node_facts: Sequence[StoredMessage]) -> None:
        """Know this before the log is read on. `node_facts`: the last ones, for nodes that it does
        not tell.
        """
        self.state = state
        last_fact = state.sequences.get(subjects.FACTS, 0)
        self.node_facts = LastNodeFacts(node_facts, last_fact)

    async def on_fact(self, heard: StoredMessage) -> None:
        """Remember; then look again."""
        before = self.state
        if self.replaying:
            self.node_facts.note_fact(heard.message)
        self._fold(heard)
        if isinstance(heard.message, ForgetRequested):
            self.forget_asked.set()

        unchanged = isinstance(heard.message, EVIDENCE) and self.state.jobs is before.jobs
        if self.replaying or unchanged:
            return

        self.meters.count_fact(heard.message, before, heard.stored_s)
        if changes_no_decision(before, self.state):
            await self._notify_folded()
            return
        if self.first_fact_s is None:
            self.first_fact_s = heard.stored_s
        await self._look_again()

    async def on_unusable(self, subject: str, body: bytes, sequence: int, error: str) -> bool:
        """Answer a request that cannot be read: a person waits for it."""
        answer = self._refusal(subject, body, sequence, error)
        if answer is None:
            return False
        self.state = add_refusal(self.state, answer)
        self.refused_in[sequence] = namespace_of(subject)
        if not self.replaying:
            await self._look_again()
        return True

    def _refusal(self, subject: str, body: bytes, sequence: int, error: str) -> Refusal | None:
        """Return the answer to what cannot be read; None: it is nothing that a person asks for."""
        requests = subjects.pattern(JobRequested, "")
        if not f"{subject}.".startswith(requests):
            return admission_requests.refusal_of_change(subject, sequence, error)
        found = check_request(body, self.rules)
        reasons = found.reasons if isinstance(found, Wrong) else (error,)
        job, namespace = answered_as(subject, body)
        return admission_requests.rejection_of(Wrong(job, namespace, reasons), sequence)

    async def begin_deciding(self) -> None:
        """The replay is over: add the nodes and quotas that it did not tell of, and begin to
        decide.
        """
        self.replaying = False
        for fact in self.node_facts.take_missing():
            if isinstance(fact.message, CapacityFact):
                self.state = with_last_fact(self.state, fact.message, fact.stored_s)
        self.forget_asked.set()  # it may have been heard before the snapshot was stored
        await self._look_again()

    def _fold(self, heard: StoredMessage) -> None:
        """Fold a message into the state. The namespace of an unreadable request is kept until the
        request's rejection is read back.
        """
        self.state = apply(self.state, heard.message, heard.stream, heard.sequence, heard.stored_s)
        if isinstance(heard.message, JobRejected | ChangeRejected):
            self.refused_in.pop(heard.message.uid, None)

    async def _look_again(self) -> None:
        self.awake.set()
        self.changed.set()
        await self._notify_folded()

    async def _notify_folded(self) -> None:
        self.unsaved.set()
        async with self.folded:
            self.folded.notify_all()

    # ------------------------------------------------------------ deciding

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
        begun_s = time.monotonic()
        last = self.decisions
        self.state = prepare_tables(self.state, self.rules)
        now = time.time()
        decisions = decide(
            self.state, now, self.rules, last.pending_changes, last.failures, last.untried
        )
        self.meters.deciding.observe(time.monotonic() - begun_s)
        for failure in decisions.failures:
            self._report_failure(failure)
        return decisions

    def _report_failure(self, failure: Failure) -> None:
        """Count it; log a job's failure with its traceback once, and again if it is another or
        lasts for long.
        """
        self.meters.failures.count(failure.policy or PASS)
        plaint = self.plaints.setdefault(
            (failure.job, failure.error), RateLimitedWarning(FAILURE_TOLD_S)
        )
        plaint.warn(
            "JobSetAside",
            job=failure.job,
            policy=failure.policy,
            error=failure.error,
            traceback=failure.traceback,
        )
        while len(self.plaints) > PLAINTS_KEPT:
            oldest = next(iter(self.plaints))
            del self.plaints[oldest]

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

    async def _answer_requests(self) -> None:
        """Answer the oldest requests of each namespace, a few at a time: the others' jobs are
        decided in between.
        """
        refusals_of_name: dict[str, list[Refusal]] = {}
        for refusal in self._next_refusals():
            refusals_of_name.setdefault(refusal.key(), []).append(refusal)
        requests = self._next_requests()  # each of another name
        answering: list[Coroutine[None, None, None]] = []
        for refusals in refusals_of_name.values():
            answering.append(self._answer_in_turn(refusals))
        for uid in requests:
            answering.append(self._answer_request(uid))
        await asyncio.gather(*answering)

    def _next_refusals(self) -> list[Refusal]:
        """Return the refusals of unreadable requests that are published next."""
        refusals = self._answerable(self.state.unreadable_requests)
        namespaces = {}
        for uid, refusal in refusals.items():
            namespaces[uid] = self.refused_in.get(uid, refusal.namespace)
        return [refusals[uid] for uid in self._next_numbers(namespaces)]

    def _next_requests(self) -> list[int]:
        """Return the numbers of the requests that are answered next."""
        requests = {}
        for uid, asked in admission_requests.oldest_requests(self.state).items():
            requests[uid] = asked.request
        namespaces = {}
        for uid, request in self._answerable(requests).items():
            namespaces[uid] = request.namespace
        return self._next_numbers(namespaces)

    def _next_changes(self) -> list[int]:
        """Return the sequences of the changes that are answered next."""
        namespaces = {}
        for sequence, change in self._answerable(unanswered_changes(self.state)).items():
            namespaces[sequence] = change.namespace
        return self._next_numbers(namespaces)

    def _answerable(self, messages: Mapping[int, M]) -> dict[int, M]:
        """Return the messages about jobs on whose subjects answers may be published now."""
        answerable = {}
        for number, message in messages.items():
            if self._may_answer(message.key()):
                answerable[number] = message
        return answerable

    def _next_numbers(self, namespaces: Mapping[int, str]) -> list[int]:
        """Return the first few numbers of each namespace. If there are more, look again soon."""
        numbers = first_numbers_by_namespace(namespaces, ANSWERED_AT_ONCE)
        if len(numbers) < len(namespaces):
            self.awake.set()
        return numbers

    async def _answer_in_turn(self, answers: Sequence[Refusal]) -> None:
        """Publish answers on one subject, of which each has to be on top of the last, until one is
        refused.
        """
        for answer in answers:
            if self._may_answer(answer.key()):
                await self._answer(answer)

    def _may_answer(self, key: str) -> bool:
        return subjects.area_pattern(key, "job") not in self.resting

    async def _answer_request(self, uid: int) -> None:
        """Accept or reject a request. Publish nothing if it was answered while its stored program
        was looked up.
        """
        asked = self.state.asked.get(uid)
        if asked is None:
            return
        program = await self._stored_program(asked.request)
        if uid in self.state.asked:
            answer = admission_requests.answer_request(
                self.state, uid, program, time.time(), self.rules
            )
            await self._answer(answer)

    async def _answer_changes(self) -> None:
        """Answer the oldest change of each job, of a few jobs of each namespace at a time."""
        answering = []
        for sequence in self._next_changes():
            answer = answer_change(self.state, sequence, self.rules)
            answering.append(self._answer(answer))
        await asyncio.gather(*answering)

    async def _answer(self, answer: Answer) -> None:
        """Publish an answer on top of all that is said of the name; where another message came
        first, try it again.

        We looked while we led, so a later leader's answer is behind what we saw, and ours is
        refused.
        """
        over = subjects.area_pattern(answer.key(), "job")
        last = await self.bus.last_sequence_matching(over)
        try:
            sequence = await self.bus.publish(answer, expect_last=last, over=over)
        except Stale:
            log.info("AnswersAgain", job=answer.key(), uid=answer.uid)
            self._pause_publishing(over)  # the state keeps the request until its answer is heard
            return
        await self._await_fold(sequence)

    async def _stored_program(self, request: JobRequested) -> int | ProgramFault:
        """Return the size of the stored program in bytes, or why it cannot be used.

        Both are as its description says; only the job's own pods fetch the program, and check what
        they get.
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

    # ------------------------------------------------------------ saying

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
        """Return the sequence of the job's last decision that was folded; a stale leader's is
        another.
        """
        key = action.key()
        folded = self.state.last_decision_seq.get(key, 0)
        return self.expected.pop(key, folded)

    def _note_published(
        self, action: AllocationDecided | JobFinished, since_s: float | None
    ) -> None:
        """Log and count an action that the bus took."""
        key = action.key()
        self.maybe_purged.discard(key)
        log.info(type(action).__name__, why=self.decisions.why.get(key, ""))
        waited_s = None
        if since_s is not None:
            waited_s = max(0.0, time.time() - since_s)
        self.meters.count_decision(action, self.state, self.rules.policy, waited_s)

    async def _catch_up(self, action: Message) -> None:
        """Hear what we lacked; go by what the subject holds, be it more than we know (unreadable)
        or less (purged).

        A copy that lags holds less, too. So less is believed only when the next decision was
        refused as well.
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
        """Publish nothing on these subjects for `RETRY_S`, then look again; other jobs do not wait
        for that.

        Any copy of a stream may have said what is there. While it lags, all that goes by it is
        refused.
        """
        self.resting.add(filtered)
        asyncio.get_running_loop().call_later(RETRY_S, self._end_rest, filtered)

    def _end_rest(self, filtered: str) -> None:
        self.resting.discard(filtered)
        self.awake.set()

    async def _await_fold(self, sequence: int) -> None:
        """Wait until the fold has reached this order."""
        async with self.folded:
            until_folded = self.folded.wait_for(lambda: self._has_folded(sequence))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(until_folded, self.rules.echo_s)

    def _has_folded(self, sequence: int) -> bool:
        return self.state.sequences.get(subjects.ORDERS, 0) >= sequence

    # ------------------------------------------------------------ keeping

    async def store_snapshots(self) -> None:
        """Store a snapshot of the state after it has changed, at most one in `snapshot_s`."""
        while True:
            await self.unsaved.wait()
            self.unsaved.clear()
            if self.state.tables is not None:
                self.state = prepare_tables(self.state, self.rules)
            await self.snapshots.store(snapshot.encode_snapshot(self.state))
            await asyncio.sleep(self.rules.snapshot_s)

    def forget_removed(self, key: str) -> None:
        """Take it that nothing of a name is on the bus any more."""
        self.state = forget_messages(self.state, key)

    def _new_removal(self) -> Removal:
        return Removal(
            self.bus, self.rules.finished_kept_s, lambda: self.state, self.forget_removed
        )

    async def remove_expired_jobs(self) -> None:
        """Remove messages of jobs that ended long ago, once in `removal_s`; return at once if they
        are kept for ever. An error of the bus is logged, and the next pass tries again.
        """
        removal = self._new_removal()
        plaint = RateLimitedWarning()
        while self.rules.finished_kept_s:
            await asyncio.sleep(self.rules.removal_s)
            try:
                await removal.remove_expired()
            except NatsError as error:
                plaint.warn_error("RemovalWaits", error)

    async def remove_forgotten_jobs(self) -> None:
        """Remove what somebody asks to forget, as soon as it is asked."""
        removal = self._new_removal()
        plaint = RateLimitedWarning()
        while True:
            await self.forget_asked.wait()
            self.forget_asked.clear()
            try:
                await removal.remove_forgotten()
            except NatsError as error:
                plaint.warn_error("ForgettingWaits", error)
                self.forget_asked.set()
                await asyncio.sleep(RETRY_S)


def load_policies(settings: Settings) -> None:
    """Raises `Leave` where one cannot be used. One that fails later costs its own jobs a change,
    and nothing else.
    """
    try:
        register_policies((settings.policy, *settings.policies))
    except BadSettings as bad:
        log.error("BadSettings", why=str(bad))
        raise ServiceExit(BAD_SETTINGS) from bad


async def update_views(allocator: Allocator, views: ViewBucket) -> None:
    """Keep the jobs' view up with the state; what the bus could not take is shown when it is
    back.
    """
    plaint = RateLimitedWarning()
    unreported_s = allocator.rules.unreported_s
    while True:
        await wait_for_change(allocator.changed, allocator.state.jobs.values(), unreported_s)
        allocator.changed.clear()
        try:
            await views.show(allocator.state, allocator.decisions.why, unreported_s)
        except NatsError as error:
            plaint.warn_error("ViewWaits", error)
            allocator.changed.set()
        await asyncio.sleep(allocator.rules.view_s)


async def follow(bus: Bus, allocator: Allocator) -> None:
    """Hear what the state lacks; all, where a stream was set back and the state is of messages that
    are no more.
    """
    follow_from = partial(
        bus.follow, CONSUMED, allocator.on_fact, unusable=allocator.on_unusable, strays=True
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
    """Load the snapshot, read the log on from there, then begin to decide. The loops of the
    allocator run in the background.
    """
    load_policies(settings)
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
    bus.spawn(update_views(allocator, views))
    bus.spawn(allocator.store_snapshots())
    bus.spawn(allocator.remove_expired_jobs())
    bus.spawn(allocator.remove_forgotten_jobs())

    letters = DeadLetterCount()
    bus.health.add_source("dead letters", letters.measures)
    bus.spawn(letters.keep_counting(bus.js))
