"""Tests of programs in the object store: stored once and complete, and repaired.

They are stored and read as by any client of an object store.
"""

from __future__ import annotations

import os

import msgspec
import pytest
from nats.js.errors import NotFoundError

from shared.auth.permissions import chunk_subject, description_subject, program_stream
from shared.bus import programs
from shared.bus.bus import Bus
from shared.bus.programs import digest_of, meta_token, read_program, store_program

LONG = os.urandom(3 * programs.PART_BYTES + 1)
HOME, BUCKET = "default", "weir-programs-default"


@pytest.mark.parametrize("body", [b"", b"def model(): ...", LONG])
async def test_a_stored_program_is_read_by_weir_and_by_the_nats_library(
    bus: Bus, body: bytes
) -> None:
    await store_program(bus, HOME, digest_of(body), body)

    assert await read_program(bus, HOME, digest_of(body)) == body
    assert ((await (await bus.program_store()).get(digest_of(body))).data or b"") == body


async def test_a_program_stored_by_the_nats_library_is_read(bus: Bus) -> None:
    await (await bus.program_store()).put(digest_of(LONG), LONG)

    assert await read_program(bus, HOME, digest_of(LONG)) == LONG


@pytest.mark.parametrize("by_library", [False, True])
async def test_a_program_that_exists_is_not_stored_again(bus: Bus, by_library: bool) -> None:
    if by_library:
        await (await bus.program_store()).put(digest_of(LONG), LONG)
    for _ in range(2):
        await store_program(bus, HOME, digest_of(LONG), LONG)

    state = (await bus.js.stream_info(program_stream(HOME))).state
    assert state.messages == 4 + 1  # its parts and its description


async def test_a_missing_or_deleted_program_is_not_found(bus: Bus) -> None:
    await store_program(bus, HOME, digest_of(LONG), LONG)
    await (await bus.program_store()).delete(digest_of(LONG))

    for name in (digest_of(LONG), digest_of(b"never")):
        with pytest.raises(NotFoundError):
            await read_program(bus, HOME, name)


async def test_a_program_above_the_size_limit_is_refused(bus: Bus) -> None:
    await store_program(bus, HOME, digest_of(LONG), LONG)

    with pytest.raises(programs.ProgramTooLarge):
        await read_program(bus, HOME, digest_of(LONG), len(LONG) - 1)


# ---------------------------------------------------------------- namespaces


async def test_each_namespace_has_its_own_programs(bus: Bus) -> None:
    await bus.create(namespaces=["red"])
    await store_program(bus, "red", digest_of(LONG), LONG)

    assert await read_program(bus, "red", digest_of(LONG)) == LONG
    with pytest.raises(NotFoundError):
        await read_program(bus, HOME, digest_of(LONG))


async def test_a_missing_bucket_is_distinguished_from_a_bus_outage(
    bus: Bus,
) -> None:
    with pytest.raises(programs.NotProvisioned):
        await programs.read_description(bus, "nowhere", digest_of(LONG))


# ---------------------------------------------------------------- checks of stored programs


async def test_a_program_is_not_stored_under_the_digest_of_another(bus: Bus) -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        await store_program(bus, HOME, digest_of(LONG), b"import os")

    assert (await bus.js.stream_info(program_stream(HOME))).state.messages == 0


async def put_other_content(bus: Bus) -> None:
    """Store other content under the name, as any client of an object store can."""
    await (await bus.program_store()).put(digest_of(LONG), b"import os")


async def put_other_description(bus: Bus, **fields: object) -> None:
    subject = f"{description_subject(BUCKET)}.{meta_token(digest_of(LONG))}"
    await bus.js.publish(
        subject,
        msgspec.json.encode({"name": digest_of(LONG), **fields}),
        headers={"Nats-Rollup": "sub"},
    )


async def lead_to_other_content(bus: Bus) -> None:
    """Store a description that is valid and has the right size, but names other content."""
    right = await programs.read_description(bus, HOME, digest_of(LONG))
    await bus.js.publish(f"{chunk_subject(BUCKET)}.elsewhere", b"#" * 100)
    await put_other_description(bus, nuid="elsewhere", size=right.size, digest=right.digest)


async def add_to_content(bus: Bus) -> None:
    right = await programs.read_description(bus, HOME, digest_of(LONG))
    await bus.js.publish(f"{chunk_subject(BUCKET)}.{right.nuid}", b"# more")


async def lose_content(bus: Bus) -> None:
    right = await programs.read_description(bus, HOME, digest_of(LONG))
    await bus.js.purge_stream(program_stream(HOME), subject=f"{chunk_subject(BUCKET)}.{right.nuid}")


async def lead_everywhere(bus: Bus) -> None:
    right = await programs.read_description(bus, HOME, digest_of(LONG))
    await put_other_description(bus, nuid="*", size=right.size, digest=right.digest)


async def put_nonsense(bus: Bus) -> None:
    await bus.js.publish(f"{description_subject(BUCKET)}.{meta_token(digest_of(LONG))}", b"no json")


async def put_link(bus: Bus) -> None:
    right = await programs.read_description(bus, HOME, digest_of(LONG))
    link = {"link": {"bucket": BUCKET, "name": "elsewhere"}}
    await put_other_description(
        bus, nuid=right.nuid, size=right.size, digest=right.digest, options=link
    )


@pytest.mark.parametrize(
    "spoil",
    [
        put_other_content,
        put_other_description,
        lead_to_other_content,
        add_to_content,
        lose_content,
        lead_everywhere,
        put_nonsense,
        put_link,
    ],
    ids=lambda spoil: spoil.__name__,
)
async def test_a_damaged_program_is_repaired_when_it_is_stored_again(bus: Bus, spoil) -> None:  # type: ignore[no-untyped-def]
    await store_program(bus, HOME, digest_of(LONG), LONG)
    await spoil(bus)

    await store_program(bus, HOME, digest_of(LONG), LONG)

    assert await read_program(bus, HOME, digest_of(LONG)) == LONG
    assert (await (await bus.program_store()).get(digest_of(LONG))).data == LONG


async def test_a_description_knows_its_digest(bus: Bus) -> None:
    await put_other_content(bus)
    assert not (await programs.read_description(bus, HOME, digest_of(LONG))).describes(
        digest_of(LONG)
    )

    await store_program(bus, HOME, digest_of(LONG), LONG)
    info = await programs.read_description(bus, HOME, digest_of(LONG))
    assert (
        info.describes(digest_of(LONG))
        and not info.describes(digest_of(b""))
        and not info.describes("sha256-no")
    )
    await put_link(bus)
    assert not (await programs.read_description(bus, HOME, digest_of(LONG))).describes(
        digest_of(LONG)
    )
