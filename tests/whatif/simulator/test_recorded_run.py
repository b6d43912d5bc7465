"""Tests of worlds from a recorded log: a replay under the same policy is similar to the log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.allocator.decide import Decisions
from services.allocator.settings import Rules
from services.whatif.event_log import LogEntry, read_log
from services.whatif.simulator import run as simulator
from services.whatif.simulator.outcome import run_figures
from services.whatif.simulator.recorded_run import RecordedRun, read_recorded_run
from services.whatif.simulator.scenario import Scenario, Tenant
from shared.bus.subjects import FACTS, subject_of
from shared.documents import InvalidFile
from shared.messages import AllocationDecided, Message, ProgressReported
from tests.allocator.builders import accepted, node, own, progress, request, resumed
from tests.whatif.simulator.worlds import cluster, growing, run, scenario, work

BEGAN_S = 1_000_000.0


def line(message: Message, at_s: float, sequence: int) -> bytes:
    """Return a message as `weir events --json` prints it."""
    parts = {
        "time": msgspec.json.decode(msgspec.json.encode(_moment(at_s))),
        "fact": "-",
        "stream": FACTS,
        "sequence": sequence,
        "subject": subject_of(message),
        "sentence": "-",
        "message": message,
    }
    return msgspec.json.encode(parts)


def _moment(at_s: float) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_s, UTC)


def log_of(world: Scenario, policy: str, monkeypatch: pytest.MonkeyPatch) -> list[LogEntry]:
    """Return all messages of a simulated run, as if they had been recorded."""
    heard: list[LogEntry] = []

    def apply(state: Any, message: Message, stream: str, sequence: int, stored_s: float) -> Any:
        heard.append(LogEntry(BEGAN_S + stored_s, stream, sequence, message))
        return fold(state, message, stream, sequence, stored_s)

    fold = simulator.apply
    with monkeypatch.context() as patched:
        patched.setattr(simulator, "apply", apply)
        run(world, policy)
    return heard


def test_a_replay_under_the_same_policy_completes_the_same_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [
        growing(f"job-{number}", submitted_s=40.0 * number, samples=20_000) for number in range(4)
    ]
    tenants = (
        Tenant(node="node-2", cpu=8.0, from_s=0.0, to_s=200.0),
        Tenant(node="node-1", cpu=2.0, from_s=150.0),
    )
    world = scenario(*jobs, cluster=cluster(2, tenants=tenants))
    found = read_recorded_run(log_of(world, "config-manager", monkeypatch))
    was, again = run_figures(found.run), run_figures(run(found.scenario, "config-manager"))
    assert found.left_out == () and was["completed"] == again["completed"] == 4
    for name in ("jct_mean_s", "makespan_s", "utilisation", "resizes"):
        assert again[name] == pytest.approx(was[name], rel=0.001), name
    assert 0 < (was["paused_s"] or 0) <= (again["paused_s"] or 0), (
        "when training stopped for a lost task is not logged"
    )


def test_another_policy_gives_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_recorded_run(
        log_of(scenario(growing(samples=50_000)), "config-manager", monkeypatch)
    )
    still = run(found.scenario, "static")
    assert run_figures(still)["resizes"] == 0 and run_figures(found.run)["resizes"] == 1
    assert (run_figures(still)["makespan_s"] or 0) > (run_figures(found.run)["makespan_s"] or 0)


def test_sizes_that_never_ran_are_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_recorded_run(log_of(scenario(growing(samples=50_000)), "static", monkeypatch))
    (surface,) = found.scenario.surfaces.values()
    assert surface.speed(1, 1, 64) == surface.speed(2, 4, 64) == pytest.approx(100.0)


@pytest.mark.parametrize(("noise", "most"), [(5.0, 2), (1e6, 4)], ids=["small", "large"])
def test_a_replay_has_the_recorded_gradient_noise(
    noise: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job starts with two workers, before its noise is known. With little noise the policy `weir`
    does not let it grow, live and replayed.
    """
    world = scenario(growing(samples=100_000, gradient_noise=noise))
    log = log_of(world, "weir", monkeypatch)
    found = read_recorded_run(log)
    (again,) = run(found.scenario, "weir").records
    (was,) = found.run.records
    assert [work.gradient_noise for work in found.scenario.jobs] == [noise]
    for record in (was, again):
        assert max(workers for _, _, workers, _ in record.sizes) == most
    reports = [one.message for one in log if isinstance(one.message, ProgressReported)]
    assert max(one.staleness.mean for one in reports if one.staleness) == most - 1


def story(*messages: Message) -> RecordedRun:
    return read_recorded_run(
        [
            LogEntry(BEGAN_S + 10.0 * n, FACTS, n, message)
            for n, message in enumerate(messages, start=1)
        ]
    )


def test_a_recorded_cluster_has_its_nodes_and_tenants() -> None:
    tasks = own("mnist")
    found = story(
        node("a", cpu=8, free=5.0),
        node("b", cpu=4, own=tasks),
        node("a", cpu=8, free=8.0),
        node("b", cpu=4, schedulable=False),
        node("a", cpu=8, free=8.0, gone=True),
    )
    assert {name: has.cpu for name, has in found.scenario.cluster.resources_by_node().items()} == {
        "a": 8,
        "b": 4,
    }
    assert [(t.node, t.cpu, t.from_s, t.to_s) for t in found.scenario.cluster.tenants] == [
        ("a", 3.0, 0.0, 20.0),
        ("a", 8.0, 40.0, None),
        ("b", 4.0, 0.0, 10.0),
        ("b", 4.0, 30.0, None),
    ]


def test_a_job_that_never_reported_is_left_out_and_named() -> None:
    found = story(node(), accepted(), accepted(request("second"), uid=2))
    assert found.left_out == ("mnist", "second") and found.scenario.jobs == ()


def test_a_recorded_job_keeps_its_request_without_the_policy() -> None:
    asked = request(policy="static", priority=3)
    decided = _decided(asked)
    found = story(
        node(), accepted(asked), decided, resumed(1), progress(1, done=10, total=500, speed=5.0)
    )
    (job,) = found.scenario.jobs
    assert (job.samples, job.priority, job.request().policy) == (500, 3, None)
    assert job.resources() == asked.resources and job.submitted_s == 10.0


def test_the_restart_time_is_that_of_hand_overs_and_not_of_cold_starts() -> None:
    asked = request()
    decided = _decided(asked)
    later = [msgspec.structs.replace(decided, generation=n, revision=n) for n in (2, 3)]
    found = story(
        node(),
        accepted(asked),
        decided,
        resumed(1),
        later[0],
        resumed(2, pause_s=0.5),
        later[1],
        resumed(3, pause_s=3600.0, previous=None),
        progress(3, done=10, total=500, speed=5.0),
    )
    assert found.scenario.restart_s == 0.5


def _decided(asked: Any) -> AllocationDecided:
    from services.allocator.decide import decide
    from services.allocator.state.state import State, apply

    state = State()
    for sequence, message in enumerate((node(), accepted(asked)), start=1):
        state = apply(state, message, FACTS, sequence, 0.0)
    decisions: Decisions = decide(state, 0.0, Rules())
    (decided,) = decisions.actions
    assert isinstance(decided, AllocationDecided)
    return decided


# ---------------------------------------------------------------- files


def test_a_printed_log_is_read_back() -> None:
    lines = [line(accepted(), BEGAN_S + 1.5, 7), b"", line(node(), BEGAN_S, 3)]
    read = read_log(b"\n".join(lines).decode())
    assert [(one.at_s, one.sequence, one.message) for one in read] == [
        (BEGAN_S, 3, node()),
        (BEGAN_S + 1.5, 7, accepted()),
    ]


def test_dead_letters_are_skipped_and_every_error_is_listed() -> None:
    dead = line(node(), BEGAN_S, 1).replace(b'"weir.capacity', b'"weir-dead.weir.capacity')
    with pytest.raises(InvalidFile) as bad:
        read_log(
            "\n".join(
                [
                    dead.decode(),
                    "{",
                    line(work_message(), BEGAN_S, 2).decode().replace('"uid":1', '"uid":-1'),
                ]
            )
        )
    assert [text.split(":")[0] for text in str(bad.value).splitlines()] == ["line 2", "line 3"]


def work_message() -> Message:
    return resumed(1, job=work().job)


def test_an_empty_log_is_refused() -> None:
    with pytest.raises(InvalidFile, match="the log is empty"):
        read_log("\n")
