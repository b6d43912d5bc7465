"""The run: one job after the other, and one fault after the other while a job trains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from shared.messages import CancelRequested, ClusterSpecPublished, HandOverOrdered, JobFinished
from tests.bench.chaos import probes, standing
from tests.bench.chaos.injectors import INJECTORS, TROUBLE
from tests.bench.chaos.schedule import Fault, Moment
from tests.bench.chaos.signals import Missed
from tests.bench.chaos.tallies import Record
from tests.bench.chaos.watch import Late
from tests.bench.chaos.world import World
from tests.bench.report import say

LIMIT_S, END_S = 180.0, 400.0
"""Timeouts in s, for the recovery from a fault and for the end of a job. The run then continues."""
PROVOKED_S, GROWS_S, TRIES = 150.0, 60.0, 3
"""Timeouts in s for a provoked hand-over, in general and for growth, and the number of attempts.

Growth may not be worth its pause. Its timeout is short, so that the job does not end meanwhile.
"""
PER_JOB, EPOCHS = 8, 120
SLOW_S, QUICK_S = 0.8, 0.15
"""Pauses of a worker before each batch in s.

The slow one keeps a job from ending before its faults.
"""
BEGINS: dict[Moment, type[ClusterSpecPublished] | type[HandOverOrdered]] = {
    "while it prepares": ClusterSpecPublished,
    "between order and resumption": HandOverOrdered,
}
Probe = Callable[[World, float, float], Awaitable[float]]


async def _allocator(world: World, since_s: float, within_s: float) -> float:
    return await probes.allocator(world, within_s)


async def _monitor(world: World, since_s: float, within_s: float) -> float:
    return await probes.monitor(world, within_s)


async def _submitters(world: World, since_s: float, within_s: float) -> float:
    return await probes.submitters(world, within_s)


PROBES: dict[str, tuple[Probe, ...]] = {
    "nats-server killed": (_allocator, probes.saving),
    "nats-server frozen": (_allocator, probes.saving),
    "cluster lost": (_monitor,),
    "API cut off": (_monitor,),
    "messages doubled": (_allocator,),
    "nats killed in commit": (_allocator, probes.saving),
    "nats frozen in commit": (_allocator, probes.saving),
    "intake full": (_submitters,),
    "disk full": (),
    "facts purged": (_monitor, _allocator),
    "orders full": (_allocator,),
    "bus set back": (_monitor, _allocator, probes.saving),
}
OF_SERVICE: dict[str, tuple[Probe, ...]] = {"allocator": (_allocator,), "monitor": (_monitor,)}


class Play:
    """`records` has an entry for every fault; `jobs` maps the uid to the number of epochs."""

    def __init__(self, world: World, until_s: float) -> None:
        self.world, self.until_s = world, until_s
        self.records, self.jobs = list[Record](), dict[int, int]()

    async def play(self, faults: tuple[Fault, ...]) -> None:
        """Run a job for every `PER_JOB` faults. If the job ends early, start another one."""
        struck = due = 0
        for number, fault in enumerate(faults):
            if time.time() > self.until_s:
                say(f"time is up before fault {fault.number}")
                break
            if struck == due or self.over():
                await self.end()
                struck, due = 0, min(PER_JOB, len(faults) - number)
                await self.begin(f"chaos-{len(self.jobs) + 1}", EPOCHS * due // PER_JOB)
            self.records.append(await self.one(fault))
            struck += 1
            self.steer(struck / due)
        await self.end()

    # ------------------------------------------------------------ jobs

    async def begin(self, job: str, epochs: int, **fields: object) -> None:
        self.world.pace(QUICK_S)
        await self.world.strangers_come()
        uid = await self.world.submit(job, epochs, **fields)
        self.jobs[uid] = epochs
        try:
            await self.settled(LIMIT_S)
            say(f"{job} trains")
        except (Late, TimeoutError) as late:
            say(f"{job} does not train: {late}")

    def over(self) -> JobFinished | None:
        return standing.finished(self.world.heard)

    async def end(self) -> None:
        """Let the job finish, if there is one, and delete the other users' pods."""
        if not self.jobs:
            return
        self.world.pace(0.0)
        try:
            over = await self.world.watch.until(self.over, END_S, f"the end of {self.world.job}")
            say(f"{self.world.job} {over.outcome} {over.cause[-2000:]}")
        except Late as late:
            say(str(late))
        await self.world.strangers_leave()

    async def cancelled(self) -> None:
        """Cancel the current job, and wait until it has finished."""
        await self.world.watch.bus.publish(
            CancelRequested(job=self.world.job, request_id=str(self.world.uid))
        )
        await self.world.watch.until(self.over, LIMIT_S, "the end of what was cancelled")

    def steer(self, faults_done: float) -> None:
        samples, due = standing.samples(self.world.heard)
        self.world.pace(SLOW_S if samples / due > 0.9 * faults_done else QUICK_S)

    # ------------------------------------------------------------ one fault

    async def one(self, fault: Fault) -> Record:
        """Provoke and inject the fault; wait until the job has recovered and is stable again."""
        record = Record(fault=fault)
        try:
            record = await self.struck(record)
            recovered_s = await self.recovered(fault, record.struck_s)
            record = replace(record, recovered_s=recovered_s)
        except (Late, *TROUBLE) as error:
            record = replace(record, trouble=f"{type(error).__name__}: {error}")
        try:
            await self.settled(LIMIT_S)
        except (Late, TimeoutError) as error:
            record = replace(record, trouble=f"{record.trouble} and not quiet: {error}")
        record = replace(record, settled_s=time.time())
        outcome = f"again after {record.took_s:.1f} s" if record.recovered_s else "DID NOT RECOVER"
        quiet_s = record.settled_s - (record.struck_s or record.settled_s)
        say(
            f"{fault.told()}: {record.hit}; {outcome}, quiet after {quiet_s:.1f} s {record.trouble}"
        )
        return record

    async def struck(self, record: Record) -> Record:
        fault = record.fault
        for left in reversed(range(TRIES)):
            workers = len(standing.tasks(self.world.heard, "worker"))
            try:
                if fault.inside or fault.who == "launcher":
                    await self.provoked(fault)
                await asyncio.sleep(fault.delay_s)
                struck_s = time.time()
                hit = await INJECTORS[fault.kind](self.world, fault)
                return replace(record, hit=hit, struck_s=struck_s, workers=workers)
            except Missed:
                if not left:
                    raise
                await self.settled(LIMIT_S)
        raise Missed

    async def provoked(self, fault: Fault) -> None:
        """Provoke a hand-over, and return at the moment at which to inject the fault.

        The other users' pods are deleted so that the job grows, or a worker is evicted.
        """
        if self.world.strangers:
            begun = self._begun(fault.moment)
            await self.world.strangers_leave()
            try:
                await self.world.watch.until(begun, GROWS_S, "the hand-over for growth")
                return
            except Late as late:
                say(str(late))
                await self.settled(LIMIT_S)
        there = {pod["metadata"]["name"] for pod in await self.world.pods()}
        workers = [task for task in standing.tasks(self.world.heard, "worker") if task.pod in there]
        if not workers:
            raise Missed
        begun = self._begun(fault.moment)
        await self.world.evict(workers[fault.choice % len(workers)].pod)
        await self.world.watch.until(begun, PROVOKED_S, "the hand-over for an evicted worker")

    def _begun(self, moment: Moment) -> Callable[[], bool]:
        """Return a function that tells whether a new hand-over has reached this moment.

        At rest, that is its start.
        """
        before, since = standing.newest(self.world.heard), len(self.world.watch.heard)
        kind = BEGINS.get(moment, ClusterSpecPublished)

        def begun() -> bool:
            said = standing.of(
                standing.of_job(self.world.watch.heard[since:], self.world.uid), kind
            )
            return any(m.generation > before for m in said)

        return begun

    async def recovered(self, fault: Fault, struck_s: float) -> float:
        """Return when the target of the fault had answered and updates were applied."""
        of_kind = PROBES.get(fault.kind, ())
        asked = (
            *of_kind,
            *(OF_SERVICE.get(fault.who, ()) if fault.kind.startswith("service") else ()),
        )
        if fault.kind in ("node drained", "bus set back"):  # training had continued for a while
            struck_s = time.time()
        if fault.kind == "disk full":
            return await probes.saving(self.world, time.time(), LIMIT_S)
        moments = [
            await probe(self.world, struck_s, LIMIT_S) for probe in (probes.training, *asked)
        ]
        return max(moments)

    async def settled(self, within_s: float) -> None:
        """Wait until the job is stable or finished.

        A job is stable if no hand-over is in progress, updates are applied, and every pod of its
        generation runs.
        """
        async with asyncio.timeout(within_s):
            while not self.over():
                await self.world.watch.until(lambda: self.over() or self.rests(), within_s, "rest")
                since_s, generation = time.time(), standing.running(self.world.heard)
                await self.world.watch.until(
                    lambda s=since_s: (
                        self.over()
                        or not self.rests()
                        or standing.applies_again_s(self.world.heard, s)
                    ),  # type: ignore[misc]
                    within_s,
                    "a further update",
                )
                same = generation == standing.running(self.world.heard)
                if self.rests() and same and await self.world.stands():
                    return

    def rests(self) -> bool:
        return standing.rests(self.world.heard)
