"""The intake of a namespace: streams, bounded by the server, for what its submitters and jobs
publish.

Law: credentials from outside (a submitter's, a job's) publish to streams of their own namespace
only. Orders, facts and dead letters source from those at a limited rate. So a flood fills the
intake of its own namespace; what reaches the streams that all namespaces share is bounded in bytes
per second, in message size and in messages per subject.

    weir-intake-<namespace>    requests, cancellations, ends of jobs     -> weir-orders    full: refused
    weir-reports-<namespace>   facts of its jobs' tasks and training     -> weir-facts     full: oldest discarded
                               letters of its jobs' ledger entries       -> weir-dead

The server does all of it. A route is a durable consumer with a rate limit, from which the shared
stream sources. A message is removed from the intake once its copy is stored. Outside, subjects are
as inside (`permissions.imported_subjects`); in the intake they begin with `weir-intake.`, and a
route gives them their name back.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StreamConfig,
    StreamConsumerSource,
    StreamSource,
    SubjectTransform,
)
from nats.js.errors import NotFoundError

from shared.auth import permissions
from shared.auth.permissions import INTAKE, JOB, PUBLISHED_BY, SUBMITTER
from shared.bus import subjects
from shared.bus.subjects import DEAD, FACTS, ORDERS

KIB, MIB = 1 << 10, 1 << 20
LARGEST_MESSAGE = 256 * KIB
"""The largest message from outside in bytes. This amount also passes as one burst, before the rates
below apply.
"""
LARGEST_ENTRY = 64 * KIB
"""Bytes of a job's entry in the ledger, which it writes itself."""
INTAKE_BYTES, REPORTS_BYTES = 16 * MIB, 16 * MIB
"""Bytes that wait in the two streams of a namespace."""
INTAKE_PER_SUBJECT, REPORTS_PER_SUBJECT = 64, 5_000
"""Messages that wait on one subject: requests of one name, or facts of one kind of one job."""
LETTERS_KIB_S = 1
REPORTS_REPEAT_S = 5.0
"""The time for which a repeated fact is recognised. The server keeps the ids of all facts of this
time in memory, also during a flood.
"""
PENDING = 1_000
HEARTBEAT_S = 1.0
SECRET_BYTES = 16


@dataclass(frozen=True)
class Rates:
    """The rates at which the messages of one namespace pass on to orders and to facts, in KiB a
    second.

    0: unchanged, or the default if the namespace is new.
    """

    requests: int = 0
    reports: int = 0


DEFAULT_RATES, UNCHANGED_RATES = Rates(requests=8, reports=256), Rates()


@dataclass(frozen=True)
class Route:
    """The messages that a shared stream takes from a stream of a namespace: their filters, and the
    subjects that they get.
    """

    source: str
    target: str
    transforms: tuple[tuple[str, str], ...]
    bytes_per_s: int
    default_bytes_per_s: int


def intake_stream(namespace: str) -> str:
    return f"{INTAKE}-{namespace}"


def reports_stream(namespace: str) -> str:
    return f"weir-reports-{namespace}"


def stream_configs(namespace: str) -> tuple[StreamConfig, StreamConfig]:
    """Return the two streams of a namespace."""
    requests = [source for source, _ in _transforms(namespace, ORDERS)]
    reports = [source for target in (FACTS, DEAD) for source, _ in _transforms(namespace, target)]
    common = StreamConfig(retention=RetentionPolicy.WORK_QUEUE, max_msg_size=LARGEST_MESSAGE)
    return (
        replace(
            common,
            name=intake_stream(namespace),
            subjects=requests,
            discard=DiscardPolicy.NEW,
            discard_new_per_subject=True,
            max_bytes=INTAKE_BYTES,
            max_msgs_per_subject=INTAKE_PER_SUBJECT,
        ),
        replace(
            common,
            name=reports_stream(namespace),
            subjects=reports,
            discard=DiscardPolicy.OLD,
            max_bytes=REPORTS_BYTES,
            max_msgs_per_subject=REPORTS_PER_SUBJECT,
            duplicate_window=REPORTS_REPEAT_S,
        ),
    )


def routes(namespace: str, rates: Rates) -> tuple[Route, ...]:
    """Return the routes from the two streams of a namespace, with their rates."""
    requests, reports = intake_stream(namespace), reports_stream(namespace)
    return (
        _route(namespace, requests, ORDERS, rates.requests, DEFAULT_RATES.requests),
        _route(namespace, reports, FACTS, rates.reports, DEFAULT_RATES.reports),
        _route(namespace, reports, DEAD, 0, LETTERS_KIB_S),
    )


def _route(namespace: str, source: str, target: str, kib_s: int, default_kib_s: int) -> Route:
    transforms = tuple(_transforms(namespace, target))
    return Route(source, target, transforms, kib_s * KIB, default_kib_s * KIB)


def _transforms(namespace: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield each subject in the intake, and the one that it becomes in a shared stream."""
    if target == DEAD:
        yield (
            permissions.letter_in_intake(f"{namespace}.*"),
            f"{permissions.LEDGER_LETTERS}.{namespace}.{{{{wildcard(1)}}}}",
        )
        return
    for kind, users in PUBLISHED_BY.items():
        subject = subjects.pattern(kind, f"{namespace}.*")
        if {JOB, SUBMITTER} & {*users} and subjects.stream_holding(subject) == target:
            yield permissions.in_intake(subject), f"{subject.removesuffix('*')}{{{{wildcard(1)}}}}"


# ---------------------------------------------------------------- making them


async def connect_route(js: JetStreamContext, route: Route) -> None:
    """Create or update the consumer of a route, and let its target source from it. Safe to
    repeat.
    """
    known = await _known_consumer(js, route)
    deliver = known.deliver_subject if known else None
    if not deliver:
        deliver = f"weir-sourcing.{secrets.token_hex(SECRET_BYTES)}"
    bits_per_s = 8 * (route.bytes_per_s or route.default_bytes_per_s)
    if known and known.rate_limit_bps and not route.bytes_per_s:
        bits_per_s = known.rate_limit_bps
    filters = []
    transforms = []
    for old, new in route.transforms:
        filters.append(old)
        transforms.append(SubjectTransform(src=old, dest=new))
    config = ConsumerConfig(
        name=route.target,
        durable_name=route.target,
        deliver_policy=DeliverPolicy.ALL,
        deliver_subject=deliver,
        ack_policy=AckPolicy.FLOW_CONTROL,
        max_ack_pending=PENDING,
        flow_control=True,
        idle_heartbeat=HEARTBEAT_S,
        filter_subjects=filters,
        rate_limit_bps=bits_per_s,
    )
    await js.add_consumer(route.source, config)
    source = StreamSource(
        name=route.source,
        consumer=StreamConsumerSource(name=route.target, deliver_subject=deliver),
        subject_transforms=transforms,
    )
    target = (await js.stream_info(route.target)).config
    sources = target.sources or []
    others = [each for each in sources if each.name != route.source]
    if len(others) == len(sources) or source not in sources:
        await js.update_stream(replace(target, sources=[*others, source]))


async def _known_consumer(js: JetStreamContext, route: Route) -> ConsumerConfig | None:
    """Return the consumer of a route as it is, or None if it is new.

    It delivers to a subject that cannot be guessed, so nobody can direct other messages to that
    subject.
    """
    try:
        found: ConsumerConfig = (await js.consumer_info(route.source, route.target)).config
        return found
    except NotFoundError:
        return None
