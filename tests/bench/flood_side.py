"""The hostile side of `make bench-flood`: a client that publishes as fast as it can, until SIGTERM.

    python -m tests.bench.flood_side URL submitter|job|consumers NAMESPACE.JOB CREDENTIALS DIGEST

It writes one line when it begins, and at its end the number of messages that it published.
`submitter` and `job` publish all that their credentials allow, on as many subjects as they can,
small and large, readable and unreadable, in turn. `consumers` has the credentials of a job and
requests a consumer with each name that it may use, again and again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
from collections.abc import Iterator
from typing import Any

from shared.auth.permissions import (
    JOB,
    LEDGER_LETTERS,
    OUTER_API,
    PUBLISHED_BY,
    bucket_subject,
    reader_names,
)
from shared.bus import subjects
from shared.bus.client import connect_client
from shared.bus.subjects import LEDGER, ORDERS
from shared.messages import CancelRequested, JobFinished, Program, ProgressReported, TaskReady
from tests.allocator.builders import request

AT_ONCE = 500
LARGE_EACH = 400
SMALL, LARGE = b"{", b"\x01" * 250_000
CONSUMERS = "consumers"
OF_NO_PROGRAM = "sha256-" + "0" * 64


def of_submitter(namespace: str, digest: str) -> Iterator[tuple[str, bytes]]:
    """Yield unreadable, invalid and valid requests, each with a new name, and cancellations."""
    for number in itertools.count():
        name = f"flood-{number}"
        asked, cancel = (
            f"weir.job.requested.{namespace}.{name}",
            CancelRequested(job=name, namespace=namespace),
        )
        yield asked, LARGE if number % LARGE_EACH == 0 else SMALL
        for program in (digest, OF_NO_PROGRAM):
            right = request(
                f"{name}-{program[7]}",
                namespace=namespace,
                program=Program(name="p.py", digest=program),
            )
            yield subjects.subject_of(right), subjects.encode_message(right)
        yield subjects.subject_of(cancel), subjects.encode_message(cancel)


def of_job(namespace: str, job: str) -> Iterator[tuple[str, bytes]]:
    """Yield facts of every kind that a trainer may publish, ledger entries, and dead letters."""
    said = [
        subjects.pattern(kind, f"{namespace}.{job}")
        for kind, users in PUBLISHED_BY.items()
        if JOB in users
    ]
    said += [bucket_subject(LEDGER, f"{namespace}.{job}"), f"{LEDGER_LETTERS}.{namespace}.{job}"]
    about: dict[str, Any] = {"job": job, "namespace": namespace, "uid": 1}
    pod: dict[str, Any] = {
        "pod": "p",
        "pod_uid": "u",
        "role": "worker",
        "serial": 1,
        "node": "n",
        "host": "h",
        "ports": (1, 2),
    }
    for number in itertools.count():
        for subject in said:
            yield subject, LARGE if number % LARGE_EACH == 0 else SMALL
        counts: dict[str, Any] = {
            "step": number,
            "epoch": 0,
            "samples": number,
            "total_samples": 1 << 40,
        }
        for fact in (
            ProgressReported(**about, generation=1, **counts, samples_per_second=1.0),
            TaskReady(**about, **pod, generation=number),
            JobFinished(**about, outcome="failed", cause=str(number)),
        ):
            yield subjects.subject_of(fact), subjects.encode_message(fact)


def of_consumers(namespace: str, job: str) -> Iterator[tuple[str, bytes]]:
    """Yield requests for consumers. The server keeps a consumer until it is idle for a while."""
    filtered = f"weir.cluster.*.{namespace}.{job}"
    for name in itertools.cycle(reader_names(namespace, job, 0)):
        config = {
            "name": name,
            "durable_name": name,
            "filter_subject": filtered,
            "ack_policy": "explicit",
        }
        body = json.dumps({"stream_name": ORDERS, "config": config}).encode()
        yield f"{OUTER_API}.CONSUMER.CREATE.{ORDERS}.{name}.{filtered}", body


async def flood(url: str, kind: str, key: str, file: str, digest: str) -> None:
    stop, published = asyncio.Event(), 0
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = await connect_client(url, file, pending_size=1 << 26)
    namespace, _, job = key.partition(".")
    messages, reply = of_submitter(namespace, digest), ""
    if kind == JOB:
        messages = of_job(namespace, job)
    elif kind == CONSUMERS:
        messages, reply = of_consumers(namespace, job), client.new_inbox()
    print("begun", flush=True)
    while not stop.is_set():
        for subject, body in itertools.islice(messages, AT_ONCE):
            await client.publish(subject, body, reply=reply)
        published += AT_ONCE
        await client.flush(60)
    print(published, flush=True)
    await client.close()


if __name__ == "__main__":
    asyncio.run(flood(*sys.argv[1:]))
