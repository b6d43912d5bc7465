"""Simulate a machine on which containers compete for cores, in steps of a second.

The model. A container can use up to `most` cores and does one core-second of work per core and
second. In every step the cores are shared equally among the running containers, with no share above
its limit or above what the container can use; the rest goes to the others. If all containers are at
their limits and cores are left, either the limits are exceeded (`soft`: no core idles that a
container could use) or the cores idle (strict quota). A container ends when its work is done. It
reports its loss every second, with noise; its CPU share is measured every ten. Changing a limit
costs nothing; caches and memory are not simulated.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from services.allocator.policies.flowcon.growth import (
    Container,
    Rules,
    Sample,
    Timing,
    after_pass,
    growth_efficiency,
    run_pass,
    timing_after_change,
)

CORES = 8.0
READ_CPU_S = 10


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of job: its core-seconds of work, the cores it can use, loss by core-seconds."""

    name: str
    work: float
    most: float
    loss: Callable[[float], float]


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """`algorithm`: limits are computed; `update`: and applied; `backoff`: the interval doubles."""

    rules: Rules = Rules()
    algorithm: bool = True
    update: bool = True
    backoff: bool = True
    soft: bool = True


class Outcome(msgspec.Struct, frozen=True):
    """Completion times by container, s; last end, s; number of passes; cores by second.

    A completion time is end - start.
    """

    completion_s: dict[str, float]
    makespan_s: float
    passes: int
    shares: tuple[dict[str, float], ...]


class Running:
    """One container, from its start to its end."""

    def __init__(self, name: str, image: Image, start_s: int) -> None:
        self.name, self.image, self.start_s = name, image, start_s
        self.done, self.end_s = 0.0, math.inf
        self.samples: list[Sample] = []
        self.state = Container(name=name, limit=CORES)

    def step(self, now: int, cores: float, noise: float, rng: random.Random) -> None:
        """Simulate a second of work with these cores."""
        left = self.image.work - self.done
        if cores >= left:
            self.end_s = now + left / cores
        self.done += cores
        told = self.image.loss(self.done) * (1 + noise * rng.gauss(0, 1))
        share = cores / CORES if (now + 1) % READ_CPU_S == 0 else None
        self.samples.append(Sample(now + 1, told, share))


def divided(limits: Mapping[str, float], cores: float) -> dict[str, float]:
    """Divide the cores into equal shares up to each limit; the rest goes to the others."""
    shares: dict[str, float] = {}
    for left, (name, limit) in zip(
        range(len(limits), 0, -1),
        sorted(limits.items(), key=lambda at: (at[1], at[0])),
        strict=True,
    ):
        shares[name] = min(limit, (cores - math.fsum(shares.values())) / left)
    return shares


def shared(running: Sequence[Running], soft: bool) -> dict[str, float]:
    """Return the cores of each container in this second."""
    limits = {c.name: min(c.state.limit, c.image.most) for c in running}
    shares = divided(limits, CORES)
    spare = CORES - math.fsum(shares.values())
    if soft and spare > 0:
        more = divided({c.name: c.image.most - shares[c.name] for c in running}, spare)
        shares = {name: share + more[name] for name, share in shares.items()}
    return shares


def run(jobs: Sequence[tuple[int, Image]], arm: Arm, seed: int, noise: float) -> Outcome:
    """Simulate until all jobs have ended."""
    rng = random.Random(seed)
    coming = [Running(f"{i}-{image.name}", image, start) for i, (start, image) in enumerate(jobs)]
    timing, now, passes, history = Timing(interval_s=arm.rules.interval_s, due_s=0.0), 0, 0, []
    while any(math.isinf(c.end_s) for c in coming):
        running = [c for c in coming if c.start_s <= now and math.isinf(c.end_s)]
        if arm.algorithm:
            timing, passed = _judged(running, timing, now, arm)
            passes += passed
        shares = shared(running, arm.soft)
        for container in running:
            container.step(now, shares[container.name], noise, rng)
        history.append(shares)
        now += 1
    ends = {c.name: c.end_s for c in coming}
    return Outcome(
        {c.name: c.end_s - c.start_s for c in coming}, max(ends.values()), passes, tuple(history)
    )


def _judged(running: Sequence[Running], timing: Timing, now: int, arm: Arm) -> tuple[Timing, bool]:
    """Detect new and ended containers, and run a pass if one is due."""
    if now % int(arm.rules.listen_s) == 0:
        timing = timing_after_change(timing, frozenset(c.name for c in running), now, arm.rules)
    if now < timing.due_s or not running:
        return timing, False
    judged = run_pass([_measured(c, now, arm.rules.interval_s) for c in running], CORES, arm.rules)
    timing = after_pass(timing, judged if arm.backoff else (), now, arm.rules)
    for container, state in zip(running, judged, strict=True):
        container.state = state if arm.update else msgspec.structs.replace(state, limit=CORES)
    return timing, True


def _measured(container: Running, now: float, interval_s: float) -> Container:
    return msgspec.structs.replace(
        container.state, growth=growth_efficiency(container.samples, now, interval_s)
    )
