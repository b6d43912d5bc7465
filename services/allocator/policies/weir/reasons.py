"""The targets of a pass, and their reasons: for a job's size, and against the next larger one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from services.allocator.models.speed import Array
from services.allocator.placement.amounts import ROUNDING, UNITS, WORDS, amounts
from services.allocator.policies.contract import JobSnapshot, Size, Target
from services.allocator.policies.weir.auction import NO_STEP, BlockReason, Cause, Ints
from services.allocator.policies.weir.job_rows import JobRow, config_of, model_speeds
from services.allocator.policies.weir.market import Market
from services.allocator.policies.weir.staircase import BATCH, COST, SPEED, SPREAD_SPEED, Config
from services.allocator.policies.weir.stale_gradients import MIN_GAIN, StaleLimit, why_smaller
from shared.messages import Alternative
from shared.text import format_duration

Alternatives = tuple[Alternative, ...]
DescribePartial = Callable[[Size, int], Target]

RESOURCES = tuple(WORDS.values())
NOTICED = 0.005
"""A smaller gain would be shown as 0 %."""
WHY_NOT: dict[Cause, str] = {
    "pause": "would pause it again too soon",
    "next": "would leave too little capacity for the next job",
    "room": "would need {} more than is free on the nodes",
    "quota": "would need {} more than its namespace's quota has left",
    "others": "would need more than is free on the nodes, and other jobs gain more by their share",
}
"""The reason against a size, by its cause; {}: the missing amount."""


def targets_of(
    market: Market, given: Ints, obstacles: Sequence[BlockReason | None]
) -> list[Target]:
    """Return the target of each job, with the reason for it and against the next step.

    `given` [jobs]: the last step that each gets, `NO_STEP`: none.
    """
    # The granted step, and its relation to the present size [jobs].
    steps = market.stairs.steps[market.stairs.starts + np.maximum(given, 0)]
    runs = (given != NO_STEP) & ~market.waits
    is_same = runs & (steps[:, : BATCH + 1] == market.sizes).all(axis=1)
    is_smaller = runs & (steps[:, COST] < market.cost * (1 - 1e-9))
    is_slight = runs & ~is_smaller & (steps[:, SPEED] < (1 + MIN_GAIN) * market.speed)
    shrinks = {}
    for at in np.flatnonzero(is_smaller & ~is_same).tolist():
        shrinks[at] = Config.of_row(steps[at].tolist())
    notes = _other_role_notes(market, shrinks)
    # Most jobs keep their size.
    targets = []
    keep_targets = _KeepTargets(market, given, steps)
    columns = zip(given.tolist(), is_same.tolist(), is_slight.tolist(), obstacles, strict=True)
    for at, (step, keeps_all, keeps_size, obstacle) in enumerate(columns):
        if keeps_all:
            target = keep_targets.target_to_keep(at, obstacle)
        elif step == NO_STEP:
            target = _target_without_step(JobContext(market, at), obstacle)
        else:
            context = JobContext(market, at)
            config = context.step_config(step)
            alternatives = _next_step(context, step, obstacle)
            if keeps_size:
                target = _unchanged_target(context, config, alternatives)
            else:
                target = _granted_target(context, config, alternatives, notes.get(at, ""))
        targets.append(target)
    return targets


class JobContext:
    """One job of a pass. `known`: True if its remaining work is known."""

    def __init__(self, market: Market, at: int) -> None:
        self.job: JobSnapshot = market.jobs[at]
        self.row: JobRow = market.rows[at]
        self.at = at
        self.field = market
        self.speed = float(market.speed[at])
        self.cost = float(market.cost[at])
        self.pause_s = float(market.own_pause_s[at])
        self.known = not math.isnan(market.left[at])

    def step_config(self, number: int) -> Config:
        """Return a step of its staircase."""
        return self.field.stairs.step_config(self.at, number)

    def plain_target(
        self, size: Size, batch: int, reason: str, alternatives: Alternatives = ()
    ) -> Target:
        """Return the target for a size without a predicted speed."""
        return Target(
            job=self.job.key,
            ps=size.ps,
            workers=size.workers,
            batch=batch,
            reason=reason,
            alternatives=alternatives,
            speed_now=self.speed or None,
        )

    def step_target(
        self,
        config: Config,
        reason: str,
        alternatives: Alternatives,
        describe_partial: DescribePartial,
    ) -> Target:
        """Return the target for a size, with its speedup, and the speedup if its devices are spread
        over nodes.
        """
        target = self.plain_target(config.size, config.batch, reason, alternatives)
        if not self.speed:
            return replace(target, describe_partial=describe_partial)
        faster = config.speed / self.speed
        apart = None if math.isnan(config.spread_speed) else config.spread_speed / self.speed
        return replace(
            target, speedup=faster, speedup_if_spread=apart, describe_partial=describe_partial
        )


class _KeepTargets:
    """The targets of jobs that keep their size. Equal reasons are made once in a pass.

    `given` [jobs]: the step that each has; `steps` [jobs, 10]: the same as `staircase.Config`.
    """

    def __init__(self, market: Market, given: Ints, steps: Array) -> None:
        self.field = market
        self.keys = [job.key for job in market.jobs]
        self.sizes = market.sizes.astype(int).tolist()
        self.speeds = market.speed.tolist()
        # The speedup by the model, and on several nodes (nan: not devices side by side).
        now = np.where(market.speed > 0, market.speed, math.nan)
        self.faster = (steps[:, SPEED] / now).tolist()
        self.apart = (steps[:, SPREAD_SPEED] / now).tolist()
        self.side_by_side = (~np.isnan(steps[:, SPREAD_SPEED])).tolist()
        noticed = market.unrepaid_steps[:, SPEED] > (1 + NOTICED) * market.speed
        self.unrepaid = (noticed & (market.speed > 0)).tolist()
        self.fills = market.fills_cluster.tolist()
        # ps, workers and batch of the next step; of any step if there is none [jobs, 3].
        follows = np.minimum(market.stairs.starts + given + 1, len(market.stairs.steps) - 1)
        self.following = market.stairs.steps[follows, : BATCH + 1].astype(int).tolist()
        self.made: dict[tuple[int, int, int, BlockReason], tuple[str, Alternatives]] = {}

    def target_to_keep(self, at: int, obstacle: BlockReason | None) -> Target:
        alternatives: Alternatives = ()
        if obstacle is None:
            reason, alternatives = self._why_at_top(at)
        else:
            next_ps, next_workers, next_batch = self.following[at]
            reason, alternatives = self._why_no_more(next_ps, next_workers, next_batch, obstacle)
        ps, workers, batch = self.sizes[at]
        speed = self.speeds[at]
        return Target(
            job=self.keys[at],
            ps=ps,
            workers=workers,
            batch=batch,
            reason=reason,
            alternatives=alternatives,
            speedup=self.faster[at] if speed else None,
            speed_now=speed or None,
            speedup_if_spread=self.apart[at] if speed and self.side_by_side[at] else None,
        )

    def _why_no_more(
        self, ps: int, workers: int, batch: int, obstacle: BlockReason
    ) -> tuple[str, Alternatives]:
        """Return the reason, and the step that would follow, of a job that gets no more."""
        key = (ps, workers, batch, obstacle)
        if key not in self.made:
            why = why_not(obstacle)
            reason = f"keeps its size: {Size(ps, workers).describe()} {why}"
            other = Alternative(ps=ps, workers=workers, batch=batch, why=f"it {why}")
            self.made[key] = (reason, (other,))
        return self.made[key]

    def _why_at_top(self, at: int) -> tuple[str, Alternatives]:
        """Return the reason of a job that wants no more, and the size that staleness keeps it from."""
        limit = self.field.rows[at].limit
        if limit is not None and not self._has_larger_gain(at):
            return _stale_reason(limit)
        if self.fills[at]:
            return "keeps its size: the nodes cannot hold another task, even if empty", ()
        if self.unrepaid[at]:
            unrepaid = Config.of_row(self.field.unrepaid_steps[at].tolist())
            return f"keeps its size: {_too_little(JobContext(self.field, at), unrepaid)}", ()
        job = self.field.jobs[at]
        ps, workers, _ = self.sizes[at]
        if ps == job.request.ps.max and workers == job.request.workers.max:
            return "keeps its size: it is at its maximum", ()
        return "keeps its size: no larger size is expected to be faster", ()

    def _has_larger_gain(self, at: int) -> bool:
        """Return True if a larger size gains enough, but does not repay its pause."""
        unrepaid = float(self.field.unrepaid_steps[at, SPEED])
        speed: float = self.speeds[at]
        return speed > 0 and unrepaid >= (1 + MIN_GAIN) * speed


def _stale_reason(limit: StaleLimit) -> tuple[str, Alternatives]:
    """Return the reason of a job that keeps its size because of stale gradients, and the size that
    it does not get.
    """
    other = Alternative(
        ps=limit.ps, workers=limit.workers, batch=limit.batch, why=f"it {limit.why}"
    )
    return f"keeps its size: {limit.size.describe()} {limit.why}", (other,)


def _next_step(context: JobContext, step: int, obstacle: BlockReason | None) -> Alternatives:
    """Return the next step, and why the job does not get it."""
    if obstacle is None:
        return ()
    config = context.step_config(step + 1)
    why = f"it {why_not(obstacle)}"
    return (Alternative(ps=config.ps, workers=config.workers, batch=config.batch, why=why),)


def exploration_target(market: Market, at: int, config: Config) -> Target:
    """Return the target of a job that tries a size."""
    context = JobContext(market, at)
    gain = config.speed / context.speed - 1
    reason = (
        f"tries {config.size.describe()} on free capacity: "
        f"{gain:.0%} faster on average, and it returns to its size if that is slower"
    )
    return context.step_target(config, reason, (), partial(_no_partial_target, context))


def too_large_target(job: JobSnapshot) -> Target:
    """Return the target of a job with a least size larger than the cluster: the allocator adds the
    missing resource.
    """
    return Target(
        job=job.key,
        ps=job.least.ps,
        workers=job.least.workers,
        batch=job.request.batch.start,
        reason="as soon as its smallest size fits",
    )


def why_not(obstacle: BlockReason) -> str:
    """Return the reason against a size, as a text that follows `it` or the size's name."""
    short = []
    for amount, unit in zip(obstacle.short, UNITS.values(), strict=True):
        if amount:
            short.append(f"{amount:g} {unit}")
    return WHY_NOT[obstacle.cause].format(" and ".join(short))


def _target_without_step(context: JobContext, obstacle: BlockReason | None) -> Target:
    """Return the target of a job that is outbid at every step: a running job shrinks to its least
    size, a waiting job waits.
    """
    least = context.step_config(0)
    why = why_not(obstacle) if obstacle else ""
    if context.job.size is None:
        reason = f"waits: a chief, {least.size.describe()} {why}"
        return context.plain_target(Size(0, 0), context.job.request.batch.start, reason)
    return context.plain_target(
        least.size, least.batch, f"shrinks to its smallest size: even that {why}"
    )


def _unchanged_target(context: JobContext, config: Config, alternatives: Alternatives) -> Target:
    """Return the target of a job that would gain too little by a step."""
    limit = context.row.limit
    if limit is not None and not alternatives:
        reason, alternatives = _stale_reason(limit)
    else:
        reason = f"keeps its size: {_too_little(context, config)}"
    return context.plain_target(
        context.job.size or config.size, context.job.batch, reason, alternatives
    )


def _granted_target(
    context: JobContext, config: Config, alternatives: Alternatives, note: str
) -> Target:
    """Return the target for a step. `note`: on the other role, behind the reason."""
    reason = _reason_to_have(context, config) + note
    return context.step_target(config, reason, alternatives, partial(_partial_target, context))


def _partial_target(context: JobContext, size: Size, batch: int) -> Target:
    """Return the target if only this part of a size fits."""
    config = config_of(context.job, context.row, size, batch)
    notes = _other_role_notes(context.field, {context.at: config})
    reason = _reason_to_have(context, config) + notes.get(context.at, "")
    return context.step_target(config, reason, (), partial(_partial_target, context))


def _no_partial_target(context: JobContext, size: Size, batch: int) -> Target:
    """Return the target for a part of a trial size: it gains nothing, because a job tries all or
    nothing.
    """
    return replace(
        context.plain_target(size, batch, "a trial size has to fit completely"), speedup=1.0
    )


# ---------------------------------------------------------------- reasons


def _reason_to_have(context: JobContext, config: Config) -> str:
    scarce = RESOURCES[config.scarce]
    room = f"{config.cost:.0%} of the {scarce} that jobs of this policy may have"
    if not context.known:
        return f"the best known use of {room}, before its speed is measured"
    reason = f"{_examples_per_second(context.job, config)} with {room}: the best use of it"
    if context.job.size and config.cost < context.cost * (1 - 1e-9):
        stale = why_smaller(context.job, context.speed, config.size, config.batch, config.speed)
        reason += stale or "; the rest goes to jobs that gain more by it, now or soon"
    return reason


def _examples_per_second(job: JobSnapshot, config: Config) -> str:
    """Return the speed of a size, and the progress of these examples if they are worth less than
    those of the first batch.
    """
    worth = job.worth(config.batch, config.size)
    speed = f"{config.speed / worth:,.0f} examples/s"
    if abs(worth - 1) < NOTICED:
        return speed
    return f"{speed} (progress of {config.speed:,.0f})"


def _other_role_notes(market: Market, configs: Mapping[int, Config]) -> dict[int, str]:
    """Return, by the job's index, the loss of speed if jobs that shrink by workers alone, or by ps
    alone, had shrunk by the other role.

    Jobs are left out where that could not give as much, or would have been no slower.
    """
    sizes: dict[int, Size] = {}
    for at, config in configs.items():
        job = market.jobs[at]
        is_smaller = config.cost < float(market.cost[at]) * (1 - 1e-9)
        is_known = not math.isnan(market.left[at])
        if not (job.size and is_smaller and is_known and config.speed):
            continue
        size = alternative_role_cut(job, config)
        if size is not None:
            sizes[at] = size
    fits = [market.rows[at].fitted for at in sizes]
    asked = [(size.ps, size.workers, configs[at].batch) for at, size in sizes.items()]
    notes = {}
    for (at, size), speed in zip(sizes.items(), model_speeds(fits, asked), strict=True):
        config = configs[at]
        worth = market.jobs[at].worth(config.batch, size)
        slower = 1 - worth * speed / config.speed
        if slower > NOTICED:
            notes[at] = f"; with {size.describe()} it would be {slower:.0%} slower"
    return notes


def alternative_role_cut(job: JobSnapshot, config: Config) -> Size | None:
    """Return the size of a job that keeps all of the role that `config` cuts, and frees as much of
    the scarce resource by tasks of the other role.

    None where `config` has fewer of both roles or more of one, or where the other role has not so
    many to give.
    """
    had = job.size or config.size
    ps = had.ps - config.ps
    workers = had.workers - config.workers
    if min(ps, workers) != 0 or ps == workers:
        return None
    ps_amount = amounts(job.sizes.ps)[config.scarce]
    worker_amount = amounts(job.sizes.worker)[config.scarce]
    if workers:
        count = _tasks_freeing(workers * worker_amount, ps_amount)
        size = Size(had.ps - count, had.workers)
    else:
        count = _tasks_freeing(ps * ps_amount, worker_amount)
        size = Size(had.ps, had.workers - count)
    least = job.least
    if count <= 0 or size.ps < least.ps or size.workers < least.workers:
        return None
    return size


def _tasks_freeing(amount: float, each: float) -> int:
    """Return the number of tasks that free an amount of a resource together; 0 if they use none."""
    return math.ceil(amount / each - ROUNDING) if each > 0 else 0


def _too_little(context: JobContext, config: Config) -> str:
    """Return the reason why a job is not changed to a size, with the speeds."""
    percent = round(100 * (config.speed / context.speed - 1))
    word = "slower" if percent < 0 else "faster"
    would = f"{config.size.describe()} would be {abs(percent)}% {word}"
    if config.speed < (1 + MIN_GAIN) * context.speed:
        return f"{would}, below the {MIN_GAIN:.0%} threshold"
    pause = format_duration(context.pause_s, fine=True)
    return f"{would}, too little to repay a pause of {pause} before it ends"
