"""Tests of removal: messages and programs of finished jobs are purged some days after their end.

Nothing else is purged.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from nats.js.errors import NotFoundError

from services.allocator.admission.removal import Removal, remove_unused_programs
from services.allocator.job_views import job_views
from services.allocator.state.state import State, apply, forget_messages
from shared.auth.permissions import ALLOCATOR
from shared.bus import bus as wire
from shared.bus import programs, subjects
from shared.bus.bus import Bus
from shared.bus.log_reader import read_last_node_facts
from shared.bus.programs import digest_of, store_program
from shared.bus.subjects import FACTS, JOBS, LEDGER, ORDERS
from shared.messages import (
    ForgetRequested,
    JobAccepted,
    JobFinished,
    JobRejected,
    JobRequested,
    Message,
    Program,
)
from tests.allocator.builders import node, request, resumed
from tests.shared import secured_server
from tests.shared.bus.test_log_reader import wait_for_copied_facts

KEPT_S = 7 * 86_400.0
BODY, OTHER = b"def model(): ...", b"def model(): pass"
HOME = "default"


class Scene:
    """A bus, and the state of an allocator that has read its messages."""

    def __init__(self, bus: Bus) -> None:
        self.bus, self.state, self.removed = bus, State(), list[str]()

    async def say(self, *messages: Message) -> list[int]:
        """Publish messages and fold them into the state; return their sequences."""
        found = []
        for message in messages:
            sequence = await self.bus.publish(message)
            stream = subjects.stream_holding(subjects.subject_of(message))
            self.state = apply(self.state, message, stream, sequence, time.time())
            found.append(sequence)
        return found

    async def job(self, name: str, digest: str = "") -> int:
        """Publish the messages of a job until it trains, and its entries; return its uid."""
        asked = request(name, program=Program(name="train.py", digest=digest or digest_of(BODY)))
        (uid,) = await self.say(replace(asked, request_id=f"{name}-{time.time_ns()}"))
        await self.say(
            JobAccepted(job=name, uid=uid, request=asked, accepted_s=1.0),
            resumed(1, job=name, uid=uid),
        )
        for bucket in (JOBS, LEDGER):
            await (await self.bus.bucket(bucket)).put(f"{HOME}.{name}", b"{}")
        return uid

    async def end(self, name: str, uid: int) -> None:
        await self.say(JobFinished(job=name, uid=uid, outcome="succeeded", finished_s=time.time()))

    async def remove(self, later_s: float = KEPT_S + 60) -> None:
        """Remove what has expired `later_s` seconds from now."""
        removal = Removal(self.bus, KEPT_S, lambda: self.state, self.removed.append)
        await removal.remove_expired(time.time() + later_s)

    async def forget(self) -> None:
        """Carry out the forget requests that the state has read."""

        def on_removed(key: str) -> None:
            self.removed.append(key)
            self.state = forget_messages(self.state, key)

        await Removal(self.bus, KEPT_S, lambda: self.state, on_removed).remove_forgotten()

    async def left(self, name: str) -> list[int]:
        """Return the number of orders, facts, views and ledger entries of a job name."""
        counts = []
        for stream in (ORDERS, FACTS):
            info = await self.bus.js.stream_info(stream, subjects_filter=f"weir.*.*.{HOME}.{name}")
            counts.append(sum((info.state.subjects or {}).values()))
        for bucket in (JOBS, LEDGER):
            counts.append(await exists((await self.bus.bucket(bucket)).get, f"{HOME}.{name}"))
        return counts


async def exists(look: Callable[..., Awaitable[object]], *what: object) -> bool:
    try:
        await look(*what)
    except NotFoundError:
        return False
    return True


@pytest.fixture
def scene(bus: Bus) -> Scene:
    return Scene(bus)


async def test_messages_of_a_finished_job_are_purged_and_those_of_a_running_one_kept(
    scene: Scene,
) -> None:
    over, runs = await scene.job("over"), await scene.job("runs")
    await scene.end("over", over)
    assert await scene.left("over") == [3, 1, 1, 1]

    await scene.remove(later_s=KEPT_S - 60)
    assert await scene.left("over") == [3, 1, 1, 1] and scene.removed == []

    await scene.remove()
    assert await scene.left("over") == [0, 0, 0, 0] and scene.removed == ["default.over"]
    assert await scene.left("runs") == [2, 1, 1, 1] and runs > over


async def test_with_a_reused_name_only_earlier_messages_are_purged(scene: Scene) -> None:
    await scene.end("again", await scene.job("again"))
    second = await scene.job("again")

    await scene.remove()

    assert await scene.left("again") == [2, 2, 1, 1] and scene.removed == []
    assert await scene.bus.last_sequence(JobAccepted, "default.again") > second
    await scene.end("again", second)
    await scene.remove()
    assert await scene.left("again") == [0, 0, 0, 0] and scene.removed == ["default.again"]


async def test_an_unread_request_is_kept(scene: Scene) -> None:
    await scene.end("over", await scene.job("over"))
    await scene.bus.publish(replace(request("over"), request_id="not heard yet"))

    await scene.remove()

    assert (await scene.left("over"))[0] == 1 and scene.removed == []


async def test_a_refused_request_is_purged_with_its_answer(scene: Scene) -> None:
    (uid,) = await scene.say(request("wrong"))
    await scene.say(JobRejected(job="wrong", uid=uid, reasons=("no",)))

    await scene.remove()

    assert (await scene.left("wrong"))[0] == 0


async def test_an_unanswered_request_is_kept(scene: Scene) -> None:
    (uid,) = await scene.say(request("twice"))
    await scene.say(JobRejected(job="twice", uid=uid, reasons=("no",)))
    await scene.say(replace(request("twice"), request_id="second"))

    await scene.remove()

    assert (await scene.left("twice"))[0] == 1


async def test_the_view_of_a_purged_job_is_not_written_again(scene: Scene) -> None:
    await scene.end("over", await scene.job("over"))
    assert "default.over" in job_views(scene.state, {}, 0.0, 0.0)

    state = forget_messages(scene.state, "default.over")

    assert job_views(state, {}, 0.0, 0.0) == {} and "default.over" in state.closed
    assert "default.over" not in state.last_decision_seq


async def test_only_the_fact_of_a_deleted_node_is_purged(
    scene: Scene,
) -> None:
    gone, there = node("gone", cpu=1, gone=True), node("there", cpu=1)
    sequences = await scene.say(there, gone)
    await wait_for_copied_facts(scene.bus, sequences[-1])

    await scene.remove()

    assert [heard.message.key() for heard in await read_last_node_facts(scene.bus)] == ["there"]


# ---------------------------------------------------------------- forget requests


async def test_forget_purges_a_finished_job_with_its_program(
    scene: Scene,
) -> None:
    for body in (BODY, OTHER):
        await store_program(scene.bus, HOME, digest_of(body), body)
    await scene.end("mine", await scene.job("mine", digest_of(BODY)))
    await scene.end("other", await scene.job("other", digest_of(OTHER)))
    await scene.say(ForgetRequested(job="mine"))

    await scene.forget()

    assert await scene.left("mine") == [0, 0, 0, 0] and scene.removed == ["default.mine"]
    assert await scene.left("other") == [3, 1, 1, 1]
    assert (
        not await stored(scene.bus, BODY)
        and await stored(scene.bus, OTHER)
        and await parts(scene.bus) == 1
    )


async def test_forget_keeps_a_program_that_another_job_uses(scene: Scene) -> None:
    await store_program(scene.bus, HOME, digest_of(BODY), BODY)
    await scene.end("mine", await scene.job("mine"))
    await scene.end("other", await scene.job("other"))

    await scene.say(ForgetRequested(job="mine"))
    await scene.forget()
    assert await stored(scene.bus, BODY)

    await scene.say(ForgetRequested(job="other"))
    await scene.forget()
    assert not await stored(scene.bus, BODY) and await parts(scene.bus) == 0


async def test_forget_of_a_running_job_purges_nothing_even_after_its_end(
    scene: Scene,
) -> None:
    uid = await scene.job("runs")
    await scene.say(ForgetRequested(job="runs"))

    await scene.forget()
    await scene.end("runs", uid)
    await scene.forget()

    assert await scene.left("runs") == [3, 1, 1, 1] and scene.removed == []


async def test_forget_purges_only_messages_before_a_new_job_with_the_name(
    scene: Scene,
) -> None:
    await scene.end("again", await scene.job("again"))
    await scene.say(ForgetRequested(job="again"))
    second = await scene.job("again")

    await scene.forget()

    assert await scene.left("again") == [2, 2, 1, 1]
    assert await scene.bus.last_sequence(JobRequested, "default.again") == second


async def test_an_unread_forget_request_waits(scene: Scene) -> None:
    await scene.end("over", await scene.job("over"))
    await scene.bus.publish(ForgetRequested(job="over"))

    await scene.forget()

    assert (await scene.left("over"))[0] == 4 and scene.removed == []


# ---------------------------------------------------------------- programs


async def stored(bus: Bus, body: bytes) -> bool:
    return await exists(programs.read_program, bus, HOME, digest_of(body))


async def parts(bus: Bus) -> int:
    info = await bus.js.stream_info(
        "OBJ_weir-programs-default", subjects_filter="$O.weir-programs-default.C.>"
    )
    return sum((info.state.subjects or {}).values())


async def test_unused_programs_are_deleted_and_others_kept(scene: Scene) -> None:
    for body in (BODY, OTHER):
        await store_program(scene.bus, HOME, digest_of(body), body)
    await scene.job("runs", digest_of(BODY))

    for _ in range(2):
        await scene.remove()

    assert await stored(scene.bus, BODY) and not await stored(scene.bus, OTHER)
    assert await parts(scene.bus) == 1


async def test_the_program_of_a_recently_finished_job_is_kept(scene: Scene) -> None:
    await store_program(scene.bus, HOME, digest_of(BODY), BODY)
    await scene.end("over", await scene.job("over"))

    for _ in range(2):
        await scene.remove(later_s=KEPT_S - 60)

    assert await stored(scene.bus, BODY)


async def test_a_program_stored_during_its_deletion_is_complete(
    scene: Scene,
) -> None:
    await store_program(scene.bus, HOME, digest_of(BODY), BODY)
    await scene.remove()
    assert not await stored(scene.bus, BODY) and await parts(scene.bus) == 1

    await store_program(scene.bus, HOME, digest_of(BODY), BODY)
    await remove_unused_programs(scene.bus, scene.state, time.time() - 60)

    assert await stored(scene.bus, BODY)


async def test_storing_an_existing_program_renews_its_age(bus: Bus) -> None:
    await store_program(bus, HOME, digest_of(BODY), BODY)
    between_s = time.time()
    await store_program(bus, HOME, digest_of(BODY), BODY)

    for _ in range(2):
        await remove_unused_programs(bus, State(), between_s)

    assert await stored(bus, BODY) and await parts(bus) == 1


async def test_the_allocators_credentials_permit_the_removal(tmp_path: Path) -> None:
    async with secured_server.guarded(tmp_path) as server:
        root = await wire.connect(server.url, "root", secured_server.unlimited())
        allocator = await wire.connect(server.url, ALLOCATOR, secured_server.credentials(ALLOCATOR))
        scene = Scene(root)
        await store_program(root, HOME, digest_of(BODY), BODY)
        await scene.end("over", await scene.job("over"))
        await wait_for_copied_facts(root, (await scene.say(node("gone", cpu=1, gone=True)))[0])

        removal = Removal(allocator, KEPT_S, lambda: scene.state, scene.removed.append)
        for _ in range(2):
            await removal.remove_expired(time.time() + KEPT_S + 60)

        assert scene.removed == ["default.over"] and await scene.left("over") == [0, 0, 0, 0]
        assert await parts(root) == 0 and await read_last_node_facts(allocator) == []
        for each in (root, allocator):
            await each.close()
