"""The streams and buckets: their configuration, and how they are created and updated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nats.js import JetStreamContext
from nats.js.api import (
    DiscardPolicy,
    KeyValueConfig,
    StreamConfig,
    StreamConsumerLimits,
    StreamSource,
)
from nats.js.errors import APIError, NotFoundError

from shared.auth.permissions import chunk_subject, description_subject, program_stream, stream_of
from shared.bus import intake, subjects
from shared.bus.intake import UNCHANGED_RATES, Rates
from shared.bus.subjects import DEFAULT_NAMESPACE, JOBS, LEDGER, STATE, program_bucket
from shared.messages import GIB, DeadLetter

DAY_S = 86_400.0
MIB = 1 << 20
PROGRAMS_BYTES = 256 * MIB
"""Default size of the program bucket of one namespace, in bytes."""
PROGRAM_READERS = 1_024
"""Consumers that all users of a namespace may have on its program bucket at a time: one for each
pod that starts.
"""
DEAD_S = 30 * DAY_S
DEAD_BYTES = 512 * MIB
"""Size of the dead letters of all namespaces, in bytes; the oldest are discarded.
`dead_letters.LETTERS_A_DAY` keeps one namespace from filling it.
"""
DEAD_PER_SUBJECT = 100
"""Newest dead letters kept of one subject."""
NODES_BYTES = 256 * MIB
"""Size of the last facts of all nodes and namespaces, in bytes: 5,000 nodes with 30 pods each take
a tenth of it.
"""
BUCKETS = (STATE, JOBS, LEDGER)
FORGOTTEN_S = 60.0
"""A consumer from which nobody has read for this time is removed, even if its creator requested
more.
"""
LIMITED = StreamConsumerLimits(inactive_threshold=FORGOTTEN_S)
BUCKET_BOUNDS: dict[str, dict[str, Any]] = {
    JOBS: {"consumer_limits": LIMITED},
    LEDGER: {
        "max_msg_size": intake.LARGEST_ENTRY,
        "duplicate_window": intake.REPORTS_REPEAT_S,
        "allow_rollup_hdrs": False,
    },
}
"""Jobs write the ledger themselves. With a header `Nats-Rollup: all` one of them could remove all
entries of all jobs. Its entries have no ids; the ids of a flood would stay in the server's memory.
"""
NAME_IN_USE = 10058


def stream_configs(
    facts_max_bytes: int = GIB, orders_max_bytes: int = GIB
) -> tuple[StreamConfig, ...]:
    """Return the streams, with disjoint subjects. Orders are refused if the stream is full, old
    facts are discarded, and dead letters stay for a month.

    The last fact of each node, and of each namespace's quotas and claims, is always kept.
    """
    return (
        StreamConfig(
            name=subjects.ORDERS,
            subjects=["weir.job.>", "weir.allocation.>", "weir.cluster.>"],
            discard=DiscardPolicy.NEW,
            max_bytes=orders_max_bytes,
            allow_direct=True,
            consumer_limits=LIMITED,
        ),
        StreamConfig(
            name=subjects.FACTS,
            subjects=["weir.task.>", "weir.training.>", "weir.capacity.>", "weir.service.>"],
            discard=DiscardPolicy.OLD,
            max_bytes=facts_max_bytes,
            allow_direct=True,
            consumer_limits=LIMITED,
        ),
        StreamConfig(
            name=subjects.NODES,
            sources=[StreamSource(name=subjects.FACTS, filter_subject=subjects.CAPACITY)],
            discard=DiscardPolicy.OLD,
            max_msgs_per_subject=1,
            max_bytes=NODES_BYTES,
            allow_direct=True,
            consumer_limits=LIMITED,
        ),
        StreamConfig(
            name=subjects.DEAD,
            subjects=[f"{DeadLetter.PREFIX}.>"],
            discard=DiscardPolicy.OLD,
            max_age=DEAD_S,
            max_bytes=DEAD_BYTES,
            max_msg_size=intake.LARGEST_MESSAGE,
            max_msgs_per_subject=DEAD_PER_SUBJECT,
            duplicate_window=DEAD_S,
        ),
    )


async def create_streams(js: JetStreamContext, replicas: int, orders_max_bytes: int = 0) -> None:
    """Create or update all streams and buckets. `orders_max_bytes` 0: the default, or the current
    size if that is larger.

    The buckets come first, because services wait for the streams only, and need the buckets then.
    """
    await _forget_nodes_of_other_facts(js)
    for bucket in BUCKETS:
        await _create_bucket(js, bucket, replicas)
    for config in (replace(config, num_replicas=replicas) for config in stream_configs()):
        await _create_stream(js, config, orders_max_bytes if config.name == subjects.ORDERS else 0)


async def current_replicas(js: JetStreamContext) -> int:
    """Return the number of servers that keep `weir-orders`; 1 if the stream does not exist yet."""
    try:
        return (await js.stream_info(subjects.ORDERS)).config.num_replicas or 1
    except NotFoundError:
        return 1


async def _forget_nodes_of_other_facts(js: JetStreamContext) -> None:
    """Remove the copies of facts whose stream no longer exists. Otherwise the first facts of the
    new stream would not be copied.
    """
    try:
        await js.stream_info(subjects.FACTS)
    except NotFoundError:
        with contextlib.suppress(NotFoundError):
            await js.delete_stream(subjects.NODES)


def with_default(namespaces: Iterable[str]) -> list[str]:
    """Return the namespaces to provision: `default` first, then the given ones, each once."""
    return list(dict.fromkeys((DEFAULT_NAMESPACE, *namespaces)))


def stream_names(namespaces: Iterable[str]) -> list[str]:
    """Return the names of all streams, those behind buckets too, of these namespaces and of
    `default`.
    """
    names = [*map(stream_of, BUCKETS), *(str(config.name) for config in stream_configs())]
    for namespace in with_default(namespaces):
        names.append(program_stream(namespace))
        names += [str(config.name) for config in intake.stream_configs(namespace)]
    return names


async def create_namespace(
    js: JetStreamContext,
    namespace: str,
    replicas: int = 1,
    programs_max_bytes: int = 0,
    rates: Rates = UNCHANGED_RATES,
) -> None:
    """Create or update the objects on the bus for the jobs of one namespace: the bucket of its
    programs, and its intake.

    `programs_max_bytes` 0: the default, or the current size of the bucket if that is larger. Safe
    to repeat.
    """
    config = replace(program_bucket_config(namespace), num_replicas=replicas)
    await _create_stream(js, config, programs_max_bytes)
    for config in intake.stream_configs(namespace):
        await _create_stream(js, replace(config, num_replicas=replicas), 0)
    for route in intake.routes(namespace, rates):
        await intake.connect_route(js, route)


def program_bucket_config(namespace: str) -> StreamConfig:
    """Return the stream of a namespace's program bucket, as every client of an object store would
    create it.
    """
    bucket = program_bucket(namespace)
    return StreamConfig(
        name=program_stream(namespace),
        subjects=[f"{chunk_subject(bucket)}.>", f"{description_subject(bucket)}.>"],
        max_bytes=PROGRAMS_BYTES,
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        allow_direct=True,
        max_consumers=PROGRAM_READERS,
        consumer_limits=LIMITED,
    )


async def _create_stream(js: JetStreamContext, config: StreamConfig, max_bytes: int) -> None:
    """Create a stream, or update it. An existing stream keeps its size if that is larger, and its
    sources.

    The limit on its consumers is not changed: the server does not allow it.
    """
    try:
        await js.add_stream(replace(config, max_bytes=max_bytes or config.max_bytes))
    except APIError as error:
        if error.err_code != NAME_IN_USE:
            raise
        there = (await js.stream_info(str(config.name))).config
        size = max_bytes or max(config.max_bytes or 0, there.max_bytes or 0)
        await js.update_stream(
            replace(
                config,
                max_bytes=size,
                sources=there.sources or config.sources,
                max_consumers=there.max_consumers,
            )
        )


async def _create_bucket(js: JetStreamContext, bucket: str, replicas: int) -> None:
    """Create or update a bucket. A bucket of an earlier version does not yet allow reading entries
    by key.
    """
    try:
        await js.create_key_value(KeyValueConfig(bucket=bucket, direct=True, replicas=replicas))
    except APIError as error:
        if error.err_code != NAME_IN_USE:
            raise
    there = (await js.stream_info(stream_of(bucket))).config
    bounds = BUCKET_BOUNDS.get(bucket, {})
    await js.update_stream(replace(there, allow_direct=True, num_replicas=replicas, **bounds))
