"""Tests of the allocator on a real bus: requests are answered, and a restart continues."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
import pytest
from nats.js.errors import NotFoundError
from structlog.testing import capture_logs

from services.allocator import snapshot
from services.allocator.job_views import JobView
from services.allocator.service import Allocator, Settings, start
from services.allocator.state.state import CONSUMED, State, apply
from shared.auth.permissions import description_subject
from shared.bus import bus as wire
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.client import RETRY_S
from shared.bus.programs import digest_of, meta_token
from shared.messages import (
    AllocationDecided,
    CancelRequested,
    ChangeRejected,
    ChangeRequested,
    JobAccepted,
    JobChanged,
    JobFinished,
    JobRejected,
    Message,
    Program,
    ProgressReported,
    QuotaBound,
    QuotaChanged,
    ResumeRequested,
    SuspendRequested,
)
from shared.runtime.process import cancel_tasks
from tests.allocator.builders import abandoned, accepted, node, own, request, resumed, size
from tests.conftest import NatsServer, connected
from tests.shared.bus.test_log_reader import lost_history

M = TypeVar("M", bound=Message)
PROGRAM = b"def model(): ..."
QUICK = Settings(
    policy="config-manager",
    window_s=0.05,
    cooldown_s=0,
    max_delay_s=1,
    backoff_s=0.05,
    view_s=0.05,
    snapshot_s=0.1,
)


@asynccontextmanager
async def allocator(url: str, settings: Settings = QUICK) -> AsyncIterator[Bus]:
    connection = await wire.connect(url, "allocator")
    await start(connection, settings)
    failing = asyncio.ensure_future(connection.raise_failure())
    yield connection
    if failing.done():
        failing.result()
    failing.cancel()
    await connection.close()


async def soon(look: Callable[[], Awaitable[M | None]], within_s: float = 60.0) -> M:
    async with asyncio.timeout(within_s):
        while (found := await look()) is None:
            await asyncio.sleep(0.01)
        return found


async def last(bus: Bus, kind: type[M], key: str = "default.mnist", past: int = 0) -> M:
    """Return the newest message of a kind on a subject, once there is one after `past`."""

    async def look() -> M | None:
        heard = await bus.last_message(kind, key)
        return heard.message if heard and heard.sequence > past else None  # type: ignore[return-value]

    return await soon(look)


async def view(bus: Bus, wanted: Callable[[JobView], bool]) -> JobView:
    bucket = await bus.bucket(subjects.JOBS)
    async with asyncio.timeout(60):
        while True:
            try:
                found = msgspec.json.decode(
                    (await bucket.get("default.mnist")).value or b"", type=JobView
                )
                if wanted(found):
                    return found
            except NotFoundError:
                pass
            await asyncio.sleep(0.02)


async def with_program(bus: Bus, **fields: object):
    digest = digest_of(PROGRAM)
    await (await bus.program_store()).put(digest, PROGRAM)
    return request(program=Program(name="train.py", digest=digest), **fields)


async def test_a_job_is_accepted_decided_grown_and_listed(nats_url: str, person: Bus):
    await person.publish(node(cpu=3))
    async with allocator(nats_url):
        uid = await person.request(await with_program(person))
        assert (await last(person, JobAccepted)).uid == uid
        first = await last(person, AllocationDecided)
        assert size(first) == (1, 1) and first.request.policy == "config-manager"
        await person.publish(resumed(1, uid=uid))
        await person.publish(
            node(cpu=9, free=6, own=own("mnist", *first.tasks), labels={"seen": "again"})
        )
        told = msgspec.structs.replace(node("n2", cpu=2), seen="1")
        await person.publish(told)

        async def grown() -> AllocationDecided | None:
            heard = await person.last_message(AllocationDecided, "default.mnist")
            decision = heard.message if heard else None
            return (
                decision
                if isinstance(decision, AllocationDecided) and decision.generation == 2
                else None
            )

        assert size(await soon(grown)) == (2, 2)
        await person.publish(resumed(2, uid=uid, pause_s=0.5))
        said = ProgressReported(
            job="mnist",
            uid=uid,
            generation=2,
            step=5,
            epoch=0,
            samples=50,
            total_samples=99,
            samples_per_second=9,
        )
        await person.publish(said)
        shown = await view(person, lambda v: v.samples == 50)
        assert (shown.phase, shown.ps, shown.workers, shown.pauses) == ("Running", 2, 2, (0.5,))


async def test_a_node_whose_facts_were_purged_takes_a_job(nats_url: str, person: Bus):
    await lost_history(person, await person.publish(node(cpu=3)))
    async with allocator(nats_url):
        await person.request(await with_program(person))
        assert size(await last(person, AllocationDecided)) == (1, 1)


async def test_a_quota_whose_facts_were_purged_limits_a_job(nats_url: str, person: Bus):
    bound = QuotaBound(quota="compute", resource="requests.cpu", hard=1)
    await person.publish(QuotaChanged(namespace="default", seen="1", bounds=(bound,)))
    await lost_history(person, await person.publish(node(cpu=9)))
    async with allocator(nats_url):
        await person.request(await with_program(person))
        assert "ResourceQuota compute" in (await view(person, lambda v: v.why != "")).why


async def test_a_leader_with_restored_streams_starts_from_them_and_the_last_facts(
    nats_url: str, person: Bus
):
    kept = await person.publish(node(cpu=3))
    await lost_history(person, kept)
    asked = await person.request(await with_program(person))
    lost = State(
        nodes={"lost": node("lost", cpu=9)},
        sequences={subjects.ORDERS: asked, subjects.FACTS: kept},
        stored_s={subjects.ORDERS: 1.0},
    )
    await snapshot.store_snapshot(person, lost)
    async with allocator(nats_url):
        decided = await last(person, AllocationDecided)
        assert decided.uid == asked and {task.node for task in decided.tasks} == {"n1"}


async def test_the_stream_has_precedence_over_the_last_node_fact(nats_url: str, person: Bus):
    await lost_history(person, await person.publish(node(cpu=9)))
    await person.publish(msgspec.structs.replace(node(cpu=1), seen="1"))
    async with allocator(nats_url):
        await person.request(await with_program(person))
        assert (await view(person, lambda v: v.why != "")).why.startswith("waits for room")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChangeRequested, b"{not json"),
        (ChangeRequested, b'{"job": "mnist", "priority": "high"}'),
        (ChangeRequested, b'{"job": "mnist", "workers": {"min": 1, "max": 2, "most": 3}}'),
        (SuspendRequested, b'{"job": "mnist", "until": "noon"}'),
    ],
)
async def test_an_unreadable_change_request_is_answered(
    nats_url: str, person: Bus, kind: type[Message], body: bytes
) -> None:
    async with allocator(nats_url):
        sent = await person.js.publish(subjects.pattern(kind, "default.mnist"), body)

        answer = await last(person, ChangeRejected)
        assert answer.uid == sent.seq and len(answer.reasons) == 1


async def test_a_new_leader_answers_open_requests_and_keeps_answers(
    nats_url: str, person: Bus
) -> None:
    await person.publish(node(cpu=3))
    asked = await person.request(await with_program(person))
    await person.publish(SuspendRequested(job="mnist", request_id="1"))
    async with allocator(nats_url):
        assert (await last(person, JobChanged)).suspended
        assert (await view(person, lambda v: v.suspended)).why.startswith("suspended by its user")
    changed = await person.last_sequence(JobChanged, "default.mnist")
    async with allocator(nats_url):
        await person.publish(ResumeRequested(job="mnist", request_id="2"))
        assert (await last(person, JobChanged, past=changed)).suspended is False
        assert (await last(person, AllocationDecided)).uid == asked


async def test_a_job_without_reports_is_shown_as_silent_until_it_reports(
    nats_url: str, person: Bus
):
    await person.publish(node(cpu=3))
    async with allocator(nats_url, msgspec.structs.replace(QUICK, unreported_s=0.3)):
        uid = await person.request(await with_program(person))
        await last(person, AllocationDecided)
        await person.publish(resumed(1, uid=uid))

        shown = await view(person, lambda v: v.silent)
        assert (
            shown.phase == "Running" and "no report since step 0: its program may hang" in shown.why
        )

        said = ProgressReported(
            job="mnist",
            uid=uid,
            generation=1,
            step=5,
            epoch=0,
            samples=50,
            total_samples=99,
            samples_per_second=9,
        )
        await person.publish(said)
        assert (
            await view(person, lambda v: v.samples == 50 and not v.silent)
        ).samples_per_second == 9


@pytest.mark.usefixtures("brief_heartbeat")
async def test_a_bus_restart_while_answering_loses_nothing(nats_server: NatsServer, person: Bus):
    speaker, asked = await connected(nats_server.url, "speaker"), 0

    async def ask() -> None:
        nonlocal asked
        while True:  # their program is not in the store
            await speaker.publish(request(f"j{asked}"))
            asked += 1

    async with allocator(nats_server.url):
        asking = asyncio.ensure_future(ask())
        for _ in range(6):  # it reads for half of the time, and publishes for the other half
            await asyncio.sleep(0.5)
            await nats_server.kill()
            await nats_server.start()
        await cancel_tasks(asking)
        for n in (0, asked // 2, asked - 1):
            await last(person, JobRejected, f"default.j{n}")
        uid = await person.publish(await with_program(person))
        assert (await view(person, lambda v: v.uid == uid)).phase == "Pending"
    await speaker.close()


async def test_an_invalid_request_is_answered_with_every_reason(nats_url: str, person: Bus):
    async with allocator(nats_url):
        body = msgspec.json.encode(
            msgspec.to_builtins(request("wrong")) | {"epochs": 0, "workrs": 1}
        )
        await person.js.publish("weir.job.requested.default.wrong", body)
        rejected = await last(person, JobRejected, "default.wrong")
        assert len(rejected.reasons) == 2 and "did you mean 'workers'" in rejected.reasons[0]
        await person.js.publish("weir.job.requested.nobody", b"{not json")
        rejected = await last(
            person, JobRejected, f"-.invalid-{hashlib.sha256(b'{not json').hexdigest()[:12]}"
        )
        assert "not JSON" in rejected.reasons[0]
        assert (await person.js.stream_info(subjects.DEAD)).state.messages == 2


async def test_an_unreadable_request_is_answered_under_its_subject(nats_url: str, person: Bus):
    body = msgspec.json.encode(msgspec.to_builtins(request("victim")) | {"namespace": "team-b"})
    async with allocator(nats_url):
        sequence = (await person.js.publish("weir.job.requested.default.attack", body)).seq
        rejected = await last(person, JobRejected, "default.attack")
    assert rejected.uid == sequence and "team-b" in rejected.reasons[0]
    assert await person.last_message(JobRejected, "team-b.victim") is None


def overtaken(connection: Bus, name: str, times: int = 1) -> None:
    """Store an unreadable message between the allocator's look at a name and its answer."""
    look, left = connection.last_sequence_matching, times

    async def look_and_lose(filtered: str) -> int:
        nonlocal left
        last = await look(filtered)
        if left and filtered == subjects.area_pattern(name, "job"):
            left -= 1
            await connection.js.publish(subjects.pattern(CancelRequested, name), b"{not json")
        return last

    connection.last_sequence_matching = look_and_lose  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "body", [b"{not json", msgspec.json.encode(request("wrong"))], ids=["unreadable", "readable"]
)
async def test_a_request_is_rejected_despite_another_message_on_its_name(
    nats_url: str, person: Bus, body: bytes
):
    name = "default.wrong"
    async with allocator(nats_url) as connection:
        overtaken(connection, name, times=2)
        sequence = (await person.js.publish("weir.job.requested.default.wrong", body)).seq
        async with asyncio.timeout(10):
            assert (await last(person, JobRejected, name)).uid == sequence


def behind(connection: Bus, filtered: str) -> asyncio.Event:
    """Let a stale replica, without messages on these subjects, answer until the event is set."""
    look, caught_up = connection.last_sequence_matching, asyncio.Event()

    async def look_at_copy(asked: str) -> int:
        return 0 if asked == filtered and not caught_up.is_set() else await look(asked)

    connection.last_sequence_matching = look_at_copy  # type: ignore[method-assign]
    return caught_up


async def test_a_lagging_replica_delays_answers_for_one_name_only(nats_url: str, person: Bus):
    async with allocator(nats_url) as connection:
        caught_up = behind(connection, subjects.area_pattern("default.late", "job"))
        with capture_logs() as lines:
            begun_s = time.monotonic()
            late = await person.request(await with_program(person, job="late"))
            for number in range(50):  # facts that wake the allocator
                await person.publish(node(cpu=3 + number % 2, labels={"seen": str(number)}))
                await asyncio.sleep(0.02)
            other = await person.request(await with_program(person))
            assert (await last(person, JobAccepted)).uid == other
            again = [line for line in lines if line["event"] == "AnswersAgain"]
            assert 1 < len(again) <= 1 + (time.monotonic() - begun_s) / RETRY_S
        caught_up.set()
        assert (await last(person, JobAccepted, "default.late")).uid == late


async def test_an_unanswered_request_is_answered_after_a_restart(nats_url: str, person: Bus):
    """The snapshot is ahead of the unreadable request, so the request is not read again."""
    sequence = (await person.js.publish("weir.job.requested.default.wrong", b"{not json")).seq
    behind = await person.publish(CancelRequested(job="other"))
    name = f"invalid-{hashlib.sha256(b'{not json').hexdigest()[:12]}"
    rejected = JobRejected(job=name, namespace="-", uid=sequence, reasons=("not JSON",))
    await snapshot.store_snapshot(
        person, State(sequences={subjects.ORDERS: behind}, unreadable_requests={sequence: rejected})
    )
    async with allocator(nats_url):
        assert (await last(person, JobRejected, f"-.{name}")).uid == sequence


@pytest.mark.parametrize("readable", [True, False], ids=["whole", "with-a-privilege"])
async def test_forbidden_fields_are_answered_with_all_other_reasons(
    nats_url: str, person: Bus, readable: bool
):
    strict = msgspec.structs.replace(QUICK, job_namespaces=("team-a",), images=("trainer",))
    volume = {"name": "root", "mount_path": "/host", "host_path": "/"}
    asked = msgspec.to_builtins(request("wrong")) | {"image": "evil", "volumes": [volume]}
    body = msgspec.json.encode(asked | ({} if readable else {"privileged": True}))
    async with allocator(nats_url, strict):
        await person.js.publish("weir.job.requested.default.wrong", body)
        rejected = await last(person, JobRejected, "default.wrong")
    fields = [why.partition(":")[0] for why in rejected.reasons]
    found = ["namespace", "image", "volumes[0].host_path"]
    assert fields == ([*found, "program.digest"] if readable else ["privileged", *found])


async def test_a_job_without_its_program_or_with_a_running_name_is_rejected(
    nats_url: str, person: Bus
):
    async with allocator(nats_url):
        uid = await person.request(request("empty"))
        assert (
            "the store has no program"
            in (await last(person, JobRejected, "default.empty")).reasons[0]
        )
        good = await with_program(person)
        uid = await person.request(good)
        again = await person.request(msgspec.structs.replace(good, request_id="again"))
        assert (await last(person, JobAccepted)).uid == uid
        rejected = await last(person, JobRejected)
        assert rejected.uid == again and "has not ended yet" in rejected.reasons[0]


@pytest.mark.parametrize("spoilt", [b"no json", b'{"size": "large"}', b"\xff"])
async def test_a_program_with_a_damaged_description_is_missing(
    nats_url: str, person: Bus, spoilt: bytes
):
    digest = "sha256-" + "b" * 64
    await person.js.publish(
        f"{description_subject('weir-programs-default')}.{meta_token(digest)}", spoilt
    )
    async with allocator(nats_url):
        await person.request(request("spoilt", program=Program(name="train.py", digest=digest)))
        assert "that can be read" in (await last(person, JobRejected, "default.spoilt")).reasons[0]
        await person.request(await with_program(person))
        await last(person, JobAccepted)


async def test_a_restart_repeats_nothing_and_continues(nats_url: str, person: Bus):
    await person.publish(node(cpu=3))
    async with allocator(nats_url):
        uid = await person.request(await with_program(person))
        first = await last(person, AllocationDecided)
        await view(person, lambda v: v.phase == "Starting")
    before = (await person.js.stream_info(subjects.ORDERS)).state.last_seq
    for forget in (False, True):
        if forget:
            await (await person.bucket(subjects.STATE)).purge("allocator")
        async with allocator(nats_url):
            await asyncio.sleep(0.2)
            assert (await person.js.stream_info(subjects.ORDERS)).state.last_seq == before
    async with allocator(nats_url):
        assert first.generation == 1
        await person.publish(CancelRequested(job="mnist"))
        finished = await last(person, JobFinished)
        assert (finished.uid, finished.outcome) == (uid, "cancelled")
        assert (await view(person, lambda v: v.phase == "Cancelled")).why == "cancelled on request"


async def test_messages_of_a_finished_job_are_purged_after_a_while(nats_url: str, person: Bus):
    await person.publish(node(cpu=3))
    async with allocator(
        nats_url, msgspec.structs.replace(QUICK, finished_kept_s=0.2, removal_s=0.1)
    ):
        uid = await person.request(await with_program(person))
        await last(person, AllocationDecided)
        await person.publish(JobFinished(job="mnist", uid=uid, outcome="succeeded"))

        bucket = await person.bucket(subjects.JOBS)
        async with asyncio.timeout(60):
            with pytest.raises(NotFoundError):
                while True:  # until the orders and the view are gone
                    if (
                        await person.last_sequence_matching(
                            subjects.area_pattern("default.mnist", "job")
                        )
                        == 0
                    ):
                        await bucket.get("default.mnist")
                    await asyncio.sleep(0.01)
        again = await person.request(await with_program(person, request_id="again"))
        assert (await last(person, AllocationDecided)).uid == again


async def test_a_decision_missed_by_the_launcher_is_repeated(nats_url: str, person: Bus):
    await person.publish(node(cpu=3))
    async with allocator(nats_url, msgspec.structs.replace(QUICK, repeat_s=1.0, repeat_max=2)):
        await person.request(await with_program(person))
        first = await last(person, AllocationDecided)
        sequence = await person.last_sequence(AllocationDecided, "default.mnist")
        await person.js.purge_stream(
            subjects.ORDERS, subject=subjects.pattern(AllocationDecided, "default.mnist")
        )

        again = await last(person, AllocationDecided, past=sequence)

        assert (again.generation, again.revision, again.tasks) == (
            1,
            first.revision + 1,
            first.tasks,
        )
        assert again.reason.startswith(
            "repeated (1 of 2), not acted on by the launcher within 1 s: "
        )
        shown = await view(person, lambda v: v.revision == again.revision)
        assert (shown.phase, shown.reason) == ("Starting", again.reason)


async def test_a_decision_on_an_old_state_is_refused_and_recomputed(nats_url: str, person: Bus):
    await person.publish(node(cpu=3))
    async with allocator(nats_url):
        await person.request(await with_program(person))
        first = await last(person, AllocationDecided)
        rival = msgspec.structs.replace(first, revision=2, generation=2, reason="a rival's")
        sequence = await person.publish(rival)
        await person.publish(resumed(2, uid=first.uid))
        await person.publish(node("n2", cpu=2))
        assert (await last(person, AllocationDecided, past=sequence)).generation == 3


async def shorten_duplicate_window(bus: Bus) -> None:
    """Let the server remember message ids for 0.1 s instead of two minutes."""
    config = (await bus.js.stream_info(subjects.ORDERS)).config
    await bus.js.update_stream(dataclasses.replace(config, duplicate_window=0.1))


async def forget_ids(bus: Bus) -> None:
    """Wait until the server has forgotten every id that it had stored at the call."""
    probe = abandoned(1, "probe")
    taken = await bus.publish(probe)
    async with asyncio.timeout(60):
        while await bus.publish(probe) == taken:
            await asyncio.sleep(0.02)


async def stored_decisions(bus: Bus) -> int:
    subject = subjects.pattern(AllocationDecided, "default.mnist")
    state = (await bus.js.stream_info(subjects.ORDERS, subjects_filter=subject)).state
    return (state.subjects or {}).get(subject, 0)


async def test_a_stale_leaders_decision_is_refused_after_the_deduplication_window(
    nats_url: str, person: Bus
):
    """The server ignores a second message with one id for two minutes only.

    After that the expected sequence decides.
    """
    await shorten_duplicate_window(person)
    asked = await with_program(person)
    seen_at, uid = await person.publish(node(cpu=3)), await person.request(asked)
    answer = accepted(asked, uid)
    answered_at = await person.publish(answer)
    known = apply(State(), node(cpu=3), subjects.FACTS, seen_at, time.time())
    known = apply(known, asked, subjects.ORDERS, uid, time.time())
    known = apply(known, answer, subjects.ORDERS, answered_at, time.time())
    async with allocator(nats_url):
        await last(person, AllocationDecided)
        await person.publish(resumed(1, uid=uid))
        first_at = await person.last_sequence(AllocationDecided, answer.key())
        await person.publish(node("n2", cpu=2))
        assert (await last(person, AllocationDecided, past=first_at)).revision == 2
    second_at = await person.last_sequence(AllocationDecided, answer.key())
    await forget_ids(person)

    connection = await wire.connect(nats_url, "stale")
    stale = Allocator(connection, QUICK, known)
    await stale.begin_deciding()
    with capture_logs() as lines:
        connection.spawn(stale.run_passes())
        async with asyncio.timeout(60):
            while (
                "DecidedOnAnOldState" not in [line["event"] for line in lines]
                and await stored_decisions(person) < 3
            ):
                await asyncio.sleep(0.01)
    assert await stored_decisions(person) == 2, "the server stored a decision on an old state"

    await connection.follow(CONSUMED, stale.on_fact, known.sequences)
    await person.publish(resumed(2, uid=uid))
    await person.publish(node("n3", cpu=2))
    assert (await last(person, AllocationDecided, past=second_at)).revision == 3
    await connection.close()


async def test_a_lagging_replica_causes_no_storm_of_refused_decisions(nats_url: str, person: Bus):
    asked = await with_program(person)
    seen_at, uid = await person.publish(node(cpu=3)), await person.request(asked)
    known = apply(State(), node(cpu=3), subjects.FACTS, seen_at, time.time())
    known = apply(known, asked, subjects.ORDERS, uid, time.time())
    known = apply(
        known,
        accepted(asked, uid),
        subjects.ORDERS,
        await person.publish(accepted(asked, uid)),
        time.time(),
    )
    await person.js.publish(subjects.pattern(AllocationDecided, asked.key()), b"{not json")

    connection = await wire.connect(nats_url, "behind")
    caught_up = behind(connection, subjects.pattern(AllocationDecided, asked.key()))
    allocator = Allocator(connection, msgspec.structs.replace(QUICK, echo_s=0.1), known)
    await allocator.begin_deciding()
    begun_s = time.monotonic()
    with capture_logs() as lines:
        connection.spawn(allocator.run_passes())
        for _ in range(50):
            allocator.awake.set()  # as facts of other jobs do
            await asyncio.sleep(0.02)
        refused = [line for line in lines if line["event"] == "DecidedOnAnOldState"]
    assert 1 < len(refused) <= 1 + (time.monotonic() - begun_s) / RETRY_S
    caught_up.set()
    assert (await last(person, AllocationDecided)).uid == uid
    await connection.close()


async def with_a_decision(bus: Bus) -> tuple[Allocator, AllocationDecided]:
    """Return an allocator that has read one decision of a job, and the decision."""
    asked = await with_program(bus)
    first = AllocationDecided(
        job=asked.job,
        uid=1,
        generation=1,
        revision=1,
        request=asked,
        tasks=(),
        batch=0,
        reason="first",
    )
    known = apply(State(), first, subjects.ORDERS, await bus.publish(first), time.time())
    return Allocator(bus, msgspec.structs.replace(QUICK, echo_s=0.1), known), first


async def refusals(allocator: Allocator, action: AllocationDecided, times: int) -> int:
    """Try to publish a decision `times` times; return the number of refusals."""
    with capture_logs() as lines:
        for _ in range(times):
            await allocator._publish_decision(action, None)
            await asyncio.sleep(2 * RETRY_S)
    return [line["event"] for line in lines].count("DecidedOnAnOldState")


async def test_a_lagging_replica_costs_one_decision(bus: Bus):
    ours, first = await with_a_decision(bus)
    caught_up = behind(bus, subjects.pattern(AllocationDecided, first.key()))
    rival = msgspec.structs.replace(first, revision=2, reason="a rival's")
    sequence = await bus.publish(rival)
    third = msgspec.structs.replace(first, revision=3, reason="third")

    assert await refusals(ours, third, times=1) == 1
    caught_up.set()
    ours.state = apply(ours.state, rival, subjects.ORDERS, sequence, time.time())
    assert await refusals(ours, third, times=1) == 0
    assert (await last(bus, AllocationDecided)).reason == "third"


async def test_a_purged_subject_costs_two_decisions(bus: Bus):
    ours, first = await with_a_decision(bus)
    await bus.js.purge_stream(
        subjects.ORDERS, subject=subjects.pattern(AllocationDecided, first.key())
    )

    assert (
        await refusals(ours, msgspec.structs.replace(first, revision=2, reason="second"), times=3)
        == 2
    )
    assert (await last(bus, AllocationDecided)).reason == "second"
