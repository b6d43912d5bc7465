"""Contenders for one lease, with pauses, kills, cut connections and unequal clocks.

Each has its own clock. After it has checked that it leads, it records the time of its act by the
one true clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field

from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.runtime.leadership import Deposed, Lease
from shared.runtime.process import cancel_tasks

LEASE_S, ACT_S = 0.6, 0.01
ANSWER_S = 2.0  # s after which a request on a cut connection is repeated
OF_LEADERS = 0.7  # share of the faults that affect a leader, if there is one
SERVICE = "allocator"
RATES = (0.9, 1.0, 1.15)
"""Rates of clocks per true second: 1.15 / 0.9 = 1.28, within the 1 / 0.75 that the lease allows."""


class Clock:
    """A clock that shows any time and has its own rate."""

    def __init__(self, rate: float = 1.0, shows_s: float = 0.0) -> None:
        self.rate, self.shows_s, self.began_s = rate, shows_s, time.monotonic()

    def __call__(self) -> float:
        return self.shows_s + self.rate * (time.monotonic() - self.began_s)


class Awake(Clock):
    """A clock that stops while this process does not run: a stall does not cost the lease.

    It is for a single contender. Of two contenders, each must count what the other does.
    """

    TICK_S = 0.01

    def __init__(self) -> None:
        super().__init__(rate=0.0)
        self.ticking = asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.TICK_S)
            self.shows_s += self.TICK_S


@dataclass
class Acts:
    """The acts: time (s, true clock), holder and term."""

    done: list[tuple[float, str, int]] = field(default_factory=list)

    def intervals(self) -> list[tuple[float, float, str]]:
        """Return the first and last act of each reign, sorted by the first."""
        reigns: dict[tuple[str, int], list[float]] = {}
        for at_s, holder, term in self.done:
            reigns.setdefault((holder, term), []).append(at_s)
        return sorted((min(times), max(times), holder) for (holder, _), times in reigns.items())


class Contender:
    """A replica that stands by, leads and acts. If it is deposed, it starts with another name."""

    def __init__(self, url: str, name: str, acts: Acts, clock: Clock) -> None:
        self.url, self.name, self.acts, self.clock = url, name, acts, clock
        self.lives, self.deposed = 0, 0
        self.bus: Bus | None = None
        self.lease: Lease | None = None
        self.work: asyncio.Task[None] | None = None
        self.frozen = asyncio.Event()
        self.frozen.set()

    def begin(self) -> None:
        self.work = asyncio.ensure_future(self._live_for_ever())

    async def _live_for_ever(self) -> None:
        while True:
            await self._live()

    async def _live(self) -> None:
        self.lives += 1
        self.bus = await wire.connect(self.url, self.name)
        self.bus.js._timeout = ANSWER_S
        self.lease = Lease(self.bus, SERVICE, LEASE_S, f"{self.name}-{self.lives}", self.clock)
        try:
            await self.lease.acquire()
            async with asyncio.TaskGroup() as group:
                group.create_task(self.lease.renew_forever())
                group.create_task(self._act(self.lease))
        except* Deposed:
            self.deposed += 1
        finally:
            await self.bus.client.close()

    async def _act(self, lease: Lease) -> None:
        """Act as a service does: check the lease, then act."""
        while True:
            await self.frozen.wait()
            lease.must_lead()
            self.acts.done.append((time.monotonic(), lease.holder, lease.term))
            await asyncio.sleep(ACT_S)

    # ------------------------------------------------------------ faults

    async def kill(self) -> None:
        """Kill it and start it again. It does not release the lease."""
        if self.work is not None:
            await cancel_tasks(self.work)
        self.begin()

    async def cut(self, for_s: float) -> None:
        """Drop all its messages for this time, as if no connection were possible."""
        if self.bus is None or self.bus.client.is_closed:
            return
        client = self.bus.client
        publish, client.publish = client.publish, _nowhere  # type: ignore[method-assign, assignment]
        await asyncio.sleep(for_s)
        client.publish = publish  # type: ignore[method-assign]

    async def freeze(self, for_s: float) -> None:
        """Let it neither renew nor act for this time, and then continue where it was."""
        if self.lease is None:
            return
        self.frozen.clear()
        lease, renew = self.lease, self.lease._renew

        async def later() -> None:
            await self.frozen.wait()
            await renew()

        lease._renew = later  # type: ignore[method-assign]
        await asyncio.sleep(for_s)
        lease._renew = renew  # type: ignore[method-assign]
        self.frozen.set()

    def leads(self) -> bool:
        return self.lease is not None and self.lease.left_s > 0

    async def stop(self) -> None:
        if self.work is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await cancel_tasks(self.work)


async def _nowhere(*_: object, **__: object) -> None:
    return None


async def befall(chance: random.Random, contenders: list[Contender], seconds: float) -> list[str]:
    """Cause one fault after another, in random contenders. Return the faults."""
    told, until_s = [], time.monotonic() + seconds
    while time.monotonic() < until_s:
        what, leaders = (
            chance.choice(("freeze", "kill", "cut")),
            [one for one in contenders if one.leads()],
        )
        who = chance.choice(leaders if leaders and chance.random() < OF_LEADERS else contenders)
        for_s = chance.uniform(0.2, 2.0) * LEASE_S
        told.append(f"{what} {who.name} {for_s:.2f}")
        if what == "kill":
            await who.kill()
        else:
            await getattr(who, what)(for_s)
        await asyncio.sleep(chance.uniform(0.0, 1.5) * LEASE_S)
    return told
