"""The streams are made by one command, which gives a full one room, too."""

from __future__ import annotations

from shared.bus import Bus
from shared.streams import GIB
from shared.subjects import ORDERS
from tests.cli.conftest import Prompt
from tests.shared.words import request


async def room(bus: Bus) -> int:
    return int((await bus.js.stream_info(ORDERS)).config.max_bytes or 0)


async def test_who_asks_for_room_gets_it_and_keeps_it(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    assert await room(bus) == GIB

    said = await prompt("streams", "create", "--orders-gib", 2, "--nats", nats_url)
    assert said.code == 0 and await room(bus) == 2 * GIB

    await prompt("streams", "create", "--nats", nats_url)
    assert await room(bus) == 2 * GIB


async def test_a_person_is_told_that_there_is_no_room_and_how_to_make_some(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await bus.publish(request())
    await bus.js.update_stream((await bus.js.stream_info(ORDERS)).config, max_bytes=1)

    said = await prompt("cancel", "digits", "--nats", nats_url)

    assert said.code == 1
    assert "has no room for it (maximum bytes exceeded); `weir streams create --orders-gib N` makes some" in said.err
