"""Tests of two launchers: late orders and actions of one without the lease are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from nats.js.errors import NotFoundError

from services.launcher import service
from services.launcher.service import Launcher
from services.launcher.settings import Settings
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.bus.subjects import STATE
from shared.kube.client import Api, connect_api
from shared.messages import ClusterSpecPublished, GenerationAbandoned
from shared.runtime.leadership import Deposed, Lease
from tests.launcher.builders import JOB, UID
from tests.shared.kube.api_server import ApiServer, api_server

PODS = "/api/v1/namespaces/default/pods"


def abandoned(generation: int, reason: str = "test") -> GenerationAbandoned:
    return GenerationAbandoned(job=JOB, uid=UID, generation=generation, reason=reason)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server() as running:
        yield running


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    made = await connect_api(Settings(kube_url=server.url), "test", lambda: 0.5)
    yield made
    await made.close()


def launcher(bus: Bus, api: Api, **settings: float) -> Launcher:
    made = Launcher(bus, api, Settings(**settings))  # type: ignore[arg-type]
    made.replaying = False
    return made


async def orders(bus: Bus) -> list[int]:
    """Return the generations of the abandonments that the stream holds."""
    last = (await bus.js.stream_info(subjects.ORDERS)).state.last_seq
    found = [await bus.js.get_msg(subjects.ORDERS, n) for n in range(1, last + 1)]
    read = [subjects.decode_message(raw.subject or "", raw.data or b"") for raw in found]
    return [message.generation for message in read if isinstance(message, GenerationAbandoned)]


def after_the_look(bus: Bus, act: Callable[[], object]) -> None:
    """Call `act` between the last check of the lease and the write."""
    store = bus.publisher.store_message

    async def late(
        subject: str, body: bytes, headers: dict[str, str], wait_for_room: bool = True
    ) -> int:
        bus.publisher.store_message = store  # type: ignore[method-assign]
        await act()  # type: ignore[misc]
        return await store(subject, body, headers, wait_for_room)

    bus.publisher.store_message = late  # type: ignore[method-assign]


async def test_an_order_is_refused_if_a_later_leader_has_ordered_for_the_job(
    bus: Bus, api: Api
) -> None:
    late, leader = launcher(bus, api), launcher(bus, api)
    after_the_look(bus, lambda: leader.publish(abandoned(2)))
    await late.publish(abandoned(1))

    assert await orders(bus) == [2]
    assert late.dirty == {UID} and not late.view.bus_state.jobs, (
        "it thinks again, and does not believe that it was said"
    )


async def test_orders_of_one_launcher_are_accepted_in_order(bus: Bus, api: Api) -> None:
    leader = launcher(bus, api)
    for generation in (1, 2, 3):
        await leader.publish(abandoned(generation))
    assert await orders(bus) == [1, 2, 3]


async def test_orders_of_others_are_read_before_ordering(bus: Bus, api: Api) -> None:
    leader = launcher(bus, api)
    await bus.publish(abandoned(1))
    saying = asyncio.ensure_future(leader.publish(abandoned(2)))
    await asyncio.sleep(0.1)
    assert not saying.done()
    heard = await bus.last_message(GenerationAbandoned, abandoned(1).key())
    assert isinstance(heard, StoredMessage)
    await leader.on_fact(heard)
    await saying
    assert await orders(bus) == [1] and leader.dirty == {UID}
    await leader.publish(abandoned(2))
    assert await orders(bus) == [1, 2]


async def test_an_unreadable_order_is_awaited_once(bus: Bus, api: Api) -> None:
    leader = launcher(bus, api, echo_s=0.1)
    await bus.js.publish(subjects.pattern(ClusterSpecPublished, abandoned(1).key()), b"{not json")
    await leader.publish(abandoned(1))
    await leader.publish(abandoned(1))
    assert await bus.last_message(GenerationAbandoned, abandoned(1).key())


async def test_a_launcher_without_the_lease_changes_nothing(
    bus: Bus, api: Api, server: ApiServer
) -> None:
    bus.must_lead = api.may_change = Lease(bus, "launcher", 1.0, "nobody").must_lead
    for method in ("POST", "DELETE", "PATCH"):
        with pytest.raises(Deposed):
            await api.call(method, PODS, {"metadata": {"name": "late"}})
    with pytest.raises(Deposed):
        await service.store_snapshot(bus, service.Snapshot())
    assert await api.list_page("/api/v1/pods", {}) and not server.names("pods"), "it may look"
    with pytest.raises(NotFoundError):
        await (await bus.bucket(STATE)).get(service.KEY)
