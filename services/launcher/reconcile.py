"""The launcher's one decision: the actions to take now, from all that is known.

It looks at the present state, not at the last event. So a repeated event, a late one, or a restart
at any moment makes no difference. The steps for one job:

    1  report the tasks that have ended, and those that are about to leave
    2  abandon the generations that a newer one has superseded
    3  create the network policy of the job
    4  advance the pending generation: abandon it, or publish its cluster spec or the hand-over,
       and create the objects that it lacks
    5  report the tasks that have started
    6  delete the pods that no generation wants any more
    7  resize pods in place

A job that is finished or unknown has one step: delete everything that was made for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.launcher.actions import Action, Publish
from services.launcher.facts import loss_time
from services.launcher.jobs import Job
from services.launcher.settings import Settings
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
    missing_policy,
    removal_time,
    remove_job,
    resizes,
    unwanted_pods,
)
from services.launcher.steps.task_reports import exit_reports, leaving_notices, start_reports
from services.launcher.view import View
from shared.messages import JobMessage


def reconcile(
    view: View, now: float, rules: Settings, uids: Iterable[int] | None = None
) -> list[Action]:
    """Return the actions to take now for these jobs (None: all), without those that are pending."""
    actions: list[Action] = []
    for uid in sorted(view.uids() if uids is None else uids):
        job = view.bus_state.jobs.get(uid)
        if job is None:
            actions += _remove_orphan(view, uid, now, rules)
        else:
            actions += _reconcile_job(view, job, now, rules)
    return [action for action in actions if action.key() not in view.pending_actions]


def next_check_s(view: View, now: float, rules: Settings, uid: int) -> float | None:
    """Return the time at which the actions for a job change without a new event; None: never."""
    later = [time_s for time_s in _check_times(view, uid, rules) if time_s > now]
    return min(later, default=None)


def _remove_orphan(view: View, uid: int, now: float, rules: Settings) -> list[Action]:
    removal_s = removal_time(view, uid, rules.orphan_s)
    if removal_s is None or removal_s > now:
        return []
    return remove_job(view, uid)


def _reconcile_job(view: View, job: Job, now: float, rules: Settings) -> list[Action]:
    return [
        *_publish(exit_reports(view, job, now, rules.node_lost_s)),
        *_publish(leaving_notices(view, job)),
        *_publish(abandon_superseded(view, job)),
        *missing_policy(view, job, rules),
        *_advance_generation(view, job, now, rules),
        *_publish(start_reports(view, job)),
        *unwanted_pods(view, job),
        *resizes(view, job),
    ]


def _advance_generation(view: View, job: Job, now: float, rules: Settings) -> list[Action]:
    number = pending_generation(job)
    if number is None:
        return []
    reason = due_reason(abandon_reasons(view, job, number, rules), now)
    if reason is not None:
        return _publish([abandonment(view, job, number, reason)])
    step = next_step(view, job, number, now)
    return [*_publish([step] if step else []), *creations(view, job, number, rules)]


def _publish(messages: Sequence[JobMessage]) -> list[Action]:
    return [Publish(message=message) for message in messages]


def _check_times(view: View, uid: int, rules: Settings) -> list[float]:
    """Return the times at which a job's pods or generations reach a limit."""
    job = view.bus_state.jobs.get(uid)
    times: list[float | None] = []
    if job is None:
        times.append(removal_time(view, uid, rules.orphan_s))
    else:
        for pod in view.pods_of(uid):
            times.append(loss_time(pod, view.nodes, rules.node_lost_s))
        number = pending_generation(job)
        if number is not None:
            for time_s, _ in abandon_reasons(view, job, number, rules):
                times.append(time_s)
    return [time_s for time_s in times if time_s is not None]
