"""Permissions on the bus: the table of messages with their publishers and receivers, and the rights
that follow from it.

Law: the subjects to which a user may publish are derived from the table. Nobody can read the
answers to another user, because each user has inboxes of its own.

There are two accounts. INSIDE has the streams, the services and the operator (a person who may see
all). OUTSIDE has the users that are not trusted: the trainers of a job, which run a user's program,
and submitters, which request jobs in one namespace. Two accounts are needed because nats-server
checks the subject of a request and not the subject of its answer: a user could name a subject of
another user as the reply subject of its own request. If a user of OUTSIDE does so, the answer
returns to OUTSIDE, where no stream listens; and all messages are pulled, to inboxes that cannot be
guessed. (A user can create a consumer that pushes onto a subject inside. A stream that listens
there stores the message, if at all, under the message's own subject, and no acknowledgement is
forged; a test measures it.)

Rights are as narrow as NATS allows. They are wider than the table in these places:

- A consumer's filter is part of the request's subject only if there is one filter. Trainers and
  submitters have one; it covers facts about their own job that trainers do not need.
- Allocator, launcher, page and operator read with several filters, so each may read all orders and
  facts.
- A user that may ask a stream for its state (`STREAM.INFO`: services, operator) may read the
  subjects in it.
- A consumer has a name that its creator chooses, and a permission holds a name as a whole or not at
  all. The names of the services' consumers are denied. The submitters of a namespace and the
  trainers of a job have fixed lists of names, which limit the number of their consumers. The names
  can be guessed, but no other user may pull from them.
- The streams of a namespace have its name in theirs, and a permission holds a token as a whole or
  not at all: so the set-up may create and update any stream.
- Putting a message back is publishing it, so the operator may publish any message: no server can
  check that it was among the dead letters. (Its source is the operator, and late messages are
  harmless.)
- One namespace is one tenant. Its programs have their own bucket, which nobody outside the namespace
  may use. Its submitters read, store and overwrite all programs in it. A job's trainers read the
  description of their own program only, but the contents of every program of their namespace: the
  place of the contents changes each time a program is stored, and later pods of a running job must
  find them. An overwritten program is not run: trainers check the digest, and the next `weir
  submit` of the program repairs it.
- Only the allocator purges: a permission names a stream as a whole, and a namespace's name is part
  of the names of its streams. It cannot purge dead letters and `weir-state`. It reads contents of
  programs by their subject.
- The operator asks any stream for its state, and any stream but a key-value bucket for a message by
  its number; the allocator asks any stream for its state, because a namespace's name is part of its
  streams' names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from shared.bus import subjects
from shared.bus.subjects import DEAD, FACTS, JOBS, LEDGER, NODES, ORDERS, STATE
from shared.messages import (
    AllocationDecided,
    CancelRequested,
    CapacityChanged,
    ChangeRejected,
    ChangeRequested,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    ClaimsChanged,
    ClusterSpecPublished,
    DeadLetter,
    ForgetRequested,
    GenerationAbandoned,
    GenerationPrepared,
    HandOverOrdered,
    JobAccepted,
    JobChanged,
    JobFinished,
    JobRejected,
    JobRequested,
    Message,
    ProgressReported,
    QuotaChanged,
    ResumeRequested,
    ServiceTroubled,
    SuspendRequested,
    TaskExited,
    TaskLeaving,
    TaskReady,
    TaskStarted,
    TaskUpdated,
    TrainingResumed,
)

INSIDE, OUTSIDE = "weir", "weir-outside"
MONITOR = "monitor"
ALLOCATOR = "allocator"
LAUNCHER = "launcher"
SETUP = "setup"
OPERATOR = "operator"
PAGE = "page"
SERVICES = (MONITOR, ALLOCATOR, LAUNCHER)
SUBMITTER, JOB = "submitter", "job"
PERSONS, ALL = (OPERATOR, SUBMITTER), (ALLOCATOR, LAUNCHER, OPERATOR, SUBMITTER, PAGE)

PUBLISHED_BY: dict[type[Message], tuple[str, ...]] = {
    JobRequested: PERSONS,
    CancelRequested: PERSONS,
    ChangeRequested: PERSONS,
    SuspendRequested: PERSONS,
    ResumeRequested: PERSONS,
    ForgetRequested: PERSONS,
    JobAccepted: (ALLOCATOR,),
    JobRejected: (ALLOCATOR,),
    JobChanged: (ALLOCATOR,),
    ChangeRejected: (ALLOCATOR,),
    CapacityChanged: (MONITOR,),
    QuotaChanged: (MONITOR,),
    ClaimsChanged: (MONITOR,),
    AllocationDecided: (ALLOCATOR,),
    TaskReady: (JOB,),
    TaskStarted: (LAUNCHER,),
    TaskLeaving: (LAUNCHER, JOB),
    TaskExited: (LAUNCHER,),
    ClusterSpecPublished: (LAUNCHER,),
    GenerationPrepared: (JOB,),
    HandOverOrdered: (LAUNCHER,),
    GenerationAbandoned: (LAUNCHER,),
    TaskUpdated: (LAUNCHER,),
    CheckpointSaved: (JOB,),
    CheckpointFailed: (JOB,),
    CheckpointSkipped: (JOB,),
    TrainingResumed: (JOB,),
    ProgressReported: (JOB,),
    JobFinished: (JOB, ALLOCATOR),
    ServiceTroubled: SERVICES,
}
RECEIVED_BY: dict[type[Message], tuple[str, ...]] = {
    **dict.fromkeys(PUBLISHED_BY, ALL),
    CapacityChanged: (MONITOR, ALLOCATOR, LAUNCHER, OPERATOR, PAGE),
    QuotaChanged: (MONITOR, ALLOCATOR, OPERATOR, PAGE),
    ClaimsChanged: (MONITOR, ALLOCATOR, OPERATOR, PAGE),
    AllocationDecided: (*ALL, JOB),
    ClusterSpecPublished: (*ALL, JOB),
    JobFinished: (*ALL, JOB),
    TaskLeaving: (*ALL, JOB),
    HandOverOrdered: (*ALL, JOB),
    GenerationAbandoned: (*ALL, JOB),
    GenerationPrepared: (*ALL, JOB),
    CheckpointSaved: (*ALL, JOB),
    CheckpointFailed: (*ALL, JOB),
    CheckpointSkipped: (*ALL, JOB),
    TrainingResumed: (*ALL, JOB),
    ProgressReported: (*ALL, JOB),
    ServiceTroubled: (OPERATOR, PAGE),
}
"""After a restart the monitor reads its own facts. JOB and SUBMITTER receive only the messages of
their own job or namespace.
"""

PUT_BACK_BY = (OPERATOR,)
"""Users that may put dead letters back: a message of any kind, on its own subject."""


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """Subjects to which a user may publish and subscribe; `denied`: exceptions from them."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    denied: tuple[str, ...] = ()


# ---------------------------------------------------------------- subjects of JetStream

API, OUTER_API = "$JS.API", "weir-api"
"""The prefixes of JetStream's API inside and outside. Outside there is another one, because on the
first a server also answers for an account without streams.
"""


def bucket_subject(bucket: str, key: str) -> str:
    return f"$KV.{bucket}.{key}"


def stream_of(bucket: str) -> str:
    """Return the stream of a key-value bucket."""
    return f"KV_{bucket}"


def program_stream(namespace: str) -> str:
    """Return the name of the stream behind the program bucket of a namespace."""
    return f"OBJ_{subjects.program_bucket(namespace)}"


def description_subject(bucket: str) -> str:
    """Return the prefix of the subjects on which a program bucket holds the descriptions of its
    programs.
    """
    return f"$O.{bucket}.M"


def chunk_subject(bucket: str) -> str:
    """Return the prefix of the subjects on which a program bucket holds the contents of its
    programs.
    """
    return f"$O.{bucket}.C"


BUCKET_STREAMS = tuple(map(stream_of, (STATE, JOBS, LEDGER)))
ANY_DESCRIPTION, ANY_CHUNK = f"{description_subject('*')}.*", f"{chunk_subject('*')}.*"
"""The subjects of descriptions and of contents in the program bucket of any namespace."""


def lease_key(user: str) -> str:
    """Return the entry of `weir-state` with the leader of a service."""
    return f"leader.{user}"


def _use_lease(user: str) -> list[str]:
    """Return the subjects to read and write a service's own lease."""
    lease = bucket_subject(STATE, lease_key(user))
    return [lease, _read_last(stream_of(STATE), lease)]


def snapshot_keys(user: str) -> tuple[str, str]:
    """Return the entries of `weir-state` with a service's snapshot: the entry of the service, and
    the parts of a large snapshot.
    """
    return user, f"{user}.*.*"


def _write_snapshot(user: str) -> list[str]:
    """Return the subjects to write a service's own snapshot."""
    return [bucket_subject(STATE, key) for key in snapshot_keys(user)]


def _read_snapshot(user: str) -> list[str]:
    """Return the subjects to read a service's snapshot."""
    return [_read_last(stream_of(STATE), bucket_subject(STATE, key)) for key in snapshot_keys(user)]


def _purge_jobs() -> list[str]:
    """Return the subjects to find and remove the data of finished jobs. The server has no
    permission that is limited to purging single subjects.
    """
    return [
        f"{API}.STREAM.PURGE.*",
        f"{API}.STREAM.NAMES",
        f"{API}.DIRECT.GET.{ORDERS}",
        f"{API}.DIRECT.GET.{NODES}",
        _read_last("*", ANY_CHUNK),
    ]


def _read_info(*streams: str) -> list[str]:
    return [f"{API}.STREAM.INFO.{stream}" for stream in streams]


def _read_last(stream: str, subject: str) -> str:
    """Return the subject to read the last message on a subject by direct get, the only request for
    it that names the subject.
    """
    return f"{API}.DIRECT.GET.{stream}.{subject}"


def _use_consumer(stream: str, filtered: str, name: str = "*") -> list[str]:
    """Return the subjects to create and read a consumer of this name (default: any) with this
    filter.
    """
    return [
        f"{API}.CONSUMER.CREATE.{stream}.{name}.{filtered}",
        f"{API}.CONSUMER.MSG.NEXT.{stream}.{name}",
    ]


def consumer_name(user: str, stream: str) -> str:
    """Return the name of a service's consumer."""
    return f"{user}-{stream}"


def _last_of_nodes() -> list[str]:
    """Return the subjects to read the last capacity fact of each node and namespace."""
    return _use_consumer(NODES, subjects.CAPACITY)


def _use_own_consumers(user: str, *streams: str) -> list[str]:
    """Return the subjects to create, remove, read and acknowledge a service's own consumers."""
    found: list[str] = []
    for stream in streams:
        own = f"{stream}.{consumer_name(user, stream)}"
        found += [
            f"{API}.CONSUMER.{verb}.{own}" for verb in ("DURABLE.CREATE", "DELETE", "MSG.NEXT")
        ]
        found.append(f"$JS.ACK.{own}.>")
    return found


def _service_consumers() -> tuple[str, ...]:
    """Return the subjects of the consumers of services, which no other user may use."""
    names = [
        (stream, consumer_name(user, stream))
        for user in (ALLOCATOR, LAUNCHER)
        for stream in (ORDERS, FACTS)
    ]
    asked = ("CREATE.{}.{}", "CREATE.{}.{}.>", "MSG.NEXT.{}.{}")
    return tuple(f"{API}.CONSUMER.{each.format(*name)}" for name in names for each in asked)


# ---------------------------------------------------------------- rights of each user


def inbox_prefix(name: str) -> str:
    """Return the prefix of a user's inboxes."""
    return f"_INBOX_{name}"


def published_subjects(user: str, key: str = ">") -> list[str]:
    """Return the subjects to which a user publishes; `key`: of one job or node."""
    return [
        subjects.pattern(kind, key)
        for kind, users in PUBLISHED_BY.items()
        if user in (*users, *PUT_BACK_BY)
    ]


WATCHED = ("weir.>", "weir-intake.>", f"{DeadLetter.PREFIX}.>", "_INBOX.>")
"""Additional subscriptions, so that the operator may use any NATS client unchanged."""


def api_prefix(name: str) -> str:
    """Return the prefix of JetStream's API for a user of this name."""
    return OUTER_API if name.split(".")[0] in (JOB, SUBMITTER) else API


def user_permissions(user: str) -> Permissions:
    """Return the rights of a user inside."""
    return Permissions(
        publish=tuple([*published_subjects(user), *_OTHER_RIGHTS[user]]),
        subscribe=(f"{inbox_prefix(user)}.>", *(WATCHED if user == OPERATOR else ())),
        denied=_DENIED.get(user, ()),
    )


_OTHER_RIGHTS: dict[str, list[str]] = {
    MONITOR: [
        *_read_info(ORDERS, FACTS, NODES, DEAD),
        *(
            _read_last(FACTS, subjects.pattern(kind))
            for kind in (CapacityChanged, QuotaChanged, ClaimsChanged)
        ),
        *_use_lease(MONITOR),
    ],
    ALLOCATOR: [
        *_use_own_consumers(ALLOCATOR, ORDERS, FACTS),
        *_last_of_nodes(),
        *_use_lease(ALLOCATOR),
        _read_last(ORDERS, "weir.>"),
        f"{DeadLetter.PREFIX}.>",
        *_write_snapshot(ALLOCATOR),
        *_read_snapshot(ALLOCATOR),
        bucket_subject(JOBS, "*.*"),
        *_read_info("*"),
        _read_last("*", ANY_DESCRIPTION),
        *_purge_jobs(),
    ],
    LAUNCHER: [
        *_read_info(ORDERS, FACTS, NODES, DEAD, stream_of(STATE)),
        *_use_own_consumers(LAUNCHER, ORDERS, FACTS),
        *_use_lease(LAUNCHER),
        _read_last(ORDERS, "weir.>"),
        f"{DeadLetter.PREFIX}.>",
        *_write_snapshot(LAUNCHER),
        *_read_snapshot(LAUNCHER),
    ],
    SETUP: [
        f"{API}.STREAM.DELETE.{NODES}",
        *(f"{API}.STREAM.{verb}.*" for verb in ("CREATE", "UPDATE", "INFO")),
        *(
            f"{API}.CONSUMER.{verb}.*.{stream}"
            for verb in ("CREATE", "INFO")
            for stream in (ORDERS, FACTS, DEAD)
        ),
    ],
    PAGE: [
        *_read_info(ORDERS, FACTS, NODES, DEAD, stream_of(STATE)),
        *_last_of_nodes(),
        *(
            f"{API}.CONSUMER.{asked}.{stream}.*"
            for stream in (ORDERS, FACTS)
            for asked in ("CREATE", "MSG.NEXT")
        ),
        *_use_consumer(stream_of(JOBS), bucket_subject(JOBS, ">")),
        *_read_snapshot(ALLOCATOR),
    ],
    OPERATOR: [
        *_read_info("*"),
        *_last_of_nodes(),
        *(
            f"{API}.CONSUMER.{asked}.{stream}.*"
            for stream in (ORDERS, FACTS, DEAD)
            for asked in ("CREATE", "MSG.NEXT")
        ),
        *_use_consumer(stream_of(JOBS), bucket_subject(JOBS, ">")),
        *(_read_last(stream, "weir.>") for stream in (ORDERS, FACTS)),
        f"{API}.STREAM.MSG.GET.*",
        *_read_snapshot(ALLOCATOR),
        ANY_DESCRIPTION,
        ANY_CHUNK,
        _read_last("*", ANY_DESCRIPTION),
        *_use_consumer("*", ANY_CHUNK),
    ],
}


_DENIED: dict[str, tuple[str, ...]] = {
    ALLOCATOR: tuple(f"{API}.STREAM.PURGE.{stream}" for stream in (DEAD, stream_of(STATE))),
    PAGE: _service_consumers(),
    OPERATOR: (
        *_service_consumers(),
        *(f"{API}.STREAM.MSG.GET.{stream}" for stream in BUCKET_STREAMS),
    ),
}


INTAKE = "weir-intake"
"""The first word, inside, of the subjects of messages from outside. A stream of the namespace
stores them (`intake.py`).
"""
LEDGER_LETTERS = f"{DeadLetter.PREFIX}.{bucket_subject(LEDGER, '')}".removesuffix(".")
"""The prefix of dead letters about entries of the ledger, which jobs write themselves."""


def in_intake(subject: str) -> str:
    """Return the subject in the intake of a message from outside."""
    return f"{INTAKE}.{subject.removeprefix(f'{subjects.PREFIX}.')}"


def letter_in_intake(key: str) -> str:
    """Return the subject, in the intake, of a letter about the ledger's entry of a job."""
    return f"{INTAKE}.dead.{key}"


def outside_subject(subject: str) -> str:
    """Return the subject outside of a subject inside."""
    for inside, outside in (
        (letter_in_intake(""), f"{LEDGER_LETTERS}."),
        (f"{INTAKE}.", f"{subjects.PREFIX}."),
    ):
        if subject.startswith(inside):
            return f"{outside}{subject.removeprefix(inside)}"
    return subject.replace(API, OUTER_API)


def _seen_outside(*publish: str) -> tuple[str, ...]:
    return tuple(map(outside_subject, publish))


SLOTS = 32
"""Consumers that all submitters of a namespace may have on one stream at a time."""
READERS_BLOCK = 32
"""The number of consumer names in one block. A job has one or more blocks (`reader_blocks`), and
may use each name on each of the two streams.
"""
READERS_PER_TASK = 3
"""Each trainer has one consumer on orders and one on facts. The pods of two generations may run at
the same time, and the name of a consumer that has lost its connection is free again
`watching.READER_IDLE_S` later.
"""
MOST_READER_BLOCKS = 30
"""The server refuses users with more than 4,096 subjects in scoped permissions; each name needs
four.
"""
MOST_TRAINERS = 900
"""The largest number of tasks of a job with which each task finds a name."""


def submitter_consumers(namespace: str) -> list[str]:
    """Return the only names of consumers that submitters of a namespace may use. The server limits
    the number of their consumers in this way.
    """
    return [f"{SUBMITTER}_{namespace}_{number}" for number in range(SLOTS)]


def reader_names(namespace: str, job: str, block: int | str) -> list[str]:
    """Return one block of the only names of consumers that the trainers of a job, and nobody else,
    may use.
    """
    return [f"{JOB}_{namespace}_{job}_{block}_{number}" for number in range(READERS_BLOCK)]


def reader_blocks(tasks: int) -> int:
    """Return the number of blocks of names for a job of at most so many tasks."""
    return min(math.ceil(READERS_PER_TASK * tasks / READERS_BLOCK), MOST_READER_BLOCKS)


def submitter_permissions(namespace: str) -> Permissions:
    """Return the rights to request jobs of one namespace, and to read messages about them."""
    own, views = f"weir.*.*.{namespace}.*", bucket_subject(JOBS, f"{namespace}.*")
    bucket, stream = subjects.program_bucket(namespace), program_stream(namespace)
    names = submitter_consumers(namespace)
    publish = [
        *published_subjects(SUBMITTER, f"{namespace}.*"),
        *_use_consumers(ORDERS, own, names),
        *_use_consumers(FACTS, own, names),
        *_use_consumers(stream_of(JOBS), views, names),
        _read_last(ORDERS, own),
        _read_last(FACTS, own),
        f"{description_subject(bucket)}.*",
        f"{chunk_subject(bucket)}.*",
        _read_last(stream, f"{description_subject(bucket)}.*"),
        *_use_consumer(stream, f"{chunk_subject(bucket)}.*"),
    ]
    return Permissions(
        publish=_seen_outside(*publish),
        subscribe=(f"{inbox_prefix(f'{SUBMITTER}.{namespace}')}.>",),
        denied=_seen_outside(*_service_consumers()),
    )


def _use_consumers(stream: str, filtered: str, names: Sequence[str]) -> list[str]:
    """Return the subjects to create and read consumers of these names with this filter."""
    used: list[str] = []
    for name in names:
        used += _use_consumer(stream, filtered, name)
    return used


def job_permissions(namespace: str, job: str, meta: str, readers: Sequence[str]) -> Permissions:
    """Return the rights of the trainers of one job. `meta`: the last token of the subject with the
    description of its program; `readers`: the names of their consumers of orders and facts.
    """
    key = f"{namespace}.{job}"
    bucket, stream = subjects.program_bucket(namespace), program_stream(namespace)
    ledger = bucket_subject(LEDGER, key)
    publish = [
        *published_subjects(JOB, key),
        *_use_consumers(ORDERS, f"weir.cluster.*.{key}", readers),
        *_use_consumers(FACTS, f"weir.*.*.{key}", readers),
        _read_last(ORDERS, subjects.pattern(AllocationDecided, key)),
        _read_last(ORDERS, subjects.pattern(JobFinished, key)),
        _read_last(FACTS, subjects.pattern(ProgressReported, key)),
        _read_last(FACTS, subjects.pattern(TrainingResumed, key)),
        ledger,
        _read_last(stream_of(LEDGER), ledger),
        f"{DeadLetter.PREFIX}.{ledger}",
        f"{USAGE}.{key}.*",
        _read_last(stream, f"{description_subject(bucket)}.{meta}"),
        *_use_consumer(stream, f"{chunk_subject(bucket)}.*"),
    ]
    return Permissions(
        publish=_seen_outside(*publish),
        subscribe=(f"{inbox_prefix(f'{JOB}.{key}')}.>", f"{USAGE}.{key}.*"),
        denied=_seen_outside(*_service_consumers()),
    )


USAGE = "weir-usage"
"""Prefix of the usage reports that a job's pods send to their chief. No stream stores them, and
they stay within OUTSIDE.
"""


# ---------------------------------------------------------------- between the two accounts

TAGS = ("job_namespace", "job_name", "program")
READERS_TAG = "readers"
"""The tag for a block of names that the job's consumers may have: one tag with the number of each
block.
"""


def job_template() -> Permissions:
    """Return the rights of the job that the tags of its credentials name. The launcher's key can
    grant no other rights.

    The tags of version 0.1.0 have other names. The server leaves out a subject if the credentials
    lack its tag, so job credentials of that version have no rights: they could read consumers of
    any name.
    """
    namespace, job, meta = map(_tag, TAGS)
    return job_permissions(namespace, job, meta, reader_names(namespace, job, _tag(READERS_TAG)))


def _tag(name: str) -> str:
    return f"{{{{tag({name})}}}}"


def imported_subjects() -> dict[str, bool]:
    """Return the requests that may go from OUTSIDE to INSIDE; True: one may have many answers."""
    kinds = [kind for kind, users in PUBLISHED_BY.items() if {JOB, SUBMITTER} & {*users}]
    once = [in_intake(subjects.pattern(kind, "*.*")) for kind in kinds]
    once += [bucket_subject(LEDGER, "*.*"), letter_in_intake("*.*"), ANY_DESCRIPTION, ANY_CHUNK]
    once += [f"{API}.DIRECT.GET.*.>", f"{API}.CONSUMER.CREATE.*.*.>"]
    return {**dict.fromkeys(once, False), f"{API}.CONSUMER.MSG.NEXT.*.*": True}
