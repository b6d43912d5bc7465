"""What becomes of a want: a first allocation at once, a change when there is room, gain and time for it.

A job starts at the size wanted, or as large as there is room for, and waits while not even its gang floor (minimum of
ps and of workers, and the chief) fits. A running job that is to grow waits for the whole of it, because others may be
about to give up room, but no longer than the maximum delay: then it grows as far as there is room, for what is free in
sum may lie scattered. Each pause must pay. Cores and memory of the tasks that stand change in place:
without a pause, so without a price, task by task as there is room; they have to stay wanted, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap

from msgspec.structs import replace

from services.allocator.allowance import allowed, short, short_at_start, short_of_floor
from services.allocator.ground import Ground
from services.allocator.job import Job
from services.allocator.kept import KeptEach, by_ids
from services.allocator.payback import Payback, payback
from services.allocator.placing.gathering import gathered, spread
from services.allocator.placing.lacking import lacking
from services.allocator.placing.misfit import misfit
from services.allocator.placing.placement import ROLES, Room, has_room, place_most
from services.allocator.placing.resizing import alike, in_place, wanted_sizes
from services.allocator.policies.contract import Size, Want
from services.allocator.preemption import release_wait
from services.allocator.releases import NOTHING, Coming, bounded_wait, expected_room
from services.allocator.rules import Rules
from services.allocator.seen import counted_size, least_of, seen, size_of
from services.allocator.timing import Wish, due_s, retry_s, wished
from services.allocator.usefulness import useful
from services.allocator.verdict import Verdict, decision
from shared.messages import AllocationDecided, Alternative, RoleResources, TaskPlan
from shared.words import counted


def in_flight(job: Job) -> Verdict | None:
    """None where no decision is in flight."""
    flies = job.flies
    return Verdict(why=f"generation {flies.generation} is in flight: {flies.reason}") if flies else None


def _settled(job: Job, want: Want) -> Verdict | None:
    """Where nothing is to be done, whatever room and time there is."""
    runs = job.runs
    if want.waits:
        return Verdict(why=want.reason)
    if runs is None or want.sizes is not None or want.apart is not None:
        return None
    return Verdict(why=want.reason) if (size_of(runs), runs.batch) == (want.size, want.batch) else None


settled: KeptEach[tuple[Job, Want], Verdict | None] = KeptEach(lambda pairs: starmap(_settled, pairs), by_ids)
"""Of jobs for which nothing was abandoned, and whose namespaces have no quota."""


def changed(
    job: Job,
    want: Want | None,
    wish: Wish | None,
    room: Room,
    now: float,
    rules: Rules,
    cause: str,
    coming: Coming = NOTHING,
) -> Verdict:
    runs = job.runs
    wish, coming = bounded_wait(wish, coming, now, rules)
    if job.suspended_s and (waits := release_wait(job, room, now)):
        return waits
    if now < retry_s(job, rules):
        return Verdict(why=f"tries again after a pause: {job.abandoned_why}", wake_s=retry_s(job, rules))
    if want is None:
        return Verdict(why=_left_alone(job, room, rules))
    if want.waits:
        return Verdict(why=short_of_floor(job, room, rules) or want.reason)
    if runs is None:
        return _started(job, want, wish, room, now, rules, cause, coming)
    with expected_room(room, coming):
        want = allowed(job, runs, useful(job, runs, want), room, rules)
    if (size_of(runs), runs.batch) == (want.size, want.batch):
        return _stays(job, runs, want, wish, room, now, rules, cause)
    if job.is_trained:
        return Verdict(why="every example is applied: it ends as it is")
    return _resized(job, runs, want, wish, room, now, rules, cause, coming)


def _left_alone(job: Job, room: Room, rules: Rules) -> str:
    """The policy says nothing of it; that is not why it waits, where its floor has no room."""
    if job.runs is not None:
        return "the policy leaves it as it is"
    least, sizes = Size(job.request.ps.min, job.request.workers.min), wanted_sizes(job, None, rules)
    return (
        "the policy lets it wait"
        if has_room(room, job.key, (), least, sizes)
        else _waits(job, least, sizes, room, rules)
    )


def _waits(job: Job, least: Size, sizes: RoleResources, room: Room, rules: Rules) -> str:
    """Return why there is no room for the smallest size of a job: for ever as things are, or now.

    Jobs of one size without a quota wait for the same reason, which is found once in each pass.
    """
    question = room.question(job.key, least, least, sizes)
    if question is None or room.purse(job.key) is not None:
        return _reason_to_wait(job, least, sizes, room, rules)
    if question not in room.waits:
        room.waits[question] = _reason_to_wait(job, least, sizes, room, rules)
    return room.waits[question]


def _reason_to_wait(job: Job, least: Size, sizes: RoleResources, room: Room, rules: Rules) -> str:
    needed = [role for role in ROLES if least.of(role)]
    if never := misfit(room, needed, sizes) or short_at_start(job, least, sizes, room, rules):
        return never
    return f"waits for room{lacking(room, job.key, (), least, sizes)} for a chief, {least.told()}"


def _started(
    job: Job, want: Want, wish: Wish | None, room: Room, now: float, rules: Rules, cause: str, coming: Coming
) -> Verdict:
    size, sizes = want.size, wanted_sizes(job, want.sizes, rules)
    least = least_of(job, size)
    quota = short_at_start(job, size, sizes, room, rules)
    mark = room.mark()
    tasks = place_most(room, job.key, (), size, least, sizes, job.serials)
    if tasks is None:
        return Verdict(why=_waits(job, least, sizes, room, rules))
    if len(tasks) == 1 + want.ps + want.workers:
        return _granted(job, tasks, want, now, want.reason, cause)
    if coming.free:
        room.undo(mark)
        later = _places_later(job, size, least, sizes, room, coming)
        tasks = place_most(room, job.key, (), size, least, sizes, job.serials) or tasks
        if later > len(tasks):  # what it could have now stays taken, so that no later job of this pass has it
            return _await_release(wished(wish, size, want.batch, now, cause, want.sizes), now)
    has = want.cut(counted_size(tasks), want.batch, f"as far as {'its quota allows' if quota else 'there is room'}")
    lost = _lost_size(want, quota or f"not enough room{lacking(room, job.key, tasks, want.size, sizes)}")
    return _granted(job, tasks, has, now, has.reason, cause, alternatives=[lost])


def _stays(
    job: Job, runs: AllocationDecided, want: Want, wish: Wish | None, room: Room, now: float, rules: Rules, cause: str
) -> Verdict:
    """Neither tasks nor batch change; what the tasks have may."""
    if want.apart is not None and spread(runs.tasks) > 1:
        return _moved(job, runs, want, room, now, rules, cause)
    if want.sizes is None:
        return Verdict(why=want.reason)
    sizes = wanted_sizes(job, want.sizes, rules)
    if alike(runs.tasks, sizes):
        return Verdict(why=want.reason)
    if barred := _barred(job, runs):
        return Verdict(why=f"keeps its cores {barred}: {want.reason}")
    held = wished(wish, want.size, want.batch, now, cause, sizes)
    due = held.first_s + rules.window_s  # a wish that moves a little is no other wish, for it costs no pause
    if now < due:
        told = f"will have other cores or memory, if still so: {want.reason}"
        return Verdict(why=told, wake_s=due, wish=held)
    tasks = in_place(room, job.key, runs.tasks, sizes)
    if tasks == runs.tasks:
        waits = f"waits for room for more cores or memory: {want.reason}"
        return Verdict(why=short(job, runs, want, room, rules) or waits, wish=held)
    reason = want.reason if alike(tasks, sizes) else f"{want.reason}, as far as there is room"
    return _granted(job, tasks, want, now, reason, held.cause)


def _moved(job: Job, runs: AllocationDecided, want: Want, room: Room, now: float, rules: Rules, cause: str) -> Verdict:
    """Its devices stand on several nodes though one could hold them all."""
    gain, mark = _gain(job, want, rules), room.mark()
    if not gain.pays or _unheard(job, now, rules) or now < job.resumed_s + rules.cooldown_s:
        return Verdict(why=want.reason)
    tasks = gathered(room, job.key, runs.tasks, want.size, wanted_sizes(job, None, rules), job.serials)
    if tasks is None or spread(tasks) > 1:
        room.undo(mark)
        return Verdict(why=want.reason)
    return _granted(job, tasks, want, now, f"all on one node: {want.reason}", cause, gain=gain)


def _barred(job: Job, runs: AllocationDecided) -> str:
    """Why nothing can change in place. After an abandoned generation the launcher hears of none before it."""
    return "" if job.generation == runs.generation else f"until a generation after {job.generation} runs"


def _places_later(job: Job, size: Size, least: Size, sizes: RoleResources, room: Room, coming: Coming) -> int:
    """Return how many tasks of a job that starts have a place once what is being released is free."""
    mark = room.mark()
    with expected_room(room, coming):
        tasks = place_most(room, job.key, (), size, least, sizes, job.serials)
        room.undo(mark)
    return len(tasks or ())


def _await_release(held: Wish, now: float) -> Verdict:
    """Keep the wish until the capacity is free; `decide` wakes at the latest when it is no longer waited for."""
    waiting = held if held.awaits_s is not None else replace(held, awaits_s=now)
    return Verdict(why=f"waits for capacity that is being released, for {held.size.told()}", wish=waiting)


def _resized(
    job: Job,
    runs: AllocationDecided,
    want: Want,
    wish: Wish | None,
    room: Room,
    now: float,
    rules: Rules,
    cause: str,
    coming: Coming,
) -> Verdict:
    size, gain = size_of(runs), _gain(job, want, rules)
    if _grows(size, want) and not gain.pays:
        return Verdict(why=f"{_told(runs, want)} do not pay: {gain.told()}")
    if gain.left_s <= _handover_s(job, runs, gain):
        return Verdict(why=f"{_told(runs, want)} would come too late: it ends in {gain.left_s:.1f} s as it is")
    held = wished(wish, want.size, want.batch, now, cause, want.sizes)
    if _unheard(job, now, rules):
        return Verdict(why="waits for its speed at the size that it has", wish=held)
    due = due_s(held, job.resumed_s, rules)
    if now < due:
        room_too = "" if want.ps <= size.ps and want.workers <= size.workers else " and there is room"  # looked at then
        told = f"will have {_told(runs, want)}, if still so{room_too}: {want.reason}"
        return Verdict(why=told, wake_s=due, wish=held)
    return _with_room(job, runs, want, held, gain, room, now, rules, coming)


def _with_room(
    job: Job,
    runs: AllocationDecided,
    want: Want,
    held: Wish,
    gain: Payback,
    room: Room,
    now: float,
    rules: Rules,
    coming: Coming,
) -> Verdict:
    """It is due, and pays: there may be room for all of it, or else for a part."""
    size, ground, mark = size_of(runs), Ground(job, runs, want, room, rules), room.mark()
    tasks = ground.take(want.size)
    if tasks is None and coming.free and _fits_better_later(ground, want, size, coming):
        fits = ground.largest(want.size, size)
        if _grows(size, want) and fits != size:
            ground.take(fits)  # so that no later job of this pass has it
        return _await_release(held, now)
    if tasks is None:
        waits, until = short(job, runs, want, room, rules), held.first_s + rules.max_delay_s
        lacks = "" if waits else ground.lacks(want.size)
        part = _in_part(ground, want, size, runs.batch, lacks) if now >= until and _grows(size, want) else None
        gain = _gain(job, part, rules) if part else gain
        if part is None or not gain.pays:
            why = waits or f"waits for room{lacks} for {want.size.told()}"
            return Verdict(why=why, wake_s=until if now < until else None, wish=held)
        want, tasks = part, ground.take(part.size) or runs.tasks
    if want.apart is not None and spread(tasks) > 1 and _grows(size, want):
        gain = payback(seen(job, rules), want.size, want.batch, rules, want.apart, want.speed_now)
        if not gain.pays:
            room.undo(mark)
            return Verdict(why=f"waits for room for {counted(want.workers, 'worker')} on one node", wish=held)
    stay = Alternative(ps=size.ps, workers=size.workers, batch=runs.batch, why=f"staying: the change {gain.told()}")
    others = (*want.alternatives, stay)
    return _granted(job, tasks, want, now, want.reason, held.cause, alternatives=others, gain=gain)


def _fits_better_later(ground: Ground, want: Want, now: Size, coming: Coming) -> bool:
    """Return whether there is room for more of a change once what is being released is free."""
    largest = ground.largest(want.size, now)
    with expected_room(ground.room, coming):
        return ground.holds(want.size) or ground.largest(want.size, now) != largest


def _in_part(ground: Ground, want: Want, now: Size, batch: int, lacks: str) -> Want | None:
    """As much of a growth as there is room for, where that is any; with the batch that runs, because the one that is
    wanted is for more workers.
    """
    size = ground.largest(want.size, now)
    return None if size == now else want.cut(size, batch, f"as far as there is room{lacks}")


def _gain(job: Job, want: Want, rules: Rules) -> Payback:
    return payback(seen(job, rules), want.size, want.batch, rules, want.faster, want.speed_now)


def _granted(
    job: Job,
    tasks: Sequence[TaskPlan],
    want: Want,
    now: float,
    reason: str,
    cause: str,
    *,
    alternatives: Sequence[Alternative] = (),
    gain: Payback | None = None,
) -> Verdict:
    action = decision(
        job,
        tasks,
        want.batch,
        now,
        reason=reason,
        cause=cause,
        alternatives=alternatives or want.alternatives,
        gain_s=gain.saved_s if gain else 0.0,
        cost_s=gain.cost_s if gain else 0.0,
    )
    return Verdict(why=reason, action=action)


def _unheard(job: Job, now: float, rules: Rules) -> bool:
    """Has it changed since it last said how fast it is? Another change would answer no new fact, and might go back."""
    silent = job.progress is not None and job.progress.generation != job.running
    return silent and now - job.resumed_s < rules.silent_s


def _handover_s(job: Job, runs: AllocationDecided, gain: Payback) -> float:
    """How long after a decision it counts: as the last one took, and no less than its pause. Who ends sooner gains
    nothing by it, and gives all of its room back sooner.
    """
    return max(gain.cost_s, job.resumed_s - runs.decided_s if job.pauses else 0.0)


def _grows(size: Size, want: Want) -> bool:
    return want.ps >= size.ps and want.workers >= size.workers


def _told(runs: AllocationDecided, want: Want) -> str:
    size = want.size.told()
    return size if want.batch == runs.batch else f"{size} with batch {want.batch}"


def _lost_size(want: Want, why: str) -> Alternative:
    return Alternative(ps=want.ps, workers=want.workers, batch=want.batch, why=why)
