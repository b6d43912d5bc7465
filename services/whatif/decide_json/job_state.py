"""The state of a job after a document: the decision that runs, and the observations.

    tasks in the document                   result
    those of the decision in flight         that decision runs
    those of the running decision           it still runs; the decision in flight is discarded
    other tasks                             an external change: a new generation
    none                                    the job waits
    not mentioned                           the decision in flight runs once the job has progressed

Each result comes from the allocator's own fold, of the messages that the launcher and the trainers
would have published.

`with_observations` adds speed, loss and progress as reports would. Impossible values (a speed that
is not above 0, a loss or an amount that is not a number) are ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from math import isfinite
from statistics import fmean

from msgspec import UnsetType
from msgspec.structs import replace

from services.allocator.policies.contract import LossPoint, Observed, Reading
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.job_folds import JOB_FOLDS
from services.allocator.state.observations import CURVE_KEPT, RECENT_KEPT, role_count
from services.allocator.state.policy_view import task_sizes
from services.allocator.steps.verdict import Rationale, next_decision
from services.whatif.decide_json.document import Current, JobDocument, Profile, Progress, Speed
from services.whatif.simulator.fake_cluster import with_resumed_generation
from shared.messages import (
    AllocationDecided,
    ModelProfile,
    ProgressReported,
    Resources,
    Role,
    RoleResources,
    TaskPlan,
)

TaskCounts = Counter[tuple[Role, str]]
"""The number of tasks of each role on each node."""


def with_current_tasks(
    job: Job, said: Current | UnsetType | None, progressed: bool, now: float, rules: Rules
) -> Job:
    """Return the job with the tasks of the newest document (see the table above)."""
    pending = job.pending_decision

    # The document does not mention the tasks.
    if isinstance(said, UnsetType):
        if pending and progressed:
            return with_resumed_generation(job, pending.generation, now)
        return job

    # No task runs.
    if said is None or not (said.ps or said.workers):
        if job.decided:
            return _with_one_decision(job, None)
        return job

    # The tasks are those of a known decision, or somebody else changed them.
    if pending and _has_same_tasks(pending, said):
        since_s = pending.decided_s if said.since_s is None else said.since_s
        return with_resumed_generation(job, pending.generation, since_s)
    if job.active_decision and _has_same_tasks(job.active_decision, said):
        if pending is None:
            return job
        return _with_one_decision(job, job.running)
    return _changed_by_others(job, said, now, rules)


def _changed_by_others(job: Job, said: Current, now: float, rules: Rules) -> Job:
    """Return the job as if the running tasks had been decided and had taken over."""
    found = _decision_as_it_runs(job, said, rules)
    since_s = now if said.since_s is None else said.since_s
    changed = JOB_FOLDS[AllocationDecided](job, found, now)
    return with_resumed_generation(changed, found.generation, since_s)


def _with_one_decision(job: Job, running: int | None) -> Job:
    """Return the job with its running decision only (None: without any decision)."""
    decided = {}
    if running is not None and running in job.decided:
        decided[running] = job.decided[running]
    return replace(job, running=running, pending_generation=None, decided=decided)


def _has_same_tasks(decided: AllocationDecided, said: Current) -> bool:
    """Return True if both have as many tasks of each role on each node, and the same batch."""
    batch = _known_batch(said)
    if batch is not None and batch != decided.batch:
        return False
    return _tasks_decided(decided) == _tasks_said(said)


def _tasks_decided(decided: AllocationDecided) -> TaskCounts:
    """Return the number of tasks by role and node, without the chief."""
    counts: TaskCounts = Counter()
    for task in decided.tasks:
        if task.role != "chief":
            counts[task.role, task.node] += 1
    return counts


def _tasks_said(said: Current) -> TaskCounts:
    """Return the number of tasks by role and node, without the chief."""
    counts: TaskCounts = Counter()
    for node in said.ps:
        counts["ps", node] += 1
    for node in said.workers:
        counts["worker", node] += 1
    return counts


def _known_batch(said: Current) -> int | None:
    """Return the batch; None if it is unknown, not finite or below 1."""
    if said.batch is None or not isfinite(said.batch) or said.batch < 1:
        return None
    return round(said.batch)


# ---------------------------------------------------------------- tasks without a known decision


def _decision_as_it_runs(job: Job, said: Current, rules: Rules) -> AllocationDecided:
    """Return a decision with the running tasks. Tasks that are already known keep their serials."""
    known = _known_tasks(job)
    chief = said.chief or _chief_node(said, known)
    sizes = task_sizes(job, rules)
    serials = count(job.serials)
    tasks = [
        *_tasks_of_role("chief", [chief], sizes.chief, known, serials),
        *_tasks_of_role("ps", said.ps, sizes.ps, known, serials),
        *_tasks_of_role("worker", said.workers, sizes.worker, known, serials),
    ]

    batch = _running_batch(job, said)
    found = next_decision(job, tasks, batch, 0.0, Rationale(reason="as it runs", cause="-"))
    generation = max(job.generation + 1, said.generation or 0)
    return replace(found, generation=generation)


def _known_tasks(job: Job) -> list[TaskPlan]:
    """Return the tasks of the running decision, then those of the one in flight."""
    known: list[TaskPlan] = []
    for decided in (job.active_decision, job.pending_decision):
        if decided:
            known += decided.tasks
    return known


def _running_batch(job: Job, said: Current) -> int:
    """Return the batch in the document; else that of the newest decision, or of the request."""
    batch = _known_batch(said)
    if batch:
        return batch
    if job.newest_decision:
        return job.newest_decision.batch
    return job.request.batch.start


def _chief_node(said: Current, known: Iterable[TaskPlan]) -> str:
    """Return the node of the known chief; else that of the first worker, or of the first ps."""
    for task in known:
        if task.role == "chief":
            return task.node
    return (*said.workers, *said.ps)[0]


def _tasks_of_role(
    role: Role,
    nodes: Sequence[str],
    size: Resources,
    known: Sequence[TaskPlan],
    serials: Iterator[int],
) -> list[TaskPlan]:
    """Return the tasks of one role, one for each of the nodes.

    A task takes the serial of a known task of the role on its node, each serial once; otherwise the
    next of `serials`.
    """
    left = [task for task in known if task.role == role]
    tasks = []
    for index, node in enumerate(nodes):
        serial = _serial_on(node, left)
        if serial is None:
            serial = next(serials)
        else:
            left = [task for task in left if task.serial != serial]
        task = TaskPlan(
            role=role,
            index=index,
            serial=serial,
            node=node,
            resources=size,
        )
        tasks.append(task)
    return tasks


def _serial_on(node: str, tasks: Iterable[TaskPlan]) -> int | None:
    """Return the serial of the first task on the node."""
    for task in tasks:
        if task.node == node:
            return task.serial
    return None


Size = tuple[int, int, int, int | None]
"""ps, workers, batch, and the number of nodes of an all-reduce job."""


def with_observations(job: Job, said: JobDocument, now: float) -> Job:
    """Return the job with the speeds, the pause and the progress of the newest document."""
    pauses = job.pauses
    if said.pause_s is not None and _is_number(said.pause_s):
        pauses = (said.pause_s,)
    observed = _all_observed(job, said.observed or ())
    job = replace(job, observed=observed, pauses=pauses)
    if said.progress is None:
        return job
    return _with_progress(job, said.progress, now)


def _is_number(value: float | None) -> bool:
    """Return True if a value is known, finite and not negative."""
    return value is not None and isfinite(value) and value >= 0


# ---------------------------------------------------------------- speed


def _all_observed(job: Job, said: tuple[Speed, ...]) -> tuple[Observed, ...]:
    """Return the observed speeds of all sizes; a new speed of a size replaces the old one."""
    speeds_by_size = _speeds_by_size(job, said)
    observed = []
    for known in job.observed:
        size = (known.ps, known.workers, known.batch, known.nodes)
        if size not in speeds_by_size:
            observed.append(known)
    for size, speeds in speeds_by_size.items():
        new = _observed_at(size, speeds, job)
        observed.append(new)
    return tuple(observed)


def _observed_at(size: Size, speeds: list[float], job: Job) -> Observed:
    """Return the mean of the speeds of one size. The cores of a task are those of its request."""
    ps, workers, batch, nodes = size
    resources = job.request.resources or RoleResources()
    return Observed(
        ps,
        workers,
        batch,
        fmean(speeds),
        resources.ps.cpu,
        resources.worker.cpu,
        nodes,
    )


def _speeds_by_size(job: Job, said: tuple[Speed, ...]) -> dict[Size, list[float]]:
    """Return the speeds (samples a second) of all usable observations."""
    usual = job.active_decision.batch if job.active_decision else job.request.batch.start
    by_size: dict[Size, list[float]] = {}
    for one in said:
        batch = usual if one.batch is None else one.batch
        speed = _samples_per_second(one, batch)
        if speed is None or not isfinite(speed + one.workers + one.ps + batch):
            continue
        if speed > 0 and one.workers >= 1 and one.ps >= 0:
            size = _rounded_size(one, batch)
            by_size.setdefault(size, []).append(speed)
    return by_size


def _samples_per_second(said: Speed, batch: float) -> float | None:
    """Return the speed in the document, or that of its step time; None if both are unknown."""
    if said.samples_per_second is not None:
        return said.samples_per_second
    if said.step_s and said.step_s > 0:
        return batch / said.step_s
    return None


def _rounded_size(said: Speed, batch: float) -> Size:
    """Return ps, workers, batch and nodes as whole numbers, so that speeds of one size have one
    key. The number of nodes is None if it is unknown or makes no difference.
    """
    ps = round(said.ps)
    workers = round(said.workers)
    return ps, workers, round(batch), _node_count(said)


def _node_count(said: Speed) -> int | None:
    """Return the number of nodes. It counts only for all-reduce jobs, without ps."""
    nodes = said.nodes
    if nodes is None or said.ps >= 1:
        return None
    if not isinstance(nodes, int):
        nodes = len(set(nodes))
    return max(1, nodes)


# ---------------------------------------------------------------- progress and loss


def _with_progress(job: Job, said: Progress, now: float) -> Job:
    """Return the job with the loss curve, and with a report if a decision of it runs."""
    job = replace(job, curve=_loss_curve(job.curve, said))
    runs = job.active_decision
    if runs is None:
        return job
    if not _is_number(said.samples) or not _is_number(said.total_samples):
        return job

    report = _progress_report(job, runs, said, now)
    last = job.progress
    job = replace(job, progress=report)
    if last and _says_same(last, report):
        return job
    recent = (*job.recent, _progress_reading(runs, report, now))
    return replace(job, recent=recent[-RECENT_KEPT:])


def _says_same(last: ProgressReported, report: ProgressReported) -> bool:
    """Return True if a report has nothing new, so that it is not a further reading."""
    return last.samples == report.samples and last.generation == report.generation


def _progress_report(
    job: Job, runs: AllocationDecided, said: Progress, now: float
) -> ProgressReported:
    """Return the report that the trainers of a decision would make of this progress."""
    loss = None
    if said.loss and job.curve:
        loss = job.curve[-1].loss
    noise = None
    if _is_number(said.gradient_noise):
        noise = said.gradient_noise

    samples = round(said.samples or 0)
    return ProgressReported(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        generation=runs.generation,
        step=samples // max(1, runs.batch),
        epoch=0,
        samples=samples,
        total_samples=round(said.total_samples or 0),
        samples_per_second=_observed_speed(job, runs),
        loss=loss,
        gradient_noise=noise,
        profile=_model_profile(said.profile),
        reported_s=now,
    )


def _observed_speed(job: Job, runs: AllocationDecided) -> float:
    """Return the speed of the job at the size of a decision; 0 if it is unknown."""
    size = (role_count(runs, "ps"), role_count(runs, "worker"), runs.batch)
    for known in job.observed:
        if (known.ps, known.workers, known.batch) == size:
            return known.samples_per_second
    return 0.0


def _progress_reading(runs: AllocationDecided, report: ProgressReported, now: float) -> Reading:
    """Return a report with the running size. A document has no usage of CPU and memory."""
    return Reading(
        at_s=now,
        samples=report.samples,
        loss=report.loss,
        samples_per_second=report.samples_per_second,
        ps=role_count(runs, "ps"),
        workers=role_count(runs, "worker"),
        batch=runs.batch,
    )


def _loss_curve(known: tuple[LossPoint, ...], said: Progress) -> tuple[LossPoint, ...]:
    """Return the known curve, replaced from the first new point on; thinned as in the fold."""
    points = _loss_points(said)
    if not points:
        return known

    first = points[0].samples
    curve = [point for point in known if point.samples < first]
    curve += points
    return tuple(_thinned_curve(curve))


def _thinned_curve(curve: list[LossPoint]) -> list[LossPoint]:
    """Leave out every second point, but not the last one, until the curve is short enough."""
    while len(curve) > CURVE_KEPT:
        curve = [*curve[:-1:2], curve[-1]]
    return curve


def _loss_points(said: Progress) -> list[LossPoint]:
    """Return the points of the loss that are numbers."""
    points = []
    for at, loss in said.loss:
        if loss is not None and isfinite(loss + at):
            point = LossPoint(round(at), loss)
            points.append(point)
    return points


def _model_profile(said: Profile | None) -> ModelProfile | None:
    """Return the model's profile, or None if the number of parameters is unknown.

    If the size is unknown, a parameter has 4 bytes. If the number of variables is unknown, it is
    the number of parameters.
    """
    if said is None or not _is_number(said.parameters):
        return None
    parameters = round(said.parameters or 0)
    size = 4 * parameters
    if said.bytes is not None and _is_number(said.bytes):
        size = round(said.bytes)
    variables = parameters
    if said.variables is not None:
        variables = round(said.variables)
    return ModelProfile(parameters=parameters, bytes=size, variables=variables)
