"""Helpers to explain a job at a moment of a story, and to apply the remedies."""

from __future__ import annotations

from collections.abc import Sequence

from services.whatif.event_log import History, LogEntry, Moment
from services.whatif.explain.counterfactual import AnyChange, apply_changes
from services.whatif.explain.explain import explain_job
from services.whatif.explain.explanation import Explanation, Means
from shared.messages import AllocationDecided, Message
from tests.allocator.builders import AT_ONCE, Story

KEY = "default.mnist"


def moment(story: Story, at_s: float | None = None, key: str = KEY) -> Moment:
    """Return the moment at `at_s` (default: now), folded from the story's log."""
    at_s, history = story.now if at_s is None else at_s, History(key, story.rules)
    for message, stream, sequence, stored_s in story.log:
        if stored_s <= at_s:
            history.hear(LogEntry(stored_s, stream, sequence, message))
    return history.moment(at_s)


def why(story: Story, at_s: float | None = None, key: str = KEY) -> Explanation:
    found = explain_job(moment(story, at_s, key), key, story.rules)
    assert found is not None
    return found


def kinds(e: Explanation) -> list[list[str]]:
    """Return the tags of the changes of each means."""
    return [[str(change.__struct_config__.tag) for change in means.changes] for means in e.means]


def only(e: Explanation, *tags: str) -> Means:
    """Return the means with exactly these changes."""
    (found,) = [means for means, named in zip(e.means, kinds(e), strict=True) if named == [*tags]]
    return found


def done(story: Story, changes: Sequence[AnyChange], key: str = KEY) -> tuple[Message, ...]:
    """Return what is decided at once after these changes, without any timers."""
    other = Story(AT_ONCE)
    other.state, other.now = apply_changes(story.state, key, changes), story.now
    return other.decide()


def given(actions: Sequence[Message], key: str = KEY) -> AllocationDecided:
    """Return the decision about the job."""
    (found,) = [a for a in actions if isinstance(a, AllocationDecided) and a.key() == key]
    return found
