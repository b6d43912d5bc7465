"""Tests of the table of incidents: all messages of one requested stop are one row."""

from __future__ import annotations

from services.console.report.tables import group_stops, incidents_table
from services.whatif.event_log import LogEntry
from shared.messages import SIGTERM, Message, TaskExited, TaskLeaving
from tests.console.report.story import exited

ROLES = ("chief", "ps", "worker")


def of(role: str, serial: int) -> dict[str, object]:
    pod = f"digits-{role}-{serial}"
    return {
        "job": "digits",
        "uid": 1,
        "generation": 2,
        "pod": pod,
        "pod_uid": f"u-{pod}",
        "role": role,
        "serial": serial,
    }


def leaving(role: str, serial: int = 0) -> TaskLeaving:
    return TaskLeaving(**of(role, serial), node="n1", why=SIGTERM)  # type: ignore[arg-type]


def shut(role: str, serial: int = 0, reason: str = "Terminated") -> TaskExited:
    return TaskExited(**of(role, serial), node="n1", exit_code=143, reason=reason)  # type: ignore[arg-type]


def told(*said: tuple[float, Message]) -> list[LogEntry]:
    return [
        LogEntry(at_s, "weir-facts", number, message)
        for number, (at_s, message) in enumerate(said, start=1)
    ]


def stop(at_s: float, serial: int = 0) -> list[tuple[float, Message]]:
    left = [(at_s, leaving(role, serial)) for role in ROLES]
    return [*left, *((at_s + 3.0, shut(role, serial)) for role in ROLES)]


def test_a_stop_is_one_row_with_its_tasks() -> None:
    page = incidents_table(told((5.0, exited()), *stop(60.0)), 10.0)

    assert page.count("<tr>") == 3, "the heading, what broke, and the stop"
    assert (
        "50.0 s" in page
        and "was stopped with its cluster or its nodes: chief-0, ps-0, worker-0<" in page
    )
    assert page.count("<li>") == 6 and "worker-0 ended on n1: Terminated" in page


def test_each_stop_is_grouped_and_other_rows_stay_in_place() -> None:
    said = told(*stop(60.0), (61.0, exited()), *stop(900.0, serial=3))

    assert [len(group) for group in group_stops(said)] == [6, 1, 6]


def test_a_single_stopped_task_is_not_grouped() -> None:
    said = told(
        (60.0, leaving("worker")), (61.0, shut("worker", reason="Deleted")), *stop(62.0, serial=3)
    )

    assert [len(group) for group in group_stops(said)] == [1, 1, 6]


def test_other_events_do_not_split_a_stop() -> None:
    first, *rest = stop(60.0)

    assert [len(group) for group in group_stops(told(first, (60.0, exited()), *rest))] == [6, 1]
