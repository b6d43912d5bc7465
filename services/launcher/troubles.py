"""Why, and from when on, a generation that is being brought up will not be.

Law: everything that can go wrong is listed with the moment at which it counts (0: at once). The
earliest that has passed is the reason to give the generation up; the earliest that has not is when
to look again. One list, so no timer can be forgotten.
"""

from __future__ import annotations

from services.launcher.exits import lost_s
from services.launcher.facts import PodFact
from services.launcher.jobs import Generation, Job, locked
from services.launcher.settings import Settings
from services.launcher.specs import ready_tasks, unprepared
from services.launcher.view import View
from shared.messages import OF_NODE

NOW = 0.0
Trouble = tuple[float, str]


def troubles(view: View, job: Job, number: int, rules: Settings) -> list[Trouble]:
    generation = job.generations[number]
    found = [late(view, job, generation, rules), *undrained(view, job, generation, rules)]
    if rules.job_namespaces and job.namespace not in rules.job_namespaces:
        found.append(
            (
                NOW,
                f"jobs do not run in namespace {job.namespace}, but in {', '.join(rules.job_namespaces)}",
            )
        )
    if (job.uid, number) in view.refused:
        found.append((NOW, view.refused[job.uid, number]))
    before = generation.spec.previous if generation.spec else None
    if before is not None and before != job.running:
        found.append(
            (
                NOW,
                f"generation {job.running} resumed meanwhile, and this one was prepared to follow {before}",
            )
        )
    if generation.unsaved:
        found.append((NOW, f"nothing to begin from: {generation.unsaved}"))
    of_task = {
        name: _of_task(view, job, generation, name, rules) for name in sorted(generation.tasks)
    }
    fragile = _indispensable(generation, of_task) if locked(job) == number else list(of_task)
    return found + [trouble for name in fragile for trouble in of_task[name]]


def reason(found: list[Trouble], now: float) -> str | None:
    """The first that counts by now."""
    due = sorted((t for t in found if t[0] <= now), key=lambda t: t[0])
    return due[0][1] if due else None


def late(view: View, job: Job, generation: Generation, rules: Settings) -> Trouble:
    """The time limit of the step that the generation is at, and who keeps it waiting."""
    if generation.ordered_s is not None:
        due = max(generation.ordered_s, view.awake_s) + rules.resume_timeout_s
        return due, f"training not resumed within {rules.resume_timeout_s:g} s of the hand-over"
    if generation.spec is not None:
        due = max(generation.spec_s, view.awake_s) + rules.prepare_timeout_s
        waits = ", ".join(unprepared(view, job, generation))
        return due, f"not prepared within {rules.prepare_timeout_s:g} s: {waits}"
    due = max(generation.decided_s, job.settled_s, view.awake_s) + rules.start_timeout_s
    return due, f"not ready within {rules.start_timeout_s:g} s: {_unready(view, job, generation)}"


def undrained(view: View, job: Job, generation: Generation, rules: Settings) -> list[Trouble]:
    """The chief that was ordered to drain has ended before it could: nobody will say that the next
    may begin.
    """
    before = job.generations.get(-1 if generation.drains is None else generation.drains)
    if generation.ordered_s is None or before is None or job.drained == generation.drains:
        return []
    name = before.chief
    pod = view.standing(job.uid).get(name)
    if name not in job.known_pods() or (pod is not None and not pod.over):
        return []
    due = max(pod.ended_s if pod else 0.0, generation.ordered_s) + rules.drained_s
    return [(due, f"{name} ended before it had drained generation {generation.drains}")]


def _unready(view: View, job: Job, generation: Generation) -> str:
    ready, pods = ready_tasks(view, job, generation), view.standing(job.uid)
    return ", ".join(
        f"{name} ({_state(pods.get(name))})"
        for name in sorted(generation.tasks)
        if name not in ready
    )


def _state(pod: PodFact | None) -> str:
    return "no pod" if pod is None else pod.waiting or pod.stuck or pod.phase


def _indispensable(generation: Generation, of_task: dict[str, list[Trouble]]) -> list[str]:
    """A locked generation can do without a worker; without its chief, a ps or all workers it cannot
    come to be.
    """
    workers = [name for name in of_task if generation.tasks[name].role == "worker"]
    spared = workers if any(not of_task[name] for name in workers) else []
    return [name for name in of_task if name not in spared]


def _of_task(
    view: View, job: Job, generation: Generation, name: str, rules: Settings
) -> list[Trouble]:
    pod = view.standing(job.uid).get(name)
    said = generation.prepared.get(pod.uid) if pod else None
    failed = [(NOW, f"{name}: {said.error}")] if said and said.error is not None else []
    return failed + _of_pod(view, job, generation.decision.generation, name, rules)


def _overtaken_s(job: Job, pod: PodFact, number: int, rules: Settings) -> float | None:
    """Until then a generation without the pod may be decided, which keeps what stands ready. None:
    it is told now.

    What was said of its node is another matter, and may be long ago.
    """
    if number != job.newest or pod.phase != "Running":
        return NOW
    known = job.leaving.get(pod.uid)
    said = (
        [notice.at_s for why, notice in known.notices.items() if why not in OF_NODE]
        if known
        else []
    )
    return min(said) + rules.overtake_s if said else None


def _behind(message: str) -> str:
    """A line is told in the same one; a log below, so that the first line can be read alone."""
    return f"\n{message}" if "\n" in message else f" {message}".rstrip()


def _awaited(view: View, job: Job) -> set[str]:
    """Pods that are ready before Kubernetes has shown them to us: a watch may be late, and they are
    not gone.
    """
    return {
        job.ready[pod_uid].pod
        for uid, pod_uid in view.awaited
        if uid == job.uid and pod_uid in job.ready
    }


def _of_pod(view: View, job: Job, number: int, name: str, rules: Settings) -> list[Trouble]:
    pod = view.standing(job.uid).get(name)
    if pod is None:
        return (
            [(NOW, f"{name} is gone")]
            if name in job.known_pods() and name not in _awaited(view, job)
            else []
        )
    if pod.over:
        due = pod.ended_s + rules.overtake_s if number == job.newest else NOW
        return [
            (
                due,
                f"{name} ended: {pod.reason} (exit code {pod.exit_code}){_behind(pod.message.strip())}",
            )
        ]
    if pod.leaving:
        until_s = None if locked(job) == number else _overtaken_s(job, pod, number, rules)
        return [] if until_s is None else [(until_s, f"{name} is being deleted")]
    lost = lost_s(pod, view.nodes, rules.node_lost_s)
    found = [] if lost is None else [(lost, f"{name} is lost: node {pod.node} is not ready")]
    if pod.stuck:
        found.append((pod.stuck_s + rules.unschedulable_s, f"{name} is unschedulable: {pod.stuck}"))
    return found
