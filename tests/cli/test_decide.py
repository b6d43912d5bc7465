"""Tests of `weir decide` as a program that answers each line of its input with one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.__main__ import weir
from tests.architecture.source import ROOT

NODES = [{"name": "n1", "cpu": 2, "memory_gib": 8}]
REQUEST = {"ps": 1, "workers": {"start": 1, "min": 1, "max": 4}, "batch": 64}
REQUEST |= {"resources": {"ps": {"cpu": 1}, "worker": {"cpu": 1}}}


def document(now: float, nodes: list[dict[str, Any]], **job: Any) -> str:
    return json.dumps(
        {"now": now, "nodes": nodes, "jobs": [{"job": "one", "request": REQUEST, **job}]}
    )


def answers(
    *lines: str, policy: str = "config-manager", more: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "services", "decide", "--policy", policy, *more]
    ended = subprocess.run(
        words, input="\n".join(lines), capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_decide_answers_line_by_line_and_keeps_state() -> None:
    larger = [*NODES, {"name": "n2", "cpu": 2, "memory_gib": 8}]
    runs = {"chief": "n1", "ps": ["n1"], "workers": ["n1"], "batch": 64, "since_s": 0}
    first, wrong, grown = answers(document(0, NODES), "{", document(600, larger, current=runs))
    assert first["decisions"][0] | {"reason": ""} == {
        "job": "one",
        "chief": "n1",
        "ps": ["n1"],
        "workers": ["n1"],
        "batch": 64,
        "reason": "",
        "gain": 0.0,
        "cost_s": 0.0,
    }
    assert first["decision_ms"] > 0
    assert wrong["line"] == 2 and wrong["errors"][0].startswith("not JSON")
    assert sorted(grown["decisions"][0]["workers"]) == ["n1", "n2", "n2"]


def test_decide_accepts_empty_lines_and_an_empty_input() -> None:
    assert answers() == [] and len(answers("", document(0, NODES), "  ", "")) == 1


def test_the_policy_is_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert weir(["decide", "--policy", "best"]) == 2
    assert "config-manager" in capsys.readouterr().err


def test_a_policy_error_is_reported_and_decide_continues(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    import io

    from services.allocator.policies.registry import POLICIES

    def faulty(*_: Any) -> Any:
        raise ZeroDivisionError("by design")

    monkeypatch.setitem(POLICIES, "faulty", faulty)
    lines = "\n".join([document(0, NODES)] * 2).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert weir(["decide", "--policy", "faulty"]) == 0
    told = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(one["line"], one["errors"]) for one in told] == [
        (number, ["the decision failed: ZeroDivisionError('by design')"]) for number in (1, 2)
    ]


def test_a_failing_custom_policy_has_one_traceback(tmp_path: Path) -> None:
    (tmp_path / "slips.py").write_text("def mine(cluster, jobs, now):\n    return {}['n9']\n")
    words = [sys.executable, "-m", "services", "decide", "--policy", "slips:mine"]
    around = {**os.environ, "PYTHONPATH": str(ROOT)}
    given = document(0, NODES)
    ended = subprocess.run(
        words, cwd=tmp_path, env=around, input=given, capture_output=True, text=True, timeout=120
    )

    reason = "set aside: policy 'slips:mine' failed for this job: KeyError: 'n9'"
    assert ended.returncode == 0 and ended.stderr.endswith(f": {reason}\n")
    assert ended.stderr.count("Traceback") == 1 and "line 2, in mine" in ended.stderr
    assert [one["reason"] for one in json.loads(ended.stdout)["decisions"]] == [reason]


def test_a_job_without_a_current_size_keeps_its_last_answer() -> None:
    first, silent, stopped = answers(
        document(0, NODES), document(9, NODES), document(18, NODES, current=None)
    )
    given, kept, anew = (line["decisions"][0] for line in (first, silent, stopped))

    assert given["workers"] == kept["workers"] == ["n1"] and "in flight" in kept["reason"]
    assert "in flight" not in anew["reason"]


@pytest.mark.parametrize(("after_s", "starts"), [("0", True), ("60", False)])
def test_reservations_can_be_disabled(after_s: str, starts: bool) -> None:
    """A large job has waited for long beside a running one.

    A later small job that fits beside the running one starts only if reservations are disabled.
    """
    nodes = [{"name": "n1", "cpu": 4, "memory_gib": 8}]
    runs = {"chief": "n1", "ps": ["n1"], "workers": ["n1"], "batch": 64, "since_s": 0}
    first = {"job": "one", "request": {**REQUEST, "workers": 1}, "submitted_s": 0, "current": runs}
    large = {"job": "large", "request": {**REQUEST, "workers": 3}, "submitted_s": 1}
    late = {"job": "late", "request": {**REQUEST, "workers": 1}, "submitted_s": 2}
    line = json.dumps({"now": 900, "nodes": nodes, "jobs": [first, large, late]})
    (answer,) = answers(line, policy="static", more=("--reserve-after", after_s))
    assert [bool(each["workers"]) for each in answer["decisions"]] == [True, False, starts]
