"""Tests of the answers to an external simulator, line by line."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.policies.contract import Target
from services.allocator.policies.registry import POLICIES
from services.whatif.decide_json.answer import Answer
from tests.whatif.decide_json.documents import (
    CORE,
    DEVICES,
    REQUEST,
    ask,
    current,
    desk,
    document,
    job,
    node,
    refused,
    shape,
)


def test_a_new_job_gets_its_first_size_and_places() -> None:
    (one,) = ask(desk(), 0, [node()], job())
    assert (one.chief, one.ps, one.workers, one.batch) == ("n1", ("n1",), ("n1",), 64)
    assert one.reason == "the first size"


def test_the_answer_has_the_fields_of_the_format() -> None:
    answer = desk().answer(document(0, [node()], job()))
    told = json.loads(msgspec.json.encode(answer))
    assert set(told) == {"decisions", "decision_ms"} and told["decision_ms"] == pytest.approx(1.0)
    assert set(told["decisions"][0]) == {
        "job",
        "chief",
        "ps",
        "workers",
        "batch",
        "reason",
        "gain",
        "cost_s",
    }


def test_a_job_without_room_waits_with_a_reason() -> None:
    one, two = ask(desk(), 0, [node()], job("one"), job("two"))
    assert shape(one) == (1, 1)
    assert (two.chief, two.ps, two.workers) == (None, (), ()) and two.reason.startswith(
        "waits for room"
    )


def test_a_job_grows_into_a_new_node_and_keeps_its_running_tasks() -> None:
    at = desk()
    (first,) = ask(at, 0, [node()], job())
    (grown,) = ask(at, 60, [node(), node("n2")], job(current=current(first)))
    assert shape(grown) == (2, 2)
    assert (
        grown.ps[0] == "n1"
        and grown.workers[0] == "n1"
        and {grown.ps[1], grown.workers[1]} == {"n2"}
    )
    assert grown.cost_s == 5.0


def test_the_same_line_twice_gets_the_same_answer() -> None:
    at = desk()
    ask(at, 0, [node(), node("n2")], job())
    (grown,) = ask(at, 60, [node(), node("n2")], job())
    assert ask(at, 60, [node(), node("n2")], job())[0].ps == grown.ps


def test_free_capacity_excludes_the_jobs_own_tasks() -> None:
    at = desk()
    (first,) = ask(at, 0, [node(cpu=8, free={"cpu": 2})], job())
    assert shape(first) == (1, 1)
    (still,) = ask(at, 60, [node(cpu=8, free={"cpu": 0})], job(current=current(first)))
    assert shape(still) == (1, 1) and still.reason == "no node has room for another ps"
    (grown,) = ask(at, 120, [node(cpu=8, free={"cpu": 2})], job(current=current(first)))
    assert shape(grown) == (2, 2)


def test_a_job_missing_from_the_document_frees_its_capacity() -> None:
    at = desk()
    first, _ = ask(at, 0, [node()], job("one"), job("two"))
    _, still = ask(at, 60, [node()], job("one", current=current(first)), job("two"))
    assert shape(still) == (0, 0)
    (freed,) = ask(at, 120, [node()], job("two"))
    assert shape(freed) == (1, 1)


def test_speeds_of_a_finished_job_are_kept_for_its_program() -> None:
    """By the first job's speeds four workers are four times as fast as one.

    So the second job starts with four.
    """
    asked = REQUEST | {"program": {"name": "net.py", "digest": f"sha256-{7:064x}"}, "epochs": 10}
    at, nodes = desk("weir"), [node(cpu=16)]
    seen = [{"ps": 1, "workers": n, "batch": 64, "samples_per_second": 50.0 * n} for n in (1, 2, 4)]
    ask(at, 0, nodes, job("one", asked))
    ask(
        at,
        600,
        nodes,
        job("one", asked, observed=seen, progress={"samples": 10**6, "total_samples": 10**6}),
    )
    assert ask(at, 1200, nodes) == []
    (second,) = ask(at, 1800, nodes, job("two", asked, submitted_s=1800))
    (stranger,) = ask(desk("weir"), 1800, nodes, job("two", asked, submitted_s=1800))
    assert shape(second)[1] == 4 > shape(stranger)[1]


def test_jobs_are_ordered_by_priority_and_then_submission() -> None:
    urgent = job("urgent", REQUEST | {"priority": 9})
    late, early = job("late", submitted_s=20), job("early", submitted_s=10)
    told = {d.job: shape(d) for d in ask(desk(), 30, [node(), node("n2")], late, early, urgent)}
    assert told == {"urgent": (1, 1), "early": (1, 1), "late": (0, 0)}


def test_a_device_job_without_ps_and_cpu_is_placed() -> None:
    at, nodes = desk(), [{"name": name, "gpu": 2} for name in ("g1", "g2")]
    (first,) = ask(at, 0, nodes, job(request=DEVICES))
    assert (first.ps, len(first.workers)) == ((), 1)
    (grown,) = ask(at, 60, nodes, job(request=DEVICES, current=current(first)))
    assert sorted(grown.workers) == ["g1", "g1", "g2", "g2"]


def test_growth_must_pay_off_by_observed_speeds() -> None:
    at, nodes = desk(), [node(), node("n2")]
    (first,) = ask(at, 0, [node()], job())
    speeds = [{"ps": 1, "workers": 1, "batch": 64, "samples_per_second": 10.0}]
    nearly = {"samples": 990, "total_samples": 1000}
    (still,) = ask(
        at, 60, nodes, job(current=current(first), observed=speeds, progress=nearly, pause_s=30.0)
    )
    assert (
        shape(still) == (1, 1)
        and "is not worth the pause: saves 0.50 s for a pause of 30.0 s" in still.reason
    )


def test_an_external_change_is_the_new_starting_point() -> None:
    at, nodes = desk(), [node(cpu=4), node("n2", cpu=4)]
    ask(at, 0, nodes, job())
    moved = {"ps": ["n2"], "workers": ["n2", "n2"], "batch": 64}
    (grown,) = ask(at, 60, nodes, job(current=moved))
    assert shape(grown) == (2, 4) and grown.ps[0] == "n2" and grown.workers[:2] == ("n2", "n2")


def test_a_decision_that_was_not_executed_is_made_again() -> None:
    at, nodes = desk(), [node(), node("n2")]
    (first,) = ask(at, 0, [node()], job())
    runs = job(current=current(first))
    (grown,) = ask(at, 60, nodes, runs)
    (again,) = ask(at, 120, nodes, runs)
    (other,) = ask(at, 180, [node()], runs)
    assert shape(grown) == (2, 2) and (again.ps, again.workers) == (grown.ps, grown.workers)
    assert shape(other) == (1, 1)


def test_a_decision_stays_in_flight_until_the_job_progresses() -> None:
    at, nodes = desk(), [node(), node("n2")]
    (first,) = ask(at, 0, [node()], job(progress={"samples": 0, "total_samples": 1e6}))
    (still,) = ask(at, 60, nodes, job(progress={"samples": 0, "total_samples": 1e6}))
    (grown,) = ask(at, 120, nodes, job(progress={"samples": 500, "total_samples": 1e6}))
    assert (still.ps, still.workers) == (first.ps, first.workers) and "in flight" in still.reason
    assert shape(grown) == (2, 2)


def test_a_job_that_was_stopped_waits_again() -> None:
    at = desk()
    (first,) = ask(at, 0, [node()], job())
    ask(at, 60, [node()], job(current=current(first)))
    (again,) = ask(at, 120, [node()], job(current=None))
    assert shape(again) == (1, 1) and again.reason == "the first size"


def test_without_nodes_running_tasks_are_kept() -> None:
    at = desk()
    (first,) = ask(at, 0, [node()], job())
    (kept,) = ask(at, 60, [], job(current=current(first)))
    assert (kept.ps, kept.workers) == (first.ps, first.workers) and kept.reason


def test_a_clock_that_jumps_back_is_tolerated() -> None:
    at = desk()
    (first,) = ask(at, 1000, [node()], job())
    (grown,) = ask(at, 10, [node(), node("n2")], job(current=current(first, since_s=5)))
    assert shape(grown) == (2, 2)


def test_unchanged_jobs_keep_their_state_objects() -> None:
    at, nodes = desk("static"), [node(), node("n2")]
    first = ask(at, 0, nodes, job("one"), job("two"))
    jobs = [job(d.job, current=current(d)) for d in first]
    ask(at, 60, nodes, *jobs)
    before = at.mirror.state
    ask(at, 120, [node(), node("n2", free={"cpu": 0})], *jobs)
    after = at.mirror.state
    assert all(after.jobs[key] is before.jobs[key] for key in before.jobs)
    assert after.nodes["n1"] is before.nodes["n1"] and after.nodes["n2"] is not before.nodes["n2"]


def test_every_job_may_name_its_policy() -> None:
    seen: list[str] = []

    def mine(nodes: Any, jobs: Any, now: float) -> list[Target]:
        seen.extend(job.key for job in jobs)
        return []

    POLICIES["mine"] = mine
    try:
        one, two = ask(
            desk("static"), 0, [node(cpu=8)], job("one", REQUEST | {"policy": "mine"}), job("two")
        )
    finally:
        del POLICIES["mine"]
    assert seen == ["default.one"] and shape(one) == (0, 0) and shape(two) == (1, 1)


# ---------------------------------------------------------------- invalid input


def test_a_wrong_line_is_answered_with_every_reason_and_changes_nothing() -> None:
    at = desk()
    (first,) = ask(at, 0, [node()], job())
    wrong = document(
        60, [node(), node()], job("one", {"workers": 0}), job("two", {"policy": "best", "epocs": 1})
    )
    assert refused(at, wrong) == [
        "nodes: 'n1' occurs 2 times",
        "jobs[0].request.workers.start: Expected `int` >= 1, got 0",
        "jobs[0].request.workers.min: Expected `int` >= 1, got 0",
        "jobs[0].request.workers.max: Expected `int` >= 1, got 0",
        "jobs[0].request.workers: 1 <= min 0 <= start 0 <= max 0 does not hold",
        "jobs[1].request.epocs: no such field; did you mean 'epochs'?",
        f"jobs[1].request.policy: 'best' is not known; use one of {', '.join(sorted(POLICIES))}",
    ]
    (grown,) = ask(at, 60, [node(), node("n2")], job(current=current(first)))
    assert shape(grown) == (2, 2)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"[]", "a document is a JSON object"),
        (b"{}", "now: is required"),
        (b'{"now": "x", "nodes": {}, "jobs": 3}', "now: Expected `float`, got 'x'"),
        (b'{"now": 0, "jobs": [{"job": "a"}]}', "jobs[0].request: is required"),
        (
            (
                b'{"now": 0, "nodes": [{"cpu": 1}], "jobs": [{"job": "a", "request": {}, "curent":'
                b" {}}]}"
            ),
            "nodes[0].name",
        ),
        (
            b'{"now": 0, "jobs": [{"job": "a", "request": {"ps": "many"}}]}',
            "jobs[0].request.ps: needs start",
        ),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_a_line_that_is_no_document_is_refused(line: bytes, why: str) -> None:
    assert any(reason.startswith(why) for reason in refused(desk(), line))


def test_a_refusal_has_the_line_number() -> None:
    at = desk()
    ask(at, 0, [node()], job())
    told = json.loads(msgspec.json.encode(at.answer(b"{")))
    assert told["line"] == 2 and len(told["errors"]) == 1


def test_nan_infinity_and_unknown_fields_are_accepted() -> None:
    speeds = [
        {"ps": 1, "workers": 1, "samples_per_second": float("nan")},
        {"workers": 1, "samples_per_second": -3},
    ]
    progress = {
        "samples": float("nan"),
        "total_samples": float("inf"),
        "loss": [[0, float("nan")], [1, None]],
    }
    said = job(
        observed=speeds, progress=progress, colour="red", current={"ps": ["n1"], "workers": ["n1"]}
    )
    (one,) = ask(desk(), 0, [node(cpu=float("inf"), zone="b")], said)
    assert shape(one) == (2, 4)


STRANGE = st.sampled_from([float("nan"), float("inf"), float("-inf"), -1.0, 0.0, None, 3.0])


@settings(max_examples=150, deadline=None)
@given(st.lists(STRANGE, min_size=16, max_size=16), st.booleans())
def test_extreme_numbers_give_a_decision_that_keeps_running_tasks(
    odd: list[Any], runs: bool
) -> None:
    """Only `now` is always a number."""
    nodes = [
        node(
            cpu=odd[0],
            memory_gib=odd[1],
            gpu=odd[2],
            free={"cpu": odd[3], "memory_gib": odd[4], "gpu": odd[5]},
        )
    ]
    stand = {"ps": ["n1"], "workers": ["n1", "n1"], "batch": odd[6], "since_s": odd[7]}
    speed = {
        "ps": odd[8] or 0,
        "workers": odd[9] or 0,
        "batch": odd[10],
        "samples_per_second": odd[11],
        "step_s": odd[12],
    }
    progress = {
        "samples": odd[13],
        "total_samples": odd[14],
        "loss": [[0, odd[15]]],
        "gradient_noise": odd[15],
    }
    said = job(
        current=stand if runs else None, observed=[speed], progress=progress, pause_s=odd[12]
    )
    at = desk()
    for now in (0.0, 60.0):
        (one,) = ask(at, now, nodes, said)
        assert not runs or len(one.workers) >= 2


# ---------------------------------------------------------------- random documents

SIZES = st.tuples(st.integers(0, 2), st.integers(1, 4))
WORLD = st.lists(
    st.tuples(
        st.lists(st.sampled_from([0.0, 1.0, 3.0, 6.0]), max_size=4),
        st.sets(st.integers(0, 4), max_size=4),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(WORLD, st.sampled_from(["static", "config-manager"]))
def test_decisions_never_exceed_capacity_for_random_drivers(steps: list[Any], policy: str) -> None:
    """The driver carries out a decision or not; nodes and jobs come and go."""
    at, runs = desk(policy), dict[str, Any]()
    for number, (cpus, names, obeys) in enumerate(steps):
        nodes = [node(f"n{i}", cpu=cpu) for i, cpu in enumerate(cpus)]
        held = Counter(n for now in runs.values() for n in (*now["ps"], *now["workers"]))
        runs = {name: now for name, now in runs.items() if int(name[1:]) in names}
        jobs = [job(f"j{i}", current=runs.get(f"j{i}")) for i in sorted(names)]
        answer = at.answer(document(60.0 * number, nodes, *jobs))
        assert isinstance(answer, Answer)
        for i, cpu in enumerate(cpus):
            given = sum(n == f"n{i}" for d in answer.decisions for n in (*d.ps, *d.workers))
            assert given * CORE["cpu"] <= max(cpu, held[f"n{i}"])
        for told in answer.decisions:
            assert shape(told) == (0, 0) or (1 <= len(told.ps) <= 2 and 1 <= len(told.workers) <= 4)
            if obeys and told.workers:
                runs[told.job] = current(told)


def test_a_quota_of_the_document_limits_the_decisions() -> None:
    at = desk()
    quotas = {"default": {"cpu": 3}}

    def told(now: float, quotas: Any, *jobs: Any) -> Any:
        line = json.loads(document(now, [node(cpu=8)], *jobs)) | quotas
        answer = at.answer(json.dumps(line).encode())
        assert isinstance(answer, Answer), answer
        return answer.decisions[0]

    first = told(0, {"quotas": quotas}, job())
    still = told(60, {"quotas": quotas}, job(current=current(first)))
    assert shape(first) == (1, 1) and sum(shape(still)) == 3
    again = told(120, {"quotas": quotas}, job(current=current(still)))
    assert sum(shape(again)) == 3 and again.reason.startswith("quota of namespace default: needs ")
    assert shape(told(180, {}, job(current=current(again)))) == (2, 4)


def test_every_error_in_quotas_is_listed() -> None:
    wrong = json.loads(document(0, [node()])) | {"quotas": {"default": {"cpu": "x"}, "A b": {}}}
    assert len(refused(desk(), json.dumps(wrong).encode())) == 2


# ---------------------------------------------------------------- devices side by side


APART = [
    {"workers": 1, "batch": 64, "nodes": 1, "samples_per_second": 100.0},
    {"workers": 2, "batch": 64, "nodes": 1, "samples_per_second": 195.0},
    {"workers": 2, "batch": 64, "nodes": 2, "samples_per_second": 60.0},
]
"""On one node two devices are twice as fast as one, and on two nodes slower than one."""
PAIR = {**DEVICES, "policy": "weir", "batch": 64, "workers": {"start": 1, "min": 1, "max": 2}}
LONG = {"samples": 0, "total_samples": 1e6}


def test_spread_devices_move_to_one_node_when_it_has_room() -> None:
    at, nodes = desk(), [{"name": name, "gpu": 2} for name in ("g1", "g2")]
    apart = job(
        request=PAIR,
        current={"workers": ["g1", "g2"], "since_s": -9e3},
        observed=APART,
        progress=LONG,
    )
    (moved,) = ask(at, 0, nodes, apart)
    assert moved.workers in (("g1", "g1"), ("g2", "g2")) and moved.reason.startswith(
        "all on one node"
    )


def test_a_job_waits_for_a_device_on_its_node_if_another_node_does_not_pay() -> None:
    at, nodes = desk(), [{"name": name, "gpu": 1} for name in ("g1", "g2")]
    one = job(
        request=PAIR, current={"workers": ["g1"], "since_s": -9e3}, observed=APART, progress=LONG
    )
    (still,) = ask(at, 0, [*nodes, {"name": "g3", "gpu": 2, "free": {"gpu": 0}}], one)
    assert still.workers == ("g1",) and still.reason == "waits for room for 2 workers on one node"
    (grown,) = ask(at, 60, [*nodes, {"name": "g3", "gpu": 2}], one)
    assert grown.workers == ("g3", "g3")


def test_empty_task_lists_suspend_a_job_for_one_of_higher_priority() -> None:
    at, nodes = desk(), [node(cpu=4)]
    (first,) = ask(at, 0, nodes, job("low"))
    low = job("low", current=current(first), progress={"samples": 1000, "total_samples": 10**9})
    (grown,) = ask(at, 60, nodes, low)
    low = job("low", current=current(grown), progress={"samples": 2000, "total_samples": 10**9})
    high = job("high", {**REQUEST, "ps": 1, "workers": 3, "priority": 5})
    suspended, waits = ask(at, 120, nodes, low, high)
    assert (suspended.chief, suspended.ps, suspended.workers) == (None, (), ())
    assert "preempted by default.high, which has priority 5" in suspended.reason and shape(
        waits
    ) == (0, 0)
    low = job("low", current=None, progress={"samples": 2000, "total_samples": 10**9})
    waits, started = ask(at, 121, nodes, low, high)
    assert (shape(waits), shape(started)) == ((0, 0), (1, 3))
    (again,) = ask(at, 300, nodes, low)
    assert shape(again) == (1, 1)


def test_a_job_goes_only_to_nodes_of_its_selector_and_tolerations() -> None:
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    nodes = [node("n1", labels={"pool": "a"}), node("n2", labels={"pool": "b"}, taints=[taint])]
    chosen = REQUEST | {"node_selector": {"pool": "b"}}
    (one,) = ask(desk(), 0, nodes, job(request=chosen))
    assert one.workers == () and one.reason.endswith("it does not tolerate team=a:NoSchedule on n2")

    tolerant = chosen | {"tolerations": [{"key": "team", "operator": "Exists"}]}
    (one,) = ask(desk(), 0, nodes, job(request=tolerant))
    assert one.workers == ("n2",) == one.ps and one.chief == "n2"
