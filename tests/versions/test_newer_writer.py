"""Tests that every service reads what a newer version writes.

The recorded job is replayed with an unknown field in every struct. Each of the four services
reaches the same state and gives the same orders as without these fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from services.allocator.decide import decide
from services.allocator.settings import Rules
from services.allocator.state.state import CONSUMED, State, apply
from services.launcher import service, view
from services.launcher.reconcile import reconcile
from services.launcher.service import CONSUMED as LAUNCHER_CONSUMED
from services.launcher.service import PUBLISHED as LAUNCHER_PUBLISHED
from services.launcher.settings import Settings
from services.monitor.capacity import ClusterPicture
from services.trainer import protocol
from services.trainer.pod import fence
from services.trainer.pod.supervise import Pod
from shared.auth.authority import Keys, Signer
from shared.bus import subjects
from shared.bus.consumer import StoredMessage
from shared.bus.subjects import FACTS, ORDERS
from shared.checkpoints import CommitMark
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    ClusterSpecPublished,
    DeadLetter,
    Message,
)
from tests.shared.sample_messages import one_of_each
from tests.trainer.pod.test_supervise import ANSWERS
from tests.versions.newer import NAME, rewritten, rewritten_as, structs_in
from tests.versions.records import RUNNING, Record, read_log

VERSION = "0.2.0"


def heard(records: Sequence[Record], newer: bool) -> list[StoredMessage]:
    found = []
    for record in records:
        if record.stream in (ORDERS, FACTS):
            body = record.data
            if (
                newer and "requested" not in record.subject
            ):  # a user's request is not written by a newer version
                body = rewritten(record.subject, body)
                assert NAME.encode() in body
            message = subjects.decode_message(record.subject, body)
            found.append(
                StoredMessage(
                    message, record.subject, record.stream, record.sequence, record.stored_s
                )
            )
    return found


@pytest.fixture(scope="module")
def plain() -> list[StoredMessage]:
    return heard(read_log(VERSION, RUNNING), newer=False)


@pytest.fixture(scope="module")
def newer() -> list[StoredMessage]:
    return heard(read_log(VERSION, RUNNING), newer=True)


def test_the_monitor_reads_messages_of_a_newer_writer(
    plain: list[StoredMessage], newer: list[StoredMessage]
) -> None:
    def said(log: list[StoredMessage]) -> dict[str, CapacityChanged]:
        return ClusterPicture(
            [h.message for h in log if isinstance(h.message, CapacityChanged)]
        ).published

    assert said(newer) == said(plain) != {}


def test_the_allocator_decides_the_same_from_messages_of_a_newer_writer(
    plain: list[StoredMessage], newer: list[StoredMessage]
) -> None:
    def folded(log: list[StoredMessage]) -> State:
        state = State()
        for each in log:
            state = apply(state, each.message, each.stream, each.sequence, each.stored_s)
        return state

    states, now_s = (folded(newer), folded(plain)), plain[-1].stored_s + 1.0
    assert states[0] == states[1] and states[0].jobs
    assert decide(states[0], now_s, Rules()) == decide(states[1], now_s, Rules())


def test_the_launcher_acts_the_same_on_messages_of_a_newer_writer(
    plain: list[StoredMessage], newer: list[StoredMessage]
) -> None:
    def asked(log: list[StoredMessage]) -> tuple[view.View, list[Any]]:
        seen, found = view.View(), []
        for each in log:
            if isinstance(each.message, (*LAUNCHER_CONSUMED, *LAUNCHER_PUBLISHED)):
                seen = view.fold_message(seen, each.message, each.stored_s)  # type: ignore[arg-type]
            if isinstance(each.message, AllocationDecided):
                found += reconcile(
                    view.start_watching(seen, each.stored_s), each.stored_s, Settings()
                )
        return seen, found

    assert asked(newer) == asked(plain)
    assert asked(plain)[0].bus_state.jobs and asked(plain)[1]


def test_trainers_act_the_same_on_messages_of_a_newer_writer(
    plain: list[StoredMessage], newer: list[StoredMessage]
) -> None:
    def acted(log: list[StoredMessage], name: str) -> list[Any]:
        pod, done = Pod(name=name), []
        for each in log:
            if type(each.message) in ANSWERS:
                pod, actions = ANSWERS[type(each.message)](pod, each.message)
                done += [pod, *actions]
        return done

    pods = {
        task.pod
        for h in plain
        if isinstance(h.message, ClusterSpecPublished)
        for task in h.message.tasks
    }
    assert len(pods) > 3
    for pod in sorted(pods):
        assert acted(newer, pod) == acted(plain, pod) != []


@pytest.mark.parametrize("message", one_of_each(), ids=lambda message: type(message).__name__)
def test_every_message_struct_is_covered(message: Message) -> None:
    """Otherwise the replay would not cover every struct."""
    kind, raw = type(message), msgspec.json.decode(msgspec.json.encode(message))
    body = rewritten_as(kind, message)

    assert msgspec.json.decode(body, type=kind) == message
    assert body.count(NAME.encode()) >= len(structs_in(kind, raw)) >= 1


def test_snapshots_of_a_newer_writer_are_read(plain: list[StoredMessage]) -> None:
    state, seen = State(), view.View()
    for each in plain:
        state = apply(state, each.message, each.stream, each.sequence, each.stored_s)
        if isinstance(each.message, (*LAUNCHER_CONSUMED, *LAUNCHER_PUBLISHED)):
            seen = view.fold_message(seen, each.message, each.stored_s)  # type: ignore[arg-type]
    assert set(CONSUMED) >= {
        type(h.message) for h in plain if isinstance(h.message, CapacityChanged)
    }
    for document in (state, service.Snapshot(after={ORDERS: 1}, told=seen.bus_state)):
        kind = type(document)
        body = rewritten_as(kind, document)
        assert body.count(NAME.encode()) > 10
        assert msgspec.json.decode(body, type=kind) == msgspec.json.decode(
            msgspec.json.encode(document), type=kind
        )


DOCUMENTS = [
    fence.Entry(uid=7, generation=2, paths=("/c/ckpt-1",), digests={"/c/ckpt-1": "sha256-1"}),
    CommitMark(digest="sha256-1", samples=3, total_samples=9),
    Keys(operator="o", system="s", inside="i", outside="u", jobs="j"),
    Signer(seed="s", account="a"),
    DeadLetter(stream="s", sequence=1, subject="x", error="e", body="b", said_by="n"),
    protocol.Begin(paths=("/c/ckpt-1",)),
    protocol.Prepared(seconds=1.0),
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: type(document).__name__)
def test_bucket_entries_of_a_newer_writer_are_read(document: msgspec.Struct) -> None:
    """Ledger, commit marks, keys, dead letters, and messages between a pod and its children."""
    body = rewritten_as(type(document), document)

    assert NAME.encode() in body
    assert msgspec.json.decode(body, type=type(document)) == document
