"""Programs in the object store: kept once, as any client of one would, and read whole."""

from __future__ import annotations

import hashlib
import os

import pytest
from nats.js.errors import NotFoundError

from shared import programs
from shared.bus import Bus

LONG = os.urandom(3 * programs.PART_BYTES + 1)


def digest(body: bytes) -> str:
    return f"sha256-{hashlib.sha256(body).hexdigest()}"


@pytest.mark.parametrize("body", [b"", b"def model(): ...", LONG])
async def test_what_is_kept_is_read_whole_by_us_and_by_the_library(bus: Bus, body: bytes) -> None:
    await programs.keep(bus, digest(body), body)

    assert await programs.fetched(bus, digest(body)) == body
    assert ((await (await bus.programs()).get(digest(body))).data or b"") == body


async def test_what_the_library_keeps_is_read(bus: Bus) -> None:
    await (await bus.programs()).put(digest(LONG), LONG)

    assert await programs.fetched(bus, digest(LONG)) == LONG


async def test_what_is_there_is_not_kept_again(bus: Bus) -> None:
    for _ in range(2):
        await programs.keep(bus, digest(LONG), LONG)

    state = (await bus.js.stream_info(programs.PROGRAM_STREAM)).state
    assert state.messages == 4 + 1  # its parts, and what it is


async def test_what_is_not_there_or_was_deleted_is_not_found(bus: Bus) -> None:
    await programs.keep(bus, digest(LONG), LONG)
    await (await bus.programs()).delete(digest(LONG))

    for name in (digest(LONG), digest(b"never")):
        with pytest.raises(NotFoundError):
            await programs.fetched(bus, name)


async def test_more_than_may_travel_is_refused(bus: Bus) -> None:
    await programs.keep(bus, digest(LONG), LONG)

    with pytest.raises(programs.TooLarge):
        await programs.fetched(bus, digest(LONG), len(LONG) - 1)
