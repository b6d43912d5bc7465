"""Tests of explanations in words, and of the reasons why there is nothing to explain."""

from __future__ import annotations

from datetime import UTC
from functools import partial

from msgspec.structs import replace

from services.allocator.state.state import State, apply
from services.console.why.explanation import format_explanation, no_job_to_explain
from services.whatif.event_log import Moment
from services.whatif.explain.explanation import Explanation, Prospect
from shared.messages import JobFinished, JobRejected
from tests.allocator.builders import (
    AT_ONCE,
    UID,
    Story,
    accepted,
    exited,
    node,
    progress,
    request,
)
from tests.allocator.test_decide import running
from tests.whatif.explain.asking import why
from tests.whatif.explain.test_remedies import _two_jobs


def lines(explanation: Explanation) -> list[str]:
    return format_explanation(explanation, UTC)


def test_everything_about_a_running_job() -> None:
    story = running(Story()).hear(progress(1, done=500, total=100_000, speed=10))
    story.hear(node("n2", cpu=4, free=0.5))
    more = "it would have 2 ps, {} workers, batch 32, with the chief {} cpu, {} GiB in all"
    had = "1 ps, 1 worker, batch 32, with the chief 3 cpu, 3 GiB in all"
    assert lines(why(story))[:8] == [
        "default/mnist at 1970-01-01 00:16:46: policy config-manager, priority 0",
        f"  has        {had}, for 2 s, last reported 10 examples/s, 0.5 % done",
        "             on n1: 1 chief, 1 ps, 1 worker",
        "  because    the first size (decided at 00:16:42, generation 1)",
        (
            "             after job.accepted at 00:16:42: default/mnist is accepted as job 1,"
            " policy of the cluster"
        ),
        "  now        no node has room for another ps",
        f"  for more   1.5 cpu more free on n2: {more.format(2, 5, 5)}",
        f"             one more node like n1 (3 cpu, 64 GiB): {more.format(3, 6, 6)}",
    ]
    assert lines(why(story))[-1].startswith("  faster?    more would be faster: 10 -> ")


def test_a_silent_job_has_the_time_since_its_last_report() -> None:
    story = running(Story()).hear(progress(1, done=500, total=100_000, speed=10))
    story.hear(node("n2", cpu=4, free=0.5), after_s=130.0)
    assert "last reported 10 examples/s 2 min 10 s ago, 0.5 % done" in lines(why(story))[1]


def test_measured_and_predicted_speeds_are_labelled() -> None:
    """The text names the source of each speed: measured and predicted, or both predicted."""
    base = {
        "ps": 2,
        "workers": 2,
        "sizes_seen": 1,
        "faster": True,
        "larger_samples_per_second": 736.0,
    }
    said = partial(replace, why(running(Story())))

    def last(**fields: float | bool) -> str:
        return lines(said(prospect=Prospect(samples_per_second=110.0, **base, **fields)))[-1]

    pair = (
        "110 -> 736 examples/s at 2 ps, 2 workers: measured (a mean, the newest counts most) -> by"
        " a fit to 1 measured size"
    )
    assert last(expected=112.0).endswith(f"{pair} of this job")
    assert last(expected=351.0).endswith(
        f"{pair} of this job that predicts 351 where 110 were measured"
    )
    unmeasured = "no speed was reported yet for its present tasks, batch and nodes"
    assert last(expected=110.0, measured=False).endswith(
        f": both by a fit to 1 measured size of this job; {unmeasured}"
    )


def test_the_generation_in_flight_and_the_rejected_sizes_are_shown() -> None:
    story = running(Story()).hear(progress(1, done=100, total=100_000, speed=10))
    story.hear(node("n2", cpu=2)).decided()
    said = lines(why(story))
    assert "  will have  2 ps, 2 workers, batch 32, with the chief 5 cpu, 5 GiB in all" in said
    gain = (
        "; saves 1 h 23 min for a pause of 5.00 s and the slowdown while it is prepared, which is"
        " not predicted"
    )
    assert any(f"{gain} (decided at 00:16:46, generation 2)" in line for line in said)
    assert "  not        2 ps, 3 workers, batch 32: no node has room for another worker" in said
    assert any(
        line.startswith("  for more   once generation 2 trains and it has reported its speed")
        for line in said
    )
    assert any(
        "examples/s, by the model of the jobs of its program and others)" in line for line in said
    )


def test_due_times_are_shown_as_times() -> None:
    story = running(Story(replace(AT_ONCE, cooldown_s=10.0))).hear(node("n2", cpu=2))
    story.decide()
    said = lines(why(story))
    assert said[5].endswith(
        "if still wanted and there is room: free resources exist (until 00:16:54)"
    )
    assert said[6].startswith(
        "  for more   only waiting, until it is 00:16:54: it would have 2 ps, 2 workers"
    )
    now = lines(why(running(Story()).hear(node("n2", cpu=2))))
    assert now[6].startswith(
        "  for more   no action needed, the decision is pending: it would have "
    )
    story.now += 86_400.0
    assert lines(why(story))[3].endswith("(decided at 1970-01-01 00:16:42, generation 1)")


def test_jobs_that_would_lose_tasks_are_named() -> None:
    said = lines(why(_two_jobs(), key="default.second"))
    assert any(
        "priority 1 in place of 0: it would have 1 ps, 2 workers" in line
        and line.endswith("; default/mnist would have 1 ps, 1 worker in place of 1 ps, 2 workers")
        for line in said
    )


def test_proposed_bounds_are_shown_beside_the_current_ones() -> None:
    story = running(Story(), cpu=12)
    story.decided()
    assert any("requested with workers 1 to 5 (1 to 4 now): " in line for line in lines(why(story)))


def test_a_waiting_and_a_finished_job_have_no_tasks() -> None:
    story = Story().hear(node(cpu=2), accepted())
    assert lines(why(story))[1] == "  has        nothing: it waits, requested at 00:16:42, 0 s ago"
    story.hear(
        JobFinished(
            job="mnist", uid=UID, outcome="failed", cause="oh\x07 no", finished_s=story.now + 1
        )
    )
    said = lines(why(story))
    assert said[1] == "  has        nothing: it ended (failed) at 00:16:43, 0 s ago"
    assert said[-2:] == ["  now        oh no", "  for more   nothing would help: it is over"]


def test_a_job_whose_tasks_are_gone_has_no_running_task() -> None:
    story = running(Story()).hear(progress(1, done=500, total=100_000, speed=10))
    runs = story.state.jobs["default.mnist"].active_decision
    story.hear(*(exited(task, 143, "Terminated") for task in runs.tasks))
    assert (
        lines(why(story))[1] == "  has        nothing that trains: 1 ps, 1 worker ended; it waits"
    )
    story.hear(node(cpu=3)).decided()
    assert lines(why(story))[1].endswith("1 ps, 1 worker ended; it resumes from its checkpoint")


def test_a_successful_job_has_no_empty_line() -> None:
    story = Story().hear(node(), accepted())
    story.hear(JobFinished(job="mnist", uid=UID, outcome="succeeded", finished_s=story.now + 1))
    said = lines(why(story))
    assert [line[:12].strip() for line in said[1:]] == ["has", "for more"]
    assert all(line[13:].strip() for line in said[1:])


def test_notes_come_last() -> None:
    found = why(Story().hear(node(), accepted()))
    assert lines(replace(found, notes=("a", "b")))[-2:] == ["  note       a", "             b"]


def test_parts_that_need_an_unknown_policy_are_left_out_with_a_note() -> None:
    story = Story().hear(node(cpu=3), accepted(request(policy="mine:fair")))
    known = [line[:12].strip() for line in lines(why(story))[1:]]
    story.hear(accepted(request("other"), uid=UID + 1))
    for key in ("default.mnist", "default.other"):
        said = lines(why(story, key=key))
        assert [line[:12].strip() for line in said[1:]] == ["has", "note"] == known
        assert said[-1].startswith(
            "  note       policy mine:fair (of default/mnist) is not known here"
        )
        assert "set WEIR_ALLOCATOR_POLICIES=mine:fair" in said[-1]


KEY = "default.mnist"


def there(state: State, at_s: float = 1000.0) -> Moment:
    return Moment(state, at_s, {}, {}, None)


def test_an_unanswered_job_waits_for_the_allocator() -> None:
    asked = apply(State(), request(), "weir", 1, 960.0)
    told = no_job_to_explain(there(asked), KEY, None, UTC)
    assert (
        told == "job default/mnist, requested at 1970-01-01 00:16:00, is not answered yet: is the"
        " allocator running?"
    )


def test_a_rejected_job_has_its_reasons_in_one_line() -> None:
    no = JobRejected(job="mnist", uid=1, reasons=("policy: \x1b[31mno", "ps: no"))
    told = no_job_to_explain(replace(there(State()), rejected=no), KEY, None, UTC)
    assert told == "job default/mnist was refused: policy: [31mno; ps: no"


def test_a_job_accepted_later_has_its_acceptance_time() -> None:
    told = no_job_to_explain(there(State()), KEY, replace(accepted(), accepted_s=1060.0), UTC)
    assert (
        told
        == "there was no job default/mnist at 1970-01-01 00:16:40: it was accepted at 1970-01-01"
        " 00:17:40"
    )


def test_an_unknown_job_names_the_known_jobs() -> None:
    jobs = [accepted(request(f"job-{n}"), uid=n + 1) for n in range(12)]
    told = no_job_to_explain(there(Story().hear(node(), *jobs).state), KEY, None, UTC)
    assert told.startswith(
        "the log has no job default/mnist up to 1970-01-01 00:16:40; it has default/job-0,"
    )
    assert told.endswith("default/job-9 and 2 more")
    assert no_job_to_explain(there(State()), KEY, None, UTC).endswith(
        "it has no other; `weir submit FILE` submits one"
    )
