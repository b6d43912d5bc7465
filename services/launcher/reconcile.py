"""The launcher's one decision: from all that is known, what is to be done now. Pure.

It looks at the world as it is and not at what has just happened, so a repeated event, a late one,
or a restart at any moment makes no difference. For each job, in this order:

    1  a job that is over leaves nothing behind
    2  pods that ended are reported, and those that will have to go
    3  a generation that is overtaken, or will not be, is abandoned
    4  its pods are closed to everybody else
    5  the one in flight takes its next step (cluster spec, then hand-over), and what it lacks is made
    6  pods that began are reported
    7  what nobody wants any more goes
    8  cpu and memory change in place
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.launcher.actions import Action, Publish
from services.launcher.facts import loss_time
from services.launcher.jobs import Job
from services.launcher.settings import Settings
from services.launcher.steps import pod_actions
from services.launcher.steps.generations import (
    abandon_reasons,
    abandon_superseded,
    abandonment,
    due_reason,
    next_step,
    pending_generation,
)
from services.launcher.steps.pod_actions import (
    creations,
    removal_time,
    remove_job,
    resizes,
    unwanted_pods,
)
from services.launcher.steps.task_reports import exit_reports, leaving_notices, start_reports
from services.launcher.view import View
from shared.messages import JobMessage


def reconcile(
    view: View, now: float, rules: Settings, only: Iterable[int] | None = None
) -> list[Action]:
    """What is to be done, for these jobs (absent: all). What is under way already is left out."""
    found: list[Action] = []
    for uid in sorted(view.uids() if only is None else only):
        job = view.bus_state.jobs.get(uid)
        found += (
            _without_job(view, uid, now, rules) if job is None else _of_job(view, job, now, rules)
        )
    return [action for action in found if action.key() not in view.pending_actions]


def next_check_s(view: View, now: float, rules: Settings, uid: int) -> float | None:
    """When time alone will change the answer for a job; None: never."""
    return min((due for due in _dues(view, uid, rules) if due > now), default=None)


def _without_job(view: View, uid: int, now: float, rules: Settings) -> list[Action]:
    due = removal_time(view, uid, rules.orphan_s)
    return remove_job(view, uid) if due is not None and due <= now else []


def _of_job(view: View, job: Job, now: float, rules: Settings) -> list[Action]:
    return [
        *_say(exit_reports(view, job, now, rules.node_lost_s)),
        *_say(leaving_notices(view, job)),
        *_say(abandon_superseded(view, job)),
        *pod_actions.missing_policy(view, job, rules),
        *_flight(view, job, now, rules),
        *_say(start_reports(view, job)),
        *unwanted_pods(view, job),
        *resizes(view, job),
    ]


def _flight(view: View, job: Job, now: float, rules: Settings) -> list[Action]:
    number = pending_generation(job)
    if number is None:
        return []
    why = due_reason(abandon_reasons(view, job, number, rules), now)
    if why is not None:
        return _say([abandonment(view, job, number, why)])
    step = next_step(view, job, number, now)
    return [*_say([step] if step else []), *creations(view, job, number, rules)]


def _say(messages: Sequence[JobMessage]) -> list[Action]:
    return [Publish(message=message) for message in messages]


def _dues(view: View, uid: int, rules: Settings) -> list[float]:
    job = view.bus_state.jobs.get(uid)
    if job is None:
        due = removal_time(view, uid, rules.orphan_s)
        return [] if due is None else [due]
    lost = (loss_time(pod, view.nodes, rules.node_lost_s) for pod in view.pods_of(uid))
    number = pending_generation(job)
    late = abandon_reasons(view, job, number, rules) if number is not None else []
    return [due for due in lost if due is not None] + [due for due, _ in late]
