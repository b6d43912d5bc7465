"""Tests of the short names of stored messages, and of the subjects that filters select."""

from __future__ import annotations

import pytest

from services.console.log_entry import AREAS, Entry, entry_filters, event_name, parse_event_name
from shared.bus.streams import stream_configs
from shared.bus.subjects import BY_TAG, DEAD, FACTS, NODES, ORDERS, subject_of, tag_of
from shared.messages import JobRequested
from tests.shared.sample_messages import abandoned, one_of_each


@pytest.mark.parametrize(("stream", "name"), [(ORDERS, "o7"), (FACTS, "f7"), (DEAD, "d7")])
def test_an_event_name_is_stream_letter_and_sequence(stream: str, name: str) -> None:
    assert event_name(Entry(abandoned(), "s", stream, 7, 0.0)) == name
    assert parse_event_name(name) == (stream, 7)


@pytest.mark.parametrize(
    "text", ["", "o", "7", "x7", "o7x", "o-7", "o0", "7.training.resumed.2.-.11", "o" + "9" * 30]
)
def test_other_texts_are_no_event_names(text: str) -> None:
    assert parse_event_name(text) is None


def matches(pattern: str, subject: str) -> bool:
    """Return True if the subject matches the pattern, by NATS' rules for `*` and a final `>`."""
    wanted, there = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return there[: len(wanted) - 1] == wanted[:-1] and len(there) >= len(wanted)
    return len(wanted) == len(there) and all(
        w in ("*", t) for w, t in zip(wanted, there, strict=True)
    )


def seen(subject: str, job: str | None = None, namespace: str | None = None, *kinds: str) -> int:
    return sum(
        matches(f, subject)
        for stream in (ORDERS, FACTS)
        for f in entry_filters(stream, job, namespace, kinds)
    )


def test_areas_are_those_of_the_streams() -> None:
    held = {
        str(config.name): {s.split(".")[1] for s in config.subjects or ()}
        for config in stream_configs()
    }

    assert {stream: set(areas) for stream, areas in AREAS.items()} == {
        s: a for s, a in held.items() if s not in (DEAD, NODES)
    }


def test_without_a_filter_every_message_matches_once() -> None:
    assert all(seen(subject_of(said)) == 1 for said in one_of_each())


@pytest.mark.parametrize("namespace", [None, "default"])
def test_a_job_filter_matches_the_job_and_no_node_or_other_job(namespace: str | None) -> None:
    for said in one_of_each():
        about = getattr(said, "job", None) == "digits"
        assert seen(subject_of(said), "digits", namespace) == about
        assert not seen(subject_of(said), "clicks", namespace)


@pytest.mark.parametrize("kind", BY_TAG)
def test_a_kind_filter_matches_only_its_kind(kind: str) -> None:
    for said in one_of_each():
        wanted = tag_of(type(said)) == kind
        assert seen(subject_of(said), None, None, kind) == wanted
        assert seen(subject_of(said), "digits", "default", kind) == (
            wanted and getattr(said, "job", "") == "digits"
        )


def test_a_stream_without_the_kind_has_no_filters() -> None:
    assert (
        entry_filters(FACTS, kinds=["job.finished"])
        == entry_filters(FACTS, "digits", kinds=["capacity.changed"])
        == []
    )


def test_a_request_without_a_namespace_is_in_the_default_one() -> None:
    short = f"weir.{JobRequested.__struct_config__.tag}.digits"

    assert seen(short, "digits") == seen(short, None, "default") == 1
    assert seen(short, "digits", "red") == 0


def test_dead_letters_are_found_by_their_job() -> None:
    dead = "weir-dead.weir.job.requested.default.digits"
    assert matches(entry_filters(DEAD, kinds=["job.requested"])[0], dead)
    assert not matches(entry_filters(DEAD, "digits", None, ["job.cancel"])[0], dead)

    assert [
        matches(f, dead)
        for f in (
            *entry_filters(DEAD),
            *entry_filters(DEAD, "digits"),
            *entry_filters(DEAD, "clicks"),
        )
    ] == [
        True,
        True,
        False,
    ]
