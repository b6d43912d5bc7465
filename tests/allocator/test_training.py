"""Training in numbers: every one is traced to what was said on the bus."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from services.allocator.state import State
from services.allocator.training import (
    CHANGE,
    CORES,
    EXAMPLES,
    UNDONE,
    WAIT,
    Work,
    longest_wait_s,
    used_cores,
)
from shared.messages import JobFinished, Message, TaskUsage
from shared.runtime.metrics import format_metrics
from tests.allocator.builders import Story, accepted, node, progress, request, resumed
from tests.shared.metric_lint import problems


class Watched(Story):
    """A story whose facts are counted as the service counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    def hear(self, *messages: Message, after_s: float = 1.0) -> Watched:
        for message in messages:
            before = self.state
            super().hear(message, after_s=after_s)
            self.work.heard(message, before, self.now)
        return self

    def told(self) -> dict[str, Any]:
        return {
            measure.family.name: measure.series
            for measure in self.work.measures(self.state, self.now)
        }

    def count(self, name: str) -> float:
        return float(self.told()[name][()])


def running(*more: Message) -> Watched:
    story = Watched().hear(node(), accepted())
    story.decide()
    return story.hear(resumed(1), *more)


def used(samples: int, *usage: tuple[str, float]) -> Message:
    by_task = tuple(TaskUsage(task=task, cpu=cpu, memory_gib=0.5) for task, cpu in usage)
    return replace(progress(1, samples, 1000, 50.0), usage=by_task)


def test_examples_are_counted_once_each_however_often_they_are_told_of() -> None:
    story = running(progress(1, 100, 1000, 50.0), progress(1, 250, 1000, 50.0, step=2))
    story.hear(progress(1, 250, 1000, 50.0, step=2))

    assert (story.count(EXAMPLES.name), story.count(UNDONE.name)) == (250, 0)


def test_what_is_rolled_back_is_told_as_undone_and_counts_again() -> None:
    story = running(progress(1, 400, 1000, 50.0))
    decided = story.state.jobs["default.mnist"].decided[1]
    story.hear(replace(decided, generation=2, revision=2))
    story.hear(
        resumed(2, samples=300),
        progress(1, 420, 1000, 50.0, step=9),
        progress(2, 500, 1000, 50.0, step=3),
    )

    assert (story.count(EXAMPLES.name), story.count(UNDONE.name)) == (400 + 200, 100)


def test_a_service_that_begins_in_the_middle_counts_what_comes_after() -> None:
    story = running(progress(1, 400, 1000, 50.0))
    story.work = Work()
    story.hear(progress(1, 450, 1000, 50.0, step=2))

    assert story.count(EXAMPLES.name) == 50


def test_a_change_takes_from_the_decision_to_the_first_update() -> None:
    story = Watched().hear(node(), accepted())
    decided = story.decided()
    story.hear(resumed(1), after_s=7.0)
    story.hear(resumed(1, step=4), after_s=2.0)  # begun again: no change

    (histogram,) = story.told()[CHANGE.name].values()
    assert (sum(histogram.counts), histogram.sum) == (1, story.now - 2.0 - decided.decided_s)


def test_cores_are_those_of_the_tasks_that_train_and_what_they_were_seen_to_use() -> None:
    story = running(
        used(100, ("chief-0", 0.1), ("ps-1", 0.5), ("worker-2", 0.9), ("worker-99", 3.0))
    )
    tasks = {t.name() for t in story.state.jobs["default.mnist"].decided[1].tasks}

    assert tasks == {"chief-0", "ps-1", "worker-2"}  # worker-99 is of no running generation
    assert story.told()[CORES.name] == {("had",): 3.0, ("used",): 1.5}


def test_what_was_used_before_a_change_is_not_told_of_what_runs_after_it() -> None:
    story = running(used(100, ("ps-1", 0.5)))
    decided = story.state.jobs["default.mnist"].decided[1]
    story.hear(replace(decided, generation=2, revision=2), resumed(2, samples=100))

    assert used_cores(story.state.jobs["default.mnist"]) == 0.0


def test_the_longest_wait_is_of_a_job_without_tasks_or_of_a_request_without_an_answer() -> None:
    assert longest_wait_s(State(), 5.0) == 0.0
    story = Watched().hear(accepted())  # no node: it waits
    assert story.told()[WAIT.name] == {(): 0.0}
    assert longest_wait_s(story.state, story.now + 60) == 60
    asked = Watched().hear(request("other"))
    assert longest_wait_s(asked.state, asked.now + 30) == 30
    assert longest_wait_s(running().state, 9e9) == 0.0


def test_a_job_that_is_over_is_forgotten() -> None:
    story = running(progress(1, 400, 1000, 50.0)).hear(
        JobFinished(job="mnist", uid=1, outcome="succeeded")
    )

    assert story.work.at == {} and story.told()[CORES.name] == {("had",): 0, ("used",): 0}


def test_all_of_it_is_well_formed_and_told_before_anything_happens() -> None:
    story = running(progress(1, 100, 1000, 50.0))

    for measures in (Work().measures(State(), 0.0), story.work.measures(story.state, story.now)):
        assert problems(format_metrics(measures)) == []
    assert [m.series for m in Work().measures(State(), 0.0)][:2] == [{(): 0.0}, {(): 0.0}]
