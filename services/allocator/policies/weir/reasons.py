"""The wants of a pass, and their reasons: what a job is to have, why, and why no more."""

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
from services.allocator.policies.weir.market import MIN_GAIN, Market
from services.allocator.policies.weir.staircase import BATCH, COST, SPEED, SPREAD_SPEED, Config
from shared.messages import Alternative
from shared.text import format_duration

Others = tuple[Alternative, ...]
Lesser = Callable[[Size, int], Target]

RESOURCES = tuple(WORDS.values())
NOTICED = 0.005
"""Less is told as 0 %."""
WHY_NOT: dict[Cause, str] = {
    "pause": "would be another pause too soon",
    "next": "would leave too little for who comes next",
    "room": "would take {} more than is left on the nodes",
    "quota": "would take {} more than is left of its namespace's quota",
    "others": "would take more than is left on the nodes, and others gain more by what they have",
}
"""Of a size, by what hinders it; with how much is short."""


def targets_of(field: Market, given: Ints, hindered: Sequence[BlockReason | None]) -> list[Target]:
    """Return the want of each job: what it is to have where it is granted a step, and none more.

    `given` [jobs]: the last step that each gets, `NO_STEP`: none.
    """
    # The granted step; whether it is what the job has, less, or too little to change for [jobs].
    steps = field.stairs.steps[field.stairs.starts + np.maximum(given, 0)]
    runs = (given != NO_STEP) & ~field.waits
    keeps = runs & (steps[:, : BATCH + 1] == field.sizes).all(axis=1)
    gives = runs & (steps[:, COST] < field.cost * (1 - 1e-9))
    stays = runs & ~gives & (steps[:, SPEED] < (1 + MIN_GAIN) * field.speed)
    shrinks = {}
    for at in np.flatnonzero(gives & ~keeps).tolist():
        shrinks[at] = Config.of_row(steps[at].tolist())
    notes = _other_role_notes(field, shrinks)
    # Most jobs keep what they have.
    wants = []
    texts = _KeepTargets(field, given, steps)
    columns = zip(given.tolist(), keeps.tolist(), stays.tolist(), hindered, strict=True)
    for at, (step, keeps_all, keeps_size, why) in enumerate(columns):
        if keeps_all:
            wants.append(texts.target_to_keep(at, why))
            continue
        case = JobContext(field, at)
        if step == NO_STEP:
            wants.append(_target_without_step(case, why))
            continue
        others = _next_step(case, step, why)
        if keeps_size:
            wants.append(_unchanged_target(case, case.step_config(step), others))
        else:
            wants.append(_granted_target(case, case.step_config(step), others, notes.get(at, "")))
    return wants


class JobContext:
    """One job of a pass. `known`: whether its remaining work is known."""

    def __init__(self, field: Market, at: int) -> None:
        self.job: JobSnapshot = field.jobs[at]
        self.row: JobRow = field.rows[at]
        self.at = at
        self.field = field
        self.speed = float(field.speed[at])
        self.cost = float(field.cost[at])
        self.pause_s = float(field.own_pause_s[at])
        self.known = not math.isnan(field.left[at])

    def step_config(self, number: int) -> Config:
        """Return a step of its staircase."""
        return self.field.stairs.step_config(self.at, number)

    def plain_target(self, size: Size, batch: int, reason: str, others: Others = ()) -> Target:
        """Return the want for a size of which no speed is foreseen."""
        return Target(
            job=self.job.key,
            ps=size.ps,
            workers=size.workers,
            batch=batch,
            reason=reason,
            alternatives=others,
            speed_now=self.speed or None,
        )

    def step_target(self, config: Config, reason: str, others: Others, lesser: Lesser) -> Target:
        """Return the want for a size with how many times as fast as now it would be, and as much
        where its devices stand apart.
        """
        want = self.plain_target(config.size, config.batch, reason, others)
        if not self.speed:
            return replace(want, describe_partial=lesser)
        faster = config.speed / self.speed
        apart = None if math.isnan(config.spread_speed) else config.spread_speed / self.speed
        return replace(want, speedup=faster, speedup_if_spread=apart, describe_partial=lesser)


class _KeepTargets:
    """The wants of jobs that keep what they have. Equal reasons are made once in a pass.

    `given` [jobs]: the step that each has; `steps` [jobs, 10]: the same as `staircase.Config`.
    """

    def __init__(self, field: Market, given: Ints, steps: Array) -> None:
        self.field = field
        self.keys = [job.key for job in field.jobs]
        self.sizes = field.sizes.astype(int).tolist()
        self.speeds = field.speed.tolist()
        # How many times as fast as now, by the model, and apart (nan: not devices side by side).
        now = np.where(field.speed > 0, field.speed, math.nan)
        self.faster = (steps[:, SPEED] / now).tolist()
        self.apart = (steps[:, SPREAD_SPEED] / now).tolist()
        self.side_by_side = (~np.isnan(steps[:, SPREAD_SPEED])).tolist()
        noticed = field.unrepaid_steps[:, SPEED] > (1 + NOTICED) * field.speed
        self.unrepaid = (noticed & (field.speed > 0)).tolist()
        self.fills = field.fills_cluster.tolist()
        # ps, workers and batch of the step that would follow; anything where none does [jobs, 3].
        follows = np.minimum(field.stairs.starts + given + 1, len(field.stairs.steps) - 1)
        self.following = field.stairs.steps[follows, : BATCH + 1].astype(int).tolist()
        self.made: dict[tuple[int, int, int, BlockReason], tuple[str, Others]] = {}

    def target_to_keep(self, at: int, hindered: BlockReason | None) -> Target:
        others: Others = ()
        if hindered is None:
            reason = self._why_at_top(at)
        else:
            next_ps, next_workers, next_batch = self.following[at]
            reason, others = self._why_no_more(next_ps, next_workers, next_batch, hindered)
        ps, workers, batch = self.sizes[at]
        speed = self.speeds[at]
        return Target(
            job=self.keys[at],
            ps=ps,
            workers=workers,
            batch=batch,
            reason=reason,
            alternatives=others,
            speedup=self.faster[at] if speed else None,
            speed_now=speed or None,
            speedup_if_spread=self.apart[at] if speed and self.side_by_side[at] else None,
        )

    def _why_no_more(
        self, ps: int, workers: int, batch: int, hindered: BlockReason
    ) -> tuple[str, Others]:
        """Return the reason, and the step that would follow, of a job that gets no more."""
        key = (ps, workers, batch, hindered)
        if key not in self.made:
            why = why_not(hindered)
            reason = f"keeps what it has: {Size(ps, workers).describe()} {why}"
            other = Alternative(ps=ps, workers=workers, batch=batch, why=f"it {why}")
            self.made[key] = (reason, (other,))
        return self.made[key]

    def _why_at_top(self, at: int) -> str:
        if self.fills[at]:
            return "keeps what it has: another task would be more than there is on the nodes"
        if self.unrepaid[at]:
            unrepaid = Config.of_row(self.field.unrepaid_steps[at].tolist())
            return f"keeps what it has: {_too_little(JobContext(self.field, at), unrepaid)}"
        job = self.field.jobs[at]
        ps, workers, _ = self.sizes[at]
        if ps == job.request.ps.max and workers == job.request.workers.max:
            return "keeps what it has, which is the most that it may have"
        return (
            "keeps what it has: as far as is known, no larger size that it may have would be faster"
        )


def _next_step(case: JobContext, step: int, hindered: BlockReason | None) -> Others:
    """Return the next step, and why the job does not get it."""
    if hindered is None:
        return ()
    config = case.step_config(step + 1)
    why = f"it {why_not(hindered)}"
    return (Alternative(ps=config.ps, workers=config.workers, batch=config.batch, why=why),)


def exploration_target(field: Market, at: int, config: Config) -> Target:
    """Return the want of a job that tries a size."""
    case = JobContext(field, at)
    gain = config.speed / case.speed - 1
    reason = (
        f"tries {config.size.describe()} in room that is free: faster or not, but in the mean "
        f"{gain:.0%} faster, if what proves slower is given up again"
    )
    return case.step_target(config, reason, (), partial(_no_partial_target, case))


def too_large_target(job: JobSnapshot) -> Target:
    """Return the want of a job whose least is larger than the cluster: the allocator says for what
    it waits.
    """
    return Target(
        job=job.key,
        ps=job.least.ps,
        workers=job.least.workers,
        batch=job.request.batch.start,
        reason="as soon as its least fits",
    )


def why_not(hindered: BlockReason) -> str:
    """Return what hinders a size, as it follows `it` or the size's name."""
    short = []
    for amount, unit in zip(hindered.short, UNITS.values(), strict=True):
        if amount:
            short.append(f"{amount:g} {unit}")
    return WHY_NOT[hindered.cause].format(" and ".join(short))


def _target_without_step(case: JobContext, hindered: BlockReason | None) -> Target:
    """Nothing is left at its price: a job that runs goes down to its least, one that waits goes on
    waiting.
    """
    least = case.step_config(0)
    why = why_not(hindered) if hindered else ""
    if case.job.size is None:
        reason = f"waits: a chief, {least.size.describe()} {why}"
        return case.plain_target(Size(0, 0), case.job.request.batch.start, reason)
    return case.plain_target(least.size, least.batch, f"has its least: even that {why}")


def _unchanged_target(case: JobContext, config: Config, others: Others) -> Target:
    """Return the want of a job that would gain too little by a step."""
    reason = f"keeps what it has: {_too_little(case, config)}"
    return case.plain_target(case.job.size or config.size, case.job.batch, reason, others)


def _granted_target(case: JobContext, config: Config, others: Others, note: str) -> Target:
    """Return the want for a step. `note`: on the other role, behind the reason."""
    reason = _reason_to_have(case, config) + note
    return case.step_target(config, reason, others, partial(_partial_target, case))


def _partial_target(case: JobContext, size: Size, batch: int) -> Target:
    """Return what is said where there is no room for more than this."""
    config = config_of(case.job, case.row, size, batch)
    notes = _other_role_notes(case.field, {case.at: config})
    reason = _reason_to_have(case, config) + notes.get(case.at, "")
    return case.step_target(config, reason, (), partial(_partial_target, case))


def _no_partial_target(case: JobContext, size: Size, batch: int) -> Target:
    """A job tries all of a size or nothing."""
    return replace(case.plain_target(size, batch, "tries no part of a size"), speedup=1.0)


# ---------------------------------------------------------------- reasons


def _reason_to_have(case: JobContext, config: Config) -> str:
    scarce = RESOURCES[config.scarce]
    room = f"{config.cost:.0%} of the {scarce} that jobs of this policy may have"
    if not case.known:
        return f"there is no better use of {room}, by what is known before it runs"
    reason = f"{config.speed:,.0f} examples/s with {room}, of which there is no better use"
    if case.job.size and config.cost < case.cost * (1 - 1e-9):
        reason += "; what it gives up is for who gains more by it, now or when they come"
    return reason


def _other_role_notes(field: Market, configs: Mapping[int, Config]) -> dict[int, str]:
    """Return, by place, what giving up the other role would have cost jobs that shrink to these
    sizes by workers alone, or by ps alone.

    Jobs are left out where that could not give as much, or would have been no slower.
    """
    sizes: dict[int, Size] = {}
    for at, config in configs.items():
        job = field.jobs[at]
        is_smaller = config.cost < float(field.cost[at]) * (1 - 1e-9)
        is_known = not math.isnan(field.left[at])
        size = alternative_role_cut(job, config) if job.size and is_smaller and is_known else None
        if size is not None and config.speed:
            sizes[at] = size
    fits = [field.rows[at].fitted for at in sizes]
    asked = [(size.ps, size.workers, configs[at].batch) for at, size in sizes.items()]
    notes = {}
    for (at, size), speed in zip(sizes.items(), model_speeds(fits, asked), strict=True):
        config = configs[at]
        slower = 1 - field.jobs[at].worth(config.batch) * speed / config.speed
        if slower > NOTICED:
            notes[at] = f"; with {size.describe()} it would be {slower:.0%} slower"
    return notes


def alternative_role_cut(job: JobSnapshot, config: Config) -> Size | None:
    """Return the size of a job that keeps all of the role that `config` cuts, and frees as much of
    what is scarce by tasks of the other role.

    None where `config` has fewer of both roles or more of one, or where the other role has not so
    many to give.
    """
    had = job.size or config.size
    ps = had.ps - config.ps
    workers = had.workers - config.workers
    if min(ps, workers) != 0 or ps == workers:
        return None
    cut, other = (job.sizes.worker, job.sizes.ps) if workers else (job.sizes.ps, job.sizes.worker)
    freed = (ps + workers) * amounts(cut)[config.scarce]
    each = amounts(other)[config.scarce]
    count = math.ceil(freed / each - ROUNDING) if each > 0 else 0
    size = Size(had.ps - count, had.workers) if workers else Size(had.ps, had.workers - count)
    least = job.least
    if count <= 0 or size.ps < least.ps or size.workers < least.workers:
        return None
    return size


def _too_little(case: JobContext, config: Config) -> str:
    """Return why a job is not changed to a size, by the speeds that say so."""
    percent = round(100 * (config.speed / case.speed - 1))
    word = "slower" if percent < 0 else "faster"
    would = f"{config.size.describe()} would be {abs(percent)}% {word}"
    if config.speed < (1 + MIN_GAIN) * case.speed:
        return f"{would}, and below {MIN_GAIN:.0%} it does not change"
    pause = format_duration(case.pause_s, fine=True)
    return f"{would}, which does not repay a pause of {pause} in what it has left to do"
