"""Which facts wait for their order, where more come than can be kept."""

from __future__ import annotations

from services.allocator.state import EarlyFact
from shared.bus.early_facts import LONGEST_TEXT, MOST_OF_JOB, MOST_OF_NAMESPACE, add_early, brief
from shared.messages import CheckpointSaved, TrainingResumed


def resumed(step: int, job: str = "digits", namespace: str = "team-a") -> EarlyFact:
    fact = TrainingResumed(job=job, namespace=namespace, uid=7, generation=1, step=step, samples=0)
    return EarlyFact(fact, float(step))


def waiting(*facts: EarlyFact) -> tuple[EarlyFact, ...]:
    kept: tuple[EarlyFact, ...] = ()
    for each in facts:
        kept = add_early(kept, each, lambda early: early.fact)
    return kept


def test_a_job_that_says_much_pushes_out_its_own_oldest_facts_only() -> None:
    flood = [resumed(step) for step in range(10 * MOST_OF_JOB)]
    quiet = resumed(1, "letters")

    assert waiting(quiet, *flood) == (quiet, *flood[-MOST_OF_JOB:])


def test_a_namespace_with_many_jobs_pushes_out_no_fact_of_another_one() -> None:
    flood = [resumed(1, f"job-{number}") for number in range(3 * MOST_OF_NAMESPACE)]
    quiet = resumed(1, namespace="team-b")

    assert waiting(quiet, *flood) == (quiet, *flood[-MOST_OF_NAMESPACE:])


def test_a_fact_waits_without_the_middle_of_its_long_texts() -> None:
    saved = CheckpointSaved(
        job="digits", uid=7, generation=1, step=1, samples=1, path="/c" * 2_000, seconds=1.0
    )

    assert len(brief(saved).path) == LONGEST_TEXT and brief(saved).step == 1
    assert brief(resumed(1).fact) == resumed(1).fact
