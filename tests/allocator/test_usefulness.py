"""A ps without a variable serves nobody."""

from __future__ import annotations

from msgspec.structs import replace

from shared.messages import ModelProfile
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    accepted,
    node,
    own,
    progress,
    request,
    resumed,
    size,
    span,
)


def running(variables: int | None, ps: int = 1) -> Story:
    """A job that config-manager would grow to three ps and three workers, once its model is
    known.
    """
    asked = request(ps=span(ps, most=3), workers=span(ps, most=3))
    story = Story(AT_ONCE).hear(node(cpu=1 + 2 * ps), accepted(asked))
    first = story.decided()
    profile = (
        None if variables is None else ModelProfile(parameters=100, bytes=400, variables=variables)
    )
    report = replace(progress(1, done=10, total=100_000, speed=10.0), profile=profile)
    return story.hear(
        node(cpu=20, free=19 - 2 * ps, own=own("mnist", *first.tasks)), resumed(1), report
    )


def test_a_job_gets_no_more_ps_than_its_model_has_variables():
    grown = running(variables=2).decided()

    assert size(grown) == (2, 3)
    assert "more than 2 ps cannot help: the model has 2 variables" in grown.reason
    assert (grown.alternatives[0].ps, grown.alternatives[0].workers) == (3, 3)


def test_with_variables_enough_it_gets_them_all():
    assert size(running(variables=3).decided()) == (3, 3)


def test_nothing_is_kept_from_a_job_whose_model_is_not_known():
    assert size(running(variables=None).decided()) == (3, 3)


def test_ps_that_stand_already_stay():
    assert size(running(variables=1, ps=2).decided()) == (2, 3)
