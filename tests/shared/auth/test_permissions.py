"""Tests that a user of a real server publishes and receives only what the table permits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig

from shared.auth import authority
from shared.auth.permissions import (
    ALLOCATOR,
    BUCKET_STREAMS,
    JOB,
    LAUNCHER,
    MONITOR,
    MOST_TRAINERS,
    OPERATOR,
    PAGE,
    PUBLISHED_BY,
    PUT_BACK_BY,
    READERS_BLOCK,
    RECEIVED_BY,
    SERVICES,
    SETUP,
    SLOTS,
    SUBMITTER,
    bucket_subject,
    chunk_subject,
    consumer_name,
    description_subject,
    inbox_prefix,
    lease_key,
    program_stream,
    reader_blocks,
    reader_names,
    submitter_consumers,
)
from shared.bus import streams, subjects
from shared.bus.bus import Bus
from shared.bus.consumer import PullConsumer
from shared.bus.programs import meta_token
from shared.bus.subjects import DEAD, FACTS, JOBS, LEDGER, NODES, ORDERS, STATE, program_bucket
from shared.bus.tail import TooManyReaders
from shared.messages import (
    MESSAGES,
    CapacityChanged,
    ClaimsChanged,
    Message,
    QuotaChanged,
    ServiceTroubled,
    TaskExited,
    TaskReady,
    TaskStarted,
    TaskUpdated,
)
from tests.conftest import NatsServer
from tests.shared import secured_server
from tests.shared.secured_server import Visitor, credentials, visitor

TASK_FACTS = (TaskReady, TaskStarted, TaskExited, TaskUpdated)
"""Facts that trainers may also receive about their own job.

One filter covers all facts that they need.
"""
USERS = (MONITOR, ALLOCATOR, LAUNCHER, SETUP, PAGE, OPERATOR, SUBMITTER, JOB)
WHOLE = (
    ALLOCATOR,
    LAUNCHER,
    PAGE,
    OPERATOR,
)  # their consumers have several filters, which the server does not check
OWN, NEIGHBOUR, STRANGER = "team-a.mine", "team-a.other", "team-b.mine"
ALLOWED_FOREIGN = {JOB: (), SUBMITTER: (NEIGHBOUR,)}
ORDINARY = {"ack_policy": "none", "deliver_policy": "all", "replay_policy": "instant"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with secured_server.guarded(tmp_path) as running:
        yield running


def keys_of(user: str) -> list[tuple[str, bool]]:
    """Return keys, and for each whether the user has access to it."""
    if user not in ALLOWED_FOREIGN:
        return [(OWN, True), (STRANGER, True)]
    return [(OWN, True), *((key, key in ALLOWED_FOREIGN[user]) for key in (NEIGHBOUR, STRANGER))]


def subject_of(kind: type[Message], key: str) -> str:
    """Return the subject of a kind of message for a key.

    The key of a node or a service has no namespace and no dots. That of quotas and claims is a
    namespace.
    """
    key = key.partition(".")[0] if kind in (QuotaChanged, ClaimsChanged) else key
    return subjects.pattern(
        kind, key.replace(".", "_") if kind in (CapacityChanged, ServiceTroubled) else key
    )


def consumer_of(user: str) -> str:
    """Return the name of a consumer that a user may create, if it may read at all."""
    named = {SUBMITTER: submitter_consumers("team-a")[0], JOB: reader_names(*OWN.split("."), 0)[0]}
    return named.get(user, "a-name")


async def hears(guest: Visitor, kind: type[Message], key: str) -> bool:
    """Return whether the guest may follow the messages of a kind, or read the last one.

    It may follow them with a filter for the kind, or for all kinds of the same group.
    """
    subject, api = subject_of(kind, key), f"{guest.client.api}."
    stream, kin = subjects.stream_holding(subject), subject.split(".")
    kin[2] = "*"
    user = guest.client.user.split(".")[0]
    made = [
        f"CONSUMER.CREATE.{stream}.{consumer_of(user)}.{each}" for each in (subject, ".".join(kin))
    ]
    return any(
        [await guest.may_say(api + asked) for asked in (*made, f"DIRECT.GET.{stream}.{subject}")]
    )


def test_the_permission_table_has_every_message() -> None:
    assert set(PUBLISHED_BY) == set(RECEIVED_BY) == set(MESSAGES)


@pytest.mark.parametrize("user", USERS)
async def test_a_user_publishes_only_what_the_table_permits(server: NatsServer, user: str) -> None:
    async with visitor(server.url, credentials(user)) as guest:
        for kind in MESSAGES:
            for key, own in keys_of(user):
                may = own and user in (*PUBLISHED_BY[kind], *PUT_BACK_BY)
                assert await guest.may_say(subject_of(kind, key)) == may, (kind, key)


@pytest.mark.parametrize("user", USERS)
async def test_only_the_operator_subscribes_to_subjects_and_nobody_to_another_inbox(
    server: NatsServer, user: str
) -> None:
    async with visitor(server.url, credentials(user)) as guest:
        for kind in MESSAGES:
            assert await guest.may_subscribe(subjects.pattern(kind, OWN)) == (user == OPERATOR)
            assert await guest.may_subscribe(subjects.pattern(kind)) == (user == OPERATOR)
        for subject in (
            ">",
            "$JS.>",
            "weir-api.>",
            "$KV.>",
            "$O.>",
            "$SYS.>",
            "_INBOX_job.>",
            "weir-usage.>",
        ):
            assert not await guest.may_subscribe(subject), subject
        for other in USERS:
            name = {JOB: f"{JOB}.{OWN}", SUBMITTER: f"{SUBMITTER}.team-a"}.get(other, other)
            assert await guest.may_subscribe(f"{inbox_prefix(name)}.>") == (other == user)
        assert not await guest.may_subscribe(f"{inbox_prefix(f'{JOB}.{NEIGHBOUR}')}.>")


@pytest.mark.parametrize("user", [user for user in USERS if user not in WHOLE])
async def test_a_user_receives_only_what_the_table_permits(server: NatsServer, user: str) -> None:
    async with visitor(server.url, credentials(user)) as guest:
        for kind in MESSAGES:
            for key, own in keys_of(user):
                may = own and (user in RECEIVED_BY[kind] or (user == JOB and kind in TASK_FACTS))
                assert await hears(guest, kind, key) == may, (kind, key)


@pytest.mark.parametrize("user", USERS)
async def test_only_the_setup_user_changes_a_stream(server: NatsServer, user: str) -> None:
    async with visitor(server.url, credentials(user)) as guest:
        for stream in (ORDERS, FACTS, DEAD, PROGRAMS, *BUCKET_STREAMS):
            purges = user == ALLOCATOR and stream not in (DEAD, f"KV_{STATE}")
            assert await guest.may_say(f"$JS.API.STREAM.PURGE.{stream}") == purges, stream
            for verb in ("DELETE", "MSG.DELETE", "SNAPSHOT", "RESTORE"):
                assert not await guest.may_say(f"$JS.API.STREAM.{verb}.{stream}")
            for verb in ("CREATE", "UPDATE"):
                assert await guest.may_say(f"$JS.API.STREAM.{verb}.{stream}") == (user == SETUP)
        assert await guest.may_say(f"$JS.API.STREAM.DELETE.{NODES}") == (user == SETUP)
        assert await guest.may_say(f"$JS.API.STREAM.PURGE.{NODES}") == (user == ALLOCATOR)


@pytest.mark.parametrize("user", USERS)
async def test_only_readers_of_all_nodes_may_read_the_last_fact_of_each_node(
    server: NatsServer, user: str
) -> None:
    async with visitor(server.url, credentials(user)) as guest:
        asked = f"{guest.client.api}.CONSUMER.CREATE.{NODES}.a-name.{subjects.CAPACITY}"
        assert await guest.may_say(asked) == (user in (ALLOCATOR, PAGE, OPERATOR))


@pytest.mark.parametrize("user", USERS)
async def test_a_consumer_can_be_used_only_by_its_own_service(
    server: NatsServer, user: str
) -> None:
    async with visitor(server.url, credentials(user)) as guest:
        for owner in (ALLOCATOR, LAUNCHER):
            for stream in (ORDERS, FACTS):
                own = f"{stream}.{consumer_name(owner, stream)}"
                asked = [
                    f"{guest.client.api}.CONSUMER.{verb}.{own}" for verb in ("MSG.NEXT", "DELETE")
                ]
                for subject in (*asked, f"$JS.ACK.{own}.1.1.1.1.0"):
                    assert await guest.may_say(subject) == (user == owner), subject
                if user != owner:
                    made = f"{guest.client.api}.CONSUMER.CREATE.{own}"
                    assert not await guest.may_say(made) and not await guest.may_say(
                        f"{made}.weir.cluster.*.{OWN}"
                    )


BUCKET, FOREIGN_BUCKET = program_bucket("team-a"), program_bucket("team-b")
PROGRAMS, FOREIGN_PROGRAMS = program_stream("team-a"), program_stream("team-b")
META, FOREIGN_META = description_subject(BUCKET), description_subject(FOREIGN_BUCKET)
TOKEN, OTHER_TOKEN = meta_token(secured_server.DIGEST), meta_token(secured_server.OTHER_DIGEST)
WRITERS = {
    bucket_subject(STATE, ALLOCATOR): (ALLOCATOR,),
    bucket_subject(STATE, LAUNCHER): (LAUNCHER,),
    bucket_subject(STATE, f"{ALLOCATOR}.a.0"): (ALLOCATOR,),
    bucket_subject(STATE, f"{LAUNCHER}.a.0"): (LAUNCHER,),
    **{bucket_subject(STATE, lease_key(user)): (user,) for user in SERVICES},
    bucket_subject(JOBS, OWN): (ALLOCATOR,),
    bucket_subject(LEDGER, OWN): (JOB,),
    bucket_subject(LEDGER, NEIGHBOUR): (),
    f"{META}.{TOKEN}": (OPERATOR, SUBMITTER),
    f"{chunk_subject(BUCKET)}.any": (OPERATOR, SUBMITTER),
    f"{FOREIGN_META}.{TOKEN}": (OPERATOR,),
    f"{chunk_subject(FOREIGN_BUCKET)}.any": (OPERATOR,),
}
READERS = {
    f"KV_{STATE}.{bucket_subject(STATE, ALLOCATOR)}": (ALLOCATOR, PAGE, OPERATOR),
    f"KV_{STATE}.{bucket_subject(STATE, LAUNCHER)}": (LAUNCHER,),
    f"KV_{STATE}.{bucket_subject(STATE, f'{ALLOCATOR}.a.0')}": (ALLOCATOR, PAGE, OPERATOR),
    f"KV_{STATE}.{bucket_subject(STATE, f'{LAUNCHER}.a.0')}": (LAUNCHER,),
    **{f"KV_{STATE}.{bucket_subject(STATE, lease_key(user))}": (user,) for user in SERVICES},
    f"KV_{LEDGER}.{bucket_subject(LEDGER, OWN)}": (JOB,),
    f"KV_{LEDGER}.{bucket_subject(LEDGER, NEIGHBOUR)}": (),
    f"{PROGRAMS}.{META}.{TOKEN}": (ALLOCATOR, OPERATOR, SUBMITTER, JOB),
    f"{PROGRAMS}.{META}.{OTHER_TOKEN}": (ALLOCATOR, OPERATOR, SUBMITTER),
    f"{PROGRAMS}.{META}.*": (ALLOCATOR, OPERATOR, SUBMITTER),
    f"{PROGRAMS}.{chunk_subject(BUCKET)}.any": (ALLOCATOR,),
    f"{PROGRAMS}.>": (),
    f"{FOREIGN_PROGRAMS}.{FOREIGN_META}.{TOKEN}": (ALLOCATOR, OPERATOR),
}
PULLED = {
    f"KV_{JOBS}.x.{bucket_subject(JOBS, 'team-a.*')}": (PAGE, OPERATOR, SUBMITTER),
    f"KV_{JOBS}.x.{bucket_subject(JOBS, '*.*')}": (PAGE, OPERATOR),
    f"KV_{LEDGER}.x.{bucket_subject(LEDGER, OWN)}": (),
    f"{PROGRAMS}.x.{chunk_subject(BUCKET)}.any": (OPERATOR, SUBMITTER, JOB),
    f"{PROGRAMS}.x.{META}.*": (),
    f"{PROGRAMS}.x.$O.{BUCKET}.>": (),
    f"{PROGRAMS}.x": (),
    f"{FOREIGN_PROGRAMS}.x.{chunk_subject(FOREIGN_BUCKET)}.any": (OPERATOR,),
}


@pytest.mark.parametrize("user", USERS)
async def test_bucket_entries_are_read_and_written_only_by_their_users(
    server: NatsServer, user: str
) -> None:
    async with visitor(server.url, credentials(user)) as guest:
        api = guest.client.api
        for subject, users in WRITERS.items():
            assert await guest.may_say(subject) == (user in users), subject
        for subject, users in READERS.items():
            assert await guest.may_say(f"{api}.DIRECT.GET.{subject}") == (user in users), subject
        for subject, users in PULLED.items():
            named = subject.replace(".x", f".{consumer_of(user)}")
            assert await guest.may_say(f"{api}.CONSUMER.CREATE.{named}") == (user in users), subject


async def test_outside_users_cannot_read_stream_contents_directly(server: NatsServer) -> None:
    for user in (JOB, SUBMITTER):
        async with visitor(server.url, credentials(user)) as guest:
            for api in ("$JS.API", guest.client.api):
                for stream in (ORDERS, FACTS, DEAD, PROGRAMS, *BUCKET_STREAMS):
                    for verb in (
                        "STREAM.INFO",
                        "STREAM.MSG.GET",
                        "DIRECT.GET",
                        "CONSUMER.NAMES",
                        "CONSUMER.LIST",
                    ):
                        assert not await guest.may_say(f"{api}.{verb}.{stream}"), verb


# ------------------------------------------------------------ consumers


async def accepted_consumers(guest: Visitor, names: list[str], filtered: str) -> int:
    """Return how many durable consumers with these names we may create on the orders stream."""
    accepted = 0
    for name in names:
        config = {**ORDINARY, "name": name, "durable_name": name, "filter_subject": filtered}
        subject = f"{guest.client.api}.CONSUMER.CREATE.{ORDERS}.{name}.{filtered}"
        with contextlib.suppress(NatsError):
            answer = await guest.asked(subject, {"stream_name": ORDERS, "config": config})
            accepted += "error" not in answer
    return accepted


async def test_a_submitter_has_a_few_consumers_with_names_of_its_own_namespace(
    server: NatsServer,
) -> None:
    filtered = "weir.*.*.team-a.*"
    async with visitor(server.url, credentials(SUBMITTER)) as guest:
        free = [f"hoard-{number}" for number in range(5)]
        assert await accepted_consumers(guest, free, filtered) == 0
        assert await accepted_consumers(guest, submitter_consumers("team-b")[:5], filtered) == 0
        assert await accepted_consumers(guest, submitter_consumers("team-a"), filtered) == SLOTS
        assert not await guest.may_say(
            f"{guest.client.api}.CONSUMER.MSG.NEXT.{ORDERS}.{submitter_consumers('team-b')[0]}"
        )

        with pytest.raises(TooManyReaders, match="has 32 readers of weir-orders already"):
            await anext(guest.bus.tail([f"weir.job.accepted.team-a.{name}" for name in "ab"]))


async def test_a_job_creates_and_pulls_only_consumers_with_its_own_names(
    server: NatsServer,
) -> None:
    filtered, own = f"weir.cluster.*.{OWN}", reader_names(*OWN.split("."), 0)
    others = (
        *reader_names(*NEIGHBOUR.split("."), 0),
        *submitter_consumers("team-a"),
        *submitter_consumers("team-b"),
    )
    async with visitor(server.url, credentials(JOB)) as guest:
        assert (
            await accepted_consumers(
                guest, ["hoard", others[0], reader_names(*OWN.split("."), 1)[0]], filtered
            )
            == 0
        )
        assert await accepted_consumers(guest, own, filtered) == READERS_BLOCK
        for name in others:
            assert not await guest.may_say(
                f"{guest.client.api}.CONSUMER.MSG.NEXT.{ORDERS}.{name}"
            ), name

        with pytest.raises(
            NatsError,
            match=r"8 names of job\.team-a\.mine for a consumer of weir-orders are in use",
        ):
            await anext(
                Bus(guest.client, "impatient", patient=False).tail(
                    [f"weir.cluster.published.{OWN}"]
                )
            )


async def test_the_largest_accepted_job_connects_and_has_a_consumer_name_for_each_trainer(
    server: NatsServer,
) -> None:
    blocks = reader_blocks(MOST_TRAINERS)
    text = authority.job_credentials(
        authority.job_signer(secured_server.KEYS),
        *OWN.split("."),
        "m",
        os.urandom(32),
        secured_server.NOW_S,
        reader_blocks=blocks,
    )
    async with visitor(server.url, text) as guest:
        last = reader_names(*OWN.split("."), blocks - 1)[-1]
        assert (
            len(guest.client.consumer_names) >= MOST_TRAINERS
            and guest.client.consumer_names[-1] == last
        )
        assert await accepted_consumers(guest, [last], f"weir.cluster.*.{OWN}") == 1


async def test_a_job_cannot_remove_the_ledger_entries_of_others(server: NatsServer) -> None:
    theirs = bucket_subject(LEDGER, STRANGER)
    async with visitor(server.url, credentials(JOB, STRANGER)) as stranger:
        await stranger.client.request(theirs, b"{}", timeout=60)
    async with visitor(server.url, credentials(JOB)) as guest:
        answer = await guest.client.request(
            bucket_subject(LEDGER, OWN), b"{}", timeout=60, headers={"Nats-Rollup": "all"}
        )
        assert "rollup not permitted" in json.loads(answer.data)["error"]["description"]

    assert theirs in await orders_in(server)


async def test_readers_of_programs_are_counted_for_each_namespace(server: NatsServer) -> None:
    async with visitor(server.url, credentials(OPERATOR)) as person:
        config = (await person.bus.js.stream_info(program_stream("team-a"))).config
    assert config.max_consumers == streams.PROGRAM_READERS
    assert (
        config.consumer_limits and config.consumer_limits.inactive_threshold == streams.FORGOTTEN_S
    )


@pytest.mark.parametrize("user", [SUBMITTER, JOB])
async def test_an_unused_durable_consumer_is_deleted(server: NatsServer, user: str) -> None:
    filtered, name = (
        f"weir.cluster.*.{OWN}" if user == JOB else "weir.*.*.team-a.*",
        consumer_of(user),
    )
    async with visitor(server.url, credentials(user)) as guest:
        config = {**ORDINARY, "name": name, "durable_name": name, "filter_subject": filtered}
        subject = f"{guest.client.api}.CONSUMER.CREATE.{ORDERS}.{name}.{filtered}"
        made = await guest.asked(subject, {"stream_name": ORDERS, "config": config})
        longer = await guest.asked(
            subject,
            {"stream_name": ORDERS, "config": {**config, "inactive_threshold": 61_000_000_000}},
        )

    assert made["config"]["inactive_threshold"] == streams.FORGOTTEN_S * 1e9
    assert "inactive threshold exceeds" in longer["error"]["description"]


# ------------------------------------------------------------ reply subjects and push consumers


async def lie(guest: Visitor) -> None:
    """Publish on our own subject an order for another job, and an acknowledgement (+TERM)."""
    assert await guest.may_say(f"weir.training.saved.{OWN}", b'{"fact":"cluster.published"}')
    await guest.client.request(f"weir.training.saved.{OWN}", b"+TERM", timeout=60)


async def orders_in(server: NatsServer) -> dict[str, int]:
    async with visitor(server.url, credentials(OPERATOR)) as person:
        found: dict[str, int] = {}
        for stream in (ORDERS, f"KV_{LEDGER}", FACTS):
            found |= (
                await person.bus.js.stream_info(stream, subjects_filter=">")
            ).state.subjects or {}
        return found


async def test_a_reply_subject_without_publish_permission_is_refused(server: NatsServer) -> None:
    """The server checks the subject of a request, but not the subject of its reply."""
    targets = (
        f"weir.cluster.published.{STRANGER}",
        f"weir.task.ready.{STRANGER}",
        bucket_subject(LEDGER, NEIGHBOUR),
    )
    async with visitor(server.url, credentials(JOB)) as guest:
        await lie(guest)
        api, subject = guest.client.api, f"weir.training.progress.{OWN}"
        await guest.may_say(subject, b'{"fact":"cluster.published"}')
        for target in targets:
            assert await guest.may_say(f"{api}.DIRECT.GET.{FACTS}.{subject}", reply=target)
            assert await guest.may_say(subject, b"{}", reply=target)
        await asyncio.sleep(0.3)

    assert set(await orders_in(server)) == {subject, f"weir.training.saved.{OWN}"}


async def test_a_push_consumer_can_neither_write_nor_acknowledge(
    server: NatsServer,
) -> None:
    async with (
        visitor(server.url, credentials(ALLOCATOR)) as service,
        visitor(server.url, credentials(OPERATOR)) as person,
        visitor(server.url, credentials(JOB)) as guest,
    ):
        reply = await unacknowledged(server, service)
        await person.may_subscribe("weir.>")
        await lie(guest)
        filtered = f"weir.training.*.{OWN}"
        for number, target in enumerate(
            (reply, f"weir.cluster.published.{STRANGER}", bucket_subject(LEDGER, NEIGHBOUR))
        ):
            name = reader_names(*OWN.split("."), 0)[number]
            config: dict[str, Any] = {
                "name": name,
                "filter_subject": filtered,
                "deliver_subject": target,
            }
            asked = f"{guest.client.api}.CONSUMER.CREATE.{FACTS}.{name}.{filtered}"
            answer = await guest.asked(
                asked, {"stream_name": FACTS, "config": {**config, **ORDINARY}}
            )
            assert answer is not None
        await asyncio.sleep(0.3)
        assert await pending(server) == 1

    assert set(await orders_in(server)) == {
        f"weir.job.requested.{STRANGER}",
        f"weir.training.saved.{OWN}",
    }


async def unacknowledged(server: NatsServer, service: Visitor) -> str:
    """Give the allocator one message. Return the subject of its acknowledgement."""
    async with visitor(server.url, credentials(OPERATOR)) as person:
        await person.bus.js.publish(f"weir.job.requested.{STRANGER}", b"{}")
    name = consumer_name(ALLOCATOR, ORDERS)
    await service.bus.js.add_consumer(
        ORDERS, ConsumerConfig(durable_name=name, ack_policy=AckPolicy.EXPLICIT)
    )
    return (await PullConsumer(service.client, ORDERS, name).next()).reply


async def pending(server: NatsServer) -> int:
    """Return how many messages the allocator has not acknowledged.

    It creates its consumer once more, as the allocator itself would.
    """
    async with visitor(server.url, credentials(ALLOCATOR)) as service:
        config = ConsumerConfig(
            durable_name=consumer_name(ALLOCATOR, ORDERS), ack_policy=AckPolicy.EXPLICIT
        )
        return int((await service.bus.js.add_consumer(ORDERS, config)).num_ack_pending or 0)
