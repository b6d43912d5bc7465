"""Tests of proposed jobs: answers as from `weir submit --dry-run`, from the board's own state."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.console.dry_run import answer_proposal, example_proposal
from tests.allocator.builders import AT_ONCE, node
from tests.console.board.builders import Log, holding
from tests.console.board.test_board import running

NOW_S = 100.0
EXAMPLE = example_proposal(running().board.state)


def test_a_job_that_would_start_has_size_reason_and_placement() -> None:
    log = running()
    log.say(holding("n2", cpu=8), holding("n1", pods=3))

    found = answer_proposal(log.board.state, EXAMPLE, NOW_S, AT_ONCE)
    assert found.refused == [] and found.says[0].startswith(
        "job default/proposal would start now with 1 ps, "
    )
    assert any(line.startswith("why: ") for line in found.says) and any(
        line.startswith("where: ") for line in found.says
    )


def test_a_proposal_without_a_policy_gets_a_hint_without_settings_of_the_server() -> None:
    state = running().board.state

    (said,) = [
        line
        for line in answer_proposal(state, EXAMPLE, NOW_S, AT_ONCE).says
        if line.startswith("policy: ")
    ]
    assert said.endswith(
        "(the job names none, and the cluster may use another; to be sure, add a line such as"
        " `policy: static`)"
    )
    (said,) = [
        line
        for line in answer_proposal(state, f"{EXAMPLE}policy: static\n", NOW_S, AT_ONCE).says
        if line.startswith("policy: ")
    ]
    assert said == "policy: static"


def test_a_job_without_room_would_wait() -> None:
    log = running()
    log.say(holding("n1", pods=3, others=5))

    found = answer_proposal(log.board.state, EXAMPLE, NOW_S, AT_ONCE)
    assert found.says[0].startswith("job default/proposal would wait for room")
    assert found.says[1:3] == [
        (
            "it needs: chief 0.25 cpu, 1 GiB; ps 0.25 cpu, 1 GiB; worker 0.5 cpu, 1 GiB; each task"
            " on one node"
        ),
        "free now: 0 cpu, 62 GiB in total; the most on one node 0 cpu, 62 GiB (n1)",
    ]


def test_without_schedulable_nodes_the_answer_names_it() -> None:
    log = running()
    log.say(replace(holding("n1", pods=3), schedulable=False))

    found = answer_proposal(log.board.state, EXAMPLE, NOW_S, AT_ONCE)
    assert found.says[1] == "free now: nothing, no node takes tasks"


@pytest.mark.parametrize(
    ("others", "worker"),
    [((0.0, 0.0, 0.0, 0.0), 0.5), ((0.5, 0.3, 0.1, 0.0), 0.2), ((0.5, 0.5, 0.2, 0.5), 0.1)],
)
def test_the_example_is_as_large_as_the_free_capacity(
    others: tuple[float, ...], worker: float
) -> None:
    """Each node has half a core, of which other pods may use a part."""
    log = Log()
    for number, cpu in enumerate(others, start=1):
        log.say(node(f"node-{number}", cpu=0.5, free=0.5 - cpu))

    proposed = example_proposal(log.board.state)
    assert f"  worker: {{cpu: {worker:g}, " in proposed
    assert (
        answer_proposal(log.board.state, proposed, NOW_S, AT_ONCE).says[0]
        == "job default/proposal would start now with 1 ps, 2 workers, batch 64"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("job: [", "is not YAML"),
        ("42", "is not a job request"),
        (EXAMPLE.replace("epochs: 3", "epochs: 0"), "epochs"),
        (EXAMPLE.replace("job: proposal", "job: mnist"), "mnist"),
    ],
)
def test_a_refused_proposal_has_every_reason(text: str, reason: str) -> None:
    found = answer_proposal(running().board.state, text, NOW_S, AT_ONCE)

    assert found.says == [] and any(reason in line for line in found.refused)


def test_aliases_that_multiply_are_refused_and_take_no_memory() -> None:
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )

    found = answer_proposal(running().board.state, f"{EXAMPLE}{laughs}", NOW_S, AT_ONCE)

    assert not found.says and "with its aliases expanded it is larger" in found.refused[0]
