"""Start a waiting job, or resize a running one, if room, gain and timing allow.

A job starts at its target, or as large as the room allows. It waits if not even its gang floor
(minimum of ps and of workers, and the chief) fits. A running job that is to grow waits for room for
the whole change, because others may be about to give up capacity. After the maximum delay it grows
as far as there is room, because free capacity may be scattered. Each pause must pay. Cores and
memory of running tasks change in place: without a pause, so without a price, task by task as there
is room. Such a change must also stay wanted for the window.

The target has two caps. `quota_cap`: a running job that should exceed its quota grows as far as the
quota allows; the rest of the target waits. A change that adds tasks of one role and removes tasks
of another waits as a whole, because the removed tasks become free later. `ps_cap`: each variable is
on one ps, so additional ps have nothing to serve (tensorflow#37100). The number of variables is
known after the first report. The cap never shrinks a job.

A job above the bounds that its user changed shrinks at once; a job below them grows as soon as
there is room. Neither has to pay, because the user asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from services.allocator.placement.placers import (
    Placer,
    place,
    place_colocated,
    place_on_one_node,
    worker_node_count,
)
from services.allocator.placement.quota import gang_shortage
from services.allocator.placement.resizing import have_sizes, place_all_resized, place_resized
from services.allocator.placement.trial import Placed, Shortage, quota_grant
from services.allocator.policies.contract import JobSnapshot, Size, Target
from services.allocator.state.job import Job
from services.allocator.state.policy_view import counted_size, shrink_floor, size_of
from services.allocator.state.releases import bounded_wait, expected_room
from services.allocator.steps.preemption import decide_tasks, release_wait
from services.allocator.steps.resize_conditions import (
    Payback,
    PendingChange,
    change_due_s,
    payback_of,
    retry_s,
    update_pending_change,
)
from services.allocator.steps.verdict import Rationale, Situation, Verdict, grant_tasks
from shared.messages import AllocationDecided, Alternative, JobRequested, Span, TaskPlan
from shared.text import format_count


def await_pending_decision(job: Job) -> Verdict | None:
    """Wait for a decision in flight; None: there is none."""
    pending = job.pending_decision
    if pending is None:
        return None
    return Verdict(why=f"generation {pending.generation} is in flight: {pending.reason}")


def is_settled(job: JobSnapshot, target: Target) -> bool:
    """Return True if a job has the size that its policy wants, so that room and time do not matter.

    Only for jobs without a quota, without a pending generation and without an abandoned one.
    """
    if not target.ps and not target.workers:
        return True
    size = job.size
    if size is None or size.ps != target.ps or size.workers != target.workers:
        return False
    return job.batch == target.batch and target.sizes is None and target.speedup_if_spread is None


def start_or_resize(situation: Situation) -> Verdict:
    """Start a job, resize it, or return why nothing changes now."""
    job = situation.job
    now = situation.now
    pending_change, releasing = bounded_wait(
        situation.pending_change, situation.releasing, now, situation.settings
    )
    if pending_change is not situation.pending_change or releasing is not situation.releasing:
        situation = replace(situation, pending_change=pending_change, releasing=releasing)

    # 1. Wait for the pods of a suspended job to end, and after an abandoned generation.
    if job.suspended_s:
        waits = release_wait(situation)
        if waits:
            return waits
    retry_at_s = retry_s(job, situation.settings)
    if now < retry_at_s:
        why = f"tries again after a pause: {job.abandoned_why}"
        return Verdict(why=why, wake_s=retry_at_s)

    # 2. Start a job that waits, if its policy gives it a size.
    target = situation.target
    if target is None:
        return Verdict(why=_reason_without_target(situation))
    if target.waits:
        return Verdict(why=floor_shortage(situation) or target.reason)
    current = situation.current
    if current is None:
        return _start(situation, target)

    # 3. Resize a job that runs, as far as its quota and its variables allow.
    with expected_room(situation.room, releasing):
        target = quota_cap(situation, current, ps_cap(situation, current, target))
    if current.batch == target.batch and situation.size == target.size:
        return _keep_size(situation, current, target)
    if job.is_trained:
        return Verdict(why="all examples are applied: the job is about to finish")
    return _resize(situation, current, target)


# ---------------------------------------------------------------- a job that waits


def _reason_without_target(situation: Situation) -> str:
    """Return the reason for a job without a desired size: a lack of room, if its floor has none."""
    if situation.current is not None:
        return "keeps its size: its policy gives no target"
    request = situation.job.request
    trial = situation.trial((), Size(request.ps.min, request.workers.min))
    if isinstance(trial, Shortage):
        return trial.describe()
    trial.undo()
    return "waits: its policy gives no target"


def _start(situation: Situation, target: Target) -> Verdict:
    """Start a job at its target, or as large as there is room for; not below its gang floor."""
    size = target.size
    sizes = situation.sizes(target)
    trial = situation.trial((), size, shrink_floor(situation.job, size), sizes)
    if isinstance(trial, Shortage):
        return Verdict(why=trial.describe())
    if trial.is_whole:
        return _grant(situation, trial.tasks, target)
    # Its part stays taken, so that no later job of this pass gets it.
    releasing = situation.releasing
    if releasing.free and trial.has_more_room_later(releasing.free, releasing.quota):
        return _await_release(situation, _pending_change(situation, target))
    return _start_smaller(situation, target, trial)


def _start_smaller(situation: Situation, target: Target, trial: Placed) -> Verdict:
    """Start a job at the size that there is room for; its target is an alternative that was
    lost.
    """
    missing = trial.missing()
    quota = missing.quota_reason()
    why = quota or f"not enough room{missing.missing_resources()}"
    limit = "as far as its quota allows" if quota else "as far as there is room"
    lost = Alternative(ps=target.ps, workers=target.workers, batch=target.batch, why=why)
    part = target.shrunk_to(counted_size(trial.tasks), target.batch, limit)
    return _grant(situation, trial.tasks, part, alternatives=[lost])


def _await_release(situation: Situation, pending: PendingChange) -> Verdict:
    """Keep the pending change until the capacity is free. The next pass begins at the end of the
    wait at the latest.
    """
    if pending.awaits_s is None:
        pending = replace(pending, awaits_s=situation.now)
    why = f"waits for capacity that is being released, for {pending.size.describe()}"
    return Verdict(why=why, pending_change=pending)


def _pending_change(situation: Situation, target: Target) -> PendingChange:
    """Return the pending change for a target."""
    size = target.size
    batch = target.batch
    sizes = target.sizes
    return update_pending_change(
        situation.pending_change, size, batch, situation.now, situation.cause, sizes
    )


# ---------------------------------------------------------------- a job that keeps its size


def _keep_size(situation: Situation, current: AllocationDecided, target: Target) -> Verdict:
    """Keep tasks and batch; cores and memory of the tasks may change."""
    if target.speedup_if_spread is not None and worker_node_count(current.tasks) > 1:
        return _colocate(situation, current, target)
    if target.sizes is None:
        return Verdict(why=target.reason)
    sizes = situation.sizes(target)
    if have_sizes(current.tasks, sizes):
        return Verdict(why=target.reason)
    generation = situation.job.generation
    if generation != current.generation:
        # After an abandoned generation the launcher hears of none before it.
        until = f"until a generation after {generation} runs"
        return Verdict(why=f"keeps its cores {until}: {target.reason}")
    return _stretch_tasks(situation, current, target)


def _stretch_tasks(situation: Situation, current: AllocationDecided, target: Target) -> Verdict:
    """Change cores and memory of the tasks in place, once that was wanted for long enough."""
    now = situation.now
    sizes = situation.sizes(target)
    pending = update_pending_change(
        situation.pending_change, target.size, target.batch, now, situation.cause, sizes
    )

    # A small difference does not restart the window, because the change costs no pause.
    due = pending.first_s + situation.settings.window_s
    if now < due:
        why = f"will have other cores or memory, if still wanted: {target.reason}"
        return Verdict(why=why, wake_s=due, pending_change=pending)

    trial = _try_target(situation, current, target, place_resized)
    if isinstance(trial, Shortage):
        waits = f"waits for room for more cores or memory: {target.reason}"
        return Verdict(why=trial.quota_reason() or waits, pending_change=pending)
    if not have_sizes(trial.tasks, sizes):
        target = replace(target, reason=f"{target.reason}, as far as there is room")
    return _grant(situation, trial.tasks, target, cause=pending.cause)


def _colocate(situation: Situation, current: AllocationDecided, target: Target) -> Verdict:
    """Move devices that stand on several nodes onto one that can hold them all."""
    job, settings = situation.job, situation.settings
    gain = _gain(situation, target)
    is_early = situation.now < job.resumed_s + settings.cooldown_s
    if not gain.pays or is_early or _lacks_speed_report(situation):
        return Verdict(why=target.reason)
    trial = _try_target(situation, current, target, place_on_one_node)
    if isinstance(trial, Shortage):
        return Verdict(why=target.reason)
    target = replace(target, reason=f"all on one node: {target.reason}")
    return _grant(situation, trial.tasks, target, gain=gain)


# ---------------------------------------------------------------- a job that gets another size


def _resize(situation: Situation, current: AllocationDecided, target: Target) -> Verdict:
    """Resize a job that runs, if that pays, and once it was wanted for long enough."""
    job = situation.job
    gain = _gain(situation, target)
    new_size = target.size.describe()
    if target.batch != current.batch:
        new_size = f"{new_size} with batch {target.batch}"

    # 1. Does it pay, and soon enough?
    if _grows(situation.size, target) and not gain.pays:
        return Verdict(why=f"{new_size} is not worth the pause: {gain.describe()}")
    if gain.left_s <= _handover_s(job, current, gain):
        job_end = f"the job ends in {gain.left_s:.1f} s without it"
        return Verdict(why=f"{new_size} would come too late: {job_end}")

    # 2. Has it been wanted for long enough?
    pending = _pending_change(situation, target)
    if _lacks_speed_report(situation):
        return Verdict(why="waits for a speed report at its present size", pending_change=pending)
    due = change_due_s(pending, job.resumed_s, situation.settings)
    if situation.now < due:
        # Room is not needed before that time.
        room_too = "" if _shrinks(situation.size, target) else " and there is room"
        why = f"will have {new_size}, if still wanted{room_too}: {target.reason}"
        return Verdict(why=why, wake_s=due, pending_change=pending)

    # 3. Is there room for it?
    return _with_room(situation, current, target, pending, gain)


def _with_room(
    situation: Situation,
    current: AllocationDecided,
    target: Target,
    pending: PendingChange,
    gain: Payback,
) -> Verdict:
    """Place a change that is due and pays: all of it, or a part."""
    trial = _try_target(situation, current, target, _placer(target))
    if isinstance(trial, Shortage):
        return _without_room(situation, current, target, pending, trial)
    return _decide_placed(situation, current, target, pending, gain, trial)


def _without_room(
    situation: Situation,
    current: AllocationDecided,
    target: Target,
    pending: PendingChange,
    shortage: Shortage,
) -> Verdict:
    """Wait for room. Once the change has waited for long enough, grow as far as there is room."""
    size = situation.size
    grows = _grows(size, target)
    releasing = situation.releasing
    if releasing.free and shortage.has_more_room_later(size, releasing.free, releasing.quota):
        if grows:
            shortage.place_part(size)  # so that no later job of this pass gets it
        return _await_release(situation, pending)

    quota = shortage.quota_reason()
    lacks = "" if quota else shortage.missing_resources()
    why = quota or f"waits for room{lacks} for {target.size.describe()}"
    until_s = pending.first_s + situation.settings.max_delay_s
    if situation.now < until_s:
        return Verdict(why=why, wake_s=until_s, pending_change=pending)

    part = shortage.place_part(size) if grows else None
    if part is not None:
        limit = f"as far as there is room{lacks}"
        less = target.shrunk_to(counted_size(part.tasks), current.batch, limit)
        gain = _gain(situation, less)
        if gain.pays:
            return _decide_placed(situation, current, less, pending, gain, part)
        part.undo()
    return Verdict(why=why, pending_change=pending)


def _decide_placed(
    situation: Situation,
    current: AllocationDecided,
    target: Target,
    pending: PendingChange,
    gain: Payback,
    placed: Placed,
) -> Verdict:
    """Decide on a change that has a place, unless it does not pay because its devices are on
    several nodes.
    """
    size = situation.size
    if (
        target.speedup_if_spread is not None
        and _grows(size, target)
        and worker_node_count(placed.tasks) > 1
    ):
        gain = _gain(situation, replace(target, speedup=target.speedup_if_spread))
        if not gain.pays:
            placed.undo()
            workers = format_count(target.workers, "worker")
            return Verdict(why=f"waits for room for {workers} on one node", pending_change=pending)

    why = f"keeping its size: the change {gain.describe()}"
    stay = Alternative(ps=size.ps, workers=size.workers, batch=current.batch, why=why)
    others = (*target.alternatives, stay)
    return _grant(situation, placed.tasks, target, pending.cause, others, gain)


def _try_target(
    situation: Situation, current: AllocationDecided, target: Target, placer: Placer
) -> Placed | Shortage:
    """Place the target of a job that runs, beside the tasks that it keeps."""
    return situation.trial(current.tasks, target.size, sizes=situation.sizes(target), placer=placer)


def _placer(target: Target) -> Placer:
    """Return the placer for the tasks of a job that is resized."""
    if target.sizes is not None:
        return place_all_resized
    return place_colocated if target.ps == 0 else place


# ---------------------------------------------------------------- the gain of a change


def _gain(situation: Situation, target: Target) -> Payback:
    """Return the seconds of training that a target size saves, against the pause that it costs. The
    policy's own speed estimates are used if there are any, else the observed speeds.
    """
    return payback_of(
        situation.seen,
        target.size,
        target.batch,
        situation.settings,
        target.speedup,
        target.speed_now,
    )


def _lacks_speed_report(situation: Situation) -> bool:
    """Return True if the job has not reported its speed since its last change. Another change would
    follow from no new fact, and might revert the last one.
    """
    job = situation.job
    if job.progress is None or job.progress.generation == job.running:
        return False
    return situation.now - job.resumed_s < situation.settings.silent_s


def _handover_s(job: Job, current: AllocationDecided, gain: Payback) -> float:
    """Return how long (s) a decision takes to have an effect: as long as the last one, and no less
    than its pause. A job that ends sooner gains nothing, and gives its room back sooner.
    """
    return max(gain.cost_s, job.resumed_s - current.decided_s if job.pauses else 0.0)


def _grows(size: Size, target: Target) -> bool:
    """Return True if a target has no fewer tasks of either role."""
    return target.ps >= size.ps and target.workers >= size.workers


def _shrinks(size: Size, target: Target) -> bool:
    """Return True if a target has no more tasks of either role."""
    return target.ps <= size.ps and target.workers <= size.workers


# ---------------------------------------------------------------- decisions


def _grant(
    situation: Situation,
    tasks: Sequence[TaskPlan],
    target: Target,
    cause: str | None = None,
    alternatives: Sequence[Alternative] = (),
    gain: Payback | None = None,
) -> Verdict:
    """Give a job these tasks, for the reason of the target. `cause`: of a pending change; None:
    the newest fact.
    """
    rationale = Rationale(
        reason=target.reason,
        cause=situation.cause if cause is None else cause,
        alternatives=alternatives or target.alternatives,
        gain_s=gain.saved_s if gain else 0.0,
        cost_s=gain.cost_s if gain else 0.0,
    )
    return grant_tasks(situation, tasks, target.batch, rationale)


def quota_cap(situation: Situation, current: AllocationDecided, target: Target) -> Target:
    """Return the target of a running job, or as much of its growth as the quota has room for."""
    now = situation.size
    if (
        situation.job.request.namespace not in situation.room.remaining_quotas
        or not _has_more_tasks(now, target.size)
    ):
        return target
    placer = place if target.sizes is None else place_all_resized
    sizes = situation.sizes(target)
    request = situation.request(current.tasks, target.size, now, sizes, placer)
    granted, why = quota_grant(situation.room, request)
    if granted == target.size:
        return target
    return _cut_target(target, granted, now, current.batch, why)


def _has_more_tasks(now: Size, target: Size) -> bool:
    """Return True if the target has more tasks, and of no role fewer."""
    return target != now and target.ps >= now.ps and target.workers >= now.workers


def floor_shortage(situation: Situation) -> str:
    """Return why the quota has no room for a job's gang floor; empty: it has."""
    request = situation.job.request
    room = situation.room
    if request.namespace not in room.remaining_quotas:
        return ""
    floor = Size(request.ps.min, request.workers.min)
    quota = situation.settings.quotas.get(request.namespace)
    return gang_shortage(room, situation.job.key, floor, situation.sizes(), quota)


def _cut_target(target: Target, size: Size, now: Size, batch: int, why: str) -> Target:
    """Return the target at a smaller size, with the running batch: the wanted one was for more
    workers.
    """
    lost = Alternative(ps=target.ps, workers=target.workers, batch=target.batch, why=why)
    granted = target.shrunk_to(size, batch, "as far as its quota allows")
    reason = why if size == now else granted.reason
    return replace(granted, reason=reason, alternatives=(lost,))


def ps_cap(situation: Situation, current: AllocationDecided, target: Target) -> Target:
    """Return the target without ps that have no variable to serve."""
    job = situation.job
    profile = job.progress.profile if job.progress else None
    if profile is None or not profile.variables:
        return target
    now = size_of(current)
    most = max(profile.variables, now.ps, job.request.ps.min)
    if target.ps <= most:
        return target
    why = (
        f"more than {most} ps cannot help: the model has"
        f" {format_count(profile.variables, 'variable')}"
    )
    return _with_ps(target, most, why, now)


def _with_ps(target: Target, ps: int, why: str, now: Size) -> Target:
    """Return the target with fewer ps. It keeps the speed of the whole target where that of the cut
    is not known.
    """
    lost = Alternative(ps=target.ps, workers=target.workers, batch=target.batch, why=why)
    capped = target.shrunk_to(Size(ps, target.workers), target.batch, f"for {why}")
    alternatives = (lost, *target.alternatives)
    reason = why if capped.size == now else capped.reason
    speeds = capped if capped.speedup else target
    return replace(
        capped,
        reason=reason,
        speedup=speeds.speedup,
        speed_now=speeds.speed_now,
        alternatives=alternatives,
    )


# ---------------------------------------------------------------- bounds that the user changed


def fit_into_bounds(situation: Situation) -> Verdict | None:
    """Take the size of a job into the bounds that its user changed; None: it is within them, or has
    to wait.
    """
    job, current = situation.job, situation.current
    if not job.changed or current is None or job.pending_generation is not None or job.is_trained:
        return None
    if situation.now < retry_s(job, situation.settings):
        return None
    size = size_of(current)
    wanted = _inside_bounds(size, job.request)
    if size == wanted:
        return None
    trial = situation.trial(current.tasks, wanted)
    if isinstance(trial, Shortage):
        return None
    return decide_tasks(situation, trial.tasks, f"its bounds were changed: {wanted.describe()}")


def _inside_bounds(size: Size, request: JobRequested) -> Size:
    """Return the size within the bounds of the request that is nearest to this one."""
    ps = _inside(size.ps, request.ps)
    workers = _inside(size.workers, request.workers)
    return Size(ps, workers)


def _inside(number: int, span: Span) -> int:
    return max(span.min, min(number, span.max))
