"""Tests of the speed prospect: would a larger size be faster?"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.allocator.policies.contract import Observed
from services.whatif.explain.explanation import speed_prospect
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    accepted,
    node,
    own,
    progress,
    request,
    resumed,
    span,
)
from tests.allocator.test_decide import running
from tests.console.why.test_explanation import lines
from tests.whatif.explain.asking import KEY, why


def grown(first: float, second: float) -> Story:
    """Return a job that reported at 1 ps and 1 worker, and at 2 ps and 3 workers."""
    story = running(Story()).hear(progress(1, done=100, total=10**7, speed=first))
    more = story.hear(node("n2", cpu=3)).decided()
    new = own("mnist", *(task for task in more.tasks if task.node == "n2"))
    story.hear(node("n2", cpu=3, free=0, own=new), resumed(2))
    return story.hear(progress(2, done=200, total=10**7, speed=second, step=2))


def test_a_scalable_job_would_be_faster_with_more_tasks() -> None:
    story = grown(100.0, 299.0)
    found = speed_prospect(story.state, KEY, story.rules)
    assert (
        found and found.faster and found.larger_samples_per_second > 1.05 * found.samples_per_second
    )
    assert found.sizes_seen == 2 and (found.ps, found.workers) > (2, 3)


@pytest.mark.parametrize(("most", "beyond"), [(8, False), (1, True)])
def test_a_prospect_knows_if_the_larger_size_is_allowed(most, beyond) -> None:
    story = Story(AT_ONCE).hear(
        node(cpu=3), accepted(request(ps=span(1, 1, most), workers=span(1, 1, most)))
    )
    story.decided()
    story.hear(resumed(1), progress(1, done=100, total=10**7, speed=100.0))
    found = speed_prospect(story.state, KEY, story.rules)
    assert found and found.beyond == beyond
    assert (", more than the requested maximum: " in lines(why(story))[-1]) == beyond


def test_an_unscalable_job_would_not_be_faster() -> None:
    story = grown(100.0, 100.0)
    flat = tuple(Observed(ps, workers, 32, 100.0) for ps in (1, 2, 3) for workers in (1, 2, 3, 4))
    job = replace(story.state.jobs[KEY], observed=flat)
    found = speed_prospect(replace(story.state, jobs={KEY: job}), KEY, story.rules)
    assert (
        found
        and not found.faster
        and found.larger_samples_per_second < 1.05 * found.samples_per_second
    )


def test_a_job_without_a_measured_speed_has_no_prospect() -> None:
    assert speed_prospect(running(Story()).state, KEY, Story().rules) is None


def test_the_current_speed_is_the_measured_one_and_not_the_models() -> None:
    """Two jobs of one program share a model; the other job is three times as fast."""
    story = running(Story()).hear(progress(1, done=100, total=10**7, speed=110.0))
    job = story.state.jobs[KEY]
    fast = replace(
        job, request=replace(job.request, job="fast"), observed=(Observed(1, 1, 32, 351.0),)
    )
    found = speed_prospect(replace(story.state, jobs={KEY: job, fast.key: fast}), KEY, story.rules)
    assert found and found.measured and found.samples_per_second == 110.0
    assert found.expected > 1.2 * 110.0
