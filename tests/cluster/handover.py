"""Tell a hand-over from a restart, by the events of a job. Pure.

A hand-over leaves these facts, in this order: the running generation saves a last checkpoint for
its successor, none of its tasks has exited, and the successor resumes from that checkpoint after a
short pause. A restart leaves other facts: tasks exit, the next generation names no previous one,
and it resumes from an earlier checkpoint, so examples are repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.cluster.cluster import Body, Event

SUPERSEDED = "superseded by generation "
"""Start of the reason of a generation that was abandoned for a newer decision, and did not fail."""


def handover_faults(events: Sequence[Event], before: int, pause_s: float) -> list[str]:
    """Return why the first generation after `before` did not take over from it; empty if it did.

    `events` are those of one job, in the order of each stream. `pause_s` is the longest accepted
    pause.
    """
    resumed = next((m for m in _of(events, "training.resumed") if m["generation"] > before), None)
    if resumed is None:
        return [f"nothing resumed after generation {before}"]
    at = next(e.sequence for e in events if e.message is resumed)
    earlier = [e for e in events if e.fact.startswith(("task.", "training.")) and e.sequence < at]
    faults = _resumption_faults(resumed, before, pause_s)
    faults += _checkpoint_faults(earlier, resumed, before)
    for message in _of(events, "cluster.abandoned"):
        if before <= message["generation"] <= resumed["generation"] and not message[
            "reason"
        ].startswith(SUPERSEDED):
            faults.append(f"generation {message['generation']} was abandoned: {message['reason']}")
    started = [
        e.sequence
        for e in earlier
        if e.fact == "training.resumed" and e.message["generation"] == before
    ]
    for event in earlier:
        if event.fact == "task.exited" and event.sequence > max(started, default=0):
            faults.append(
                f"{event.message['pod']} exited before generation {resumed['generation']} resumed"
            )
    return faults


def _resumption_faults(resumed: Body, before: int, longest_s: float) -> list[str]:
    name = f"generation {resumed['generation']}"
    faults = list[str]()
    if resumed.get("previous") != before:
        faults.append(f"{name} took over from {resumed.get('previous')}, and not from {before}")
    pause_s = resumed.get("pause_s")
    if pause_s is None:
        faults.append(f"the pause of {name} is not known")
    elif pause_s > longest_s:
        faults.append(f"the pause of {name} was {pause_s:g} s, above {longest_s:g} s")
    return faults


def _checkpoint_faults(earlier: Sequence[Event], resumed: Body, before: int) -> list[str]:
    """Return what is wrong with the last checkpoint, and whether examples were repeated."""
    saved = [
        m for m in _of(earlier, "training.saved") if m["generation"] == before and m.get("final")
    ]
    handed = [m for m in saved if m.get("successor") == resumed["generation"]]
    faults = list[str]()
    if not handed:
        faults.append(
            f"generation {before} saved no last checkpoint for generation {resumed['generation']}"
        )
    reported = [m for m in _of(earlier, "training.progress") if m["generation"] <= before]
    applied = max((m["samples"] for m in (*reported, *saved)), default=0)
    kept = handed[-1]["samples"] if handed else 0
    if handed and kept < applied:
        faults.append(f"the last checkpoint holds {kept} of {applied} applied examples")
    if resumed["samples"] <= applied:
        faults.append(
            f"examples were repeated: it resumed at {resumed['samples']}, and {applied} had been"
            " applied"
        )
    return faults


def _of(events: Sequence[Event], fact: str) -> list[Body]:
    return [event.message for event in events if event.fact == fact]
