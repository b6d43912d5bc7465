"""Train under random histories of sizes and crashes: `make bench-histories` (about 35 minutes).

A history is a number of events at random updates of a job: a hand-over to another size, or the loss
of a worker, a parameter server or the chief. Real trainers are killed; this benchmark takes the
place of the launcher. Two questions:

exact          a job with `consistency: exact` trains under twenty histories, and every bit of its
               model and optimizer must be that of a job with 1 worker and no event
exact-tables   the same with a program that has tables which are divided among the ps
global-batch   a transformer trains with 2, 4 and 8 workers, and under three histories. Its loss, in
               intervals of updates, is compared with that of five jobs with 1 worker and other seeds

The bands of all intervals together contain a further job with 1 worker with a probability of at
least 99 % (Student's t, Bonferroni). For comparison, there is `async` with 4 workers, which is
expected to leave the bands.

Results: `exact_equal` and `exact_tables_equal` of `exact_histories`; for each arm of the transformer its largest distance
from the mean in half bands (`global_batch_2`, ..., inside: at most 1), `global_batch_worst` of all,
`async_4`; `final_loss_...` of each arm.

Environment: BENCH_HISTORIES (20), BENCH_SEEDS (5, at least 2), BENCH_ARMS (a list with commas),
BENCH_SEED (1).
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from shared.messages import CheckpointRule, ProgressReported, Shuffle, Span
from tests.bench.report import finish_in_a_folder, say
from tests.bench.zoo import half_band
from tests.conftest import NatsServer, connected
from tests.trainer.fleet import Fleet

HISTORIES = int(os.environ.get("BENCH_HISTORIES", "20"))
SEEDS = int(os.environ.get("BENCH_SEEDS", "5"))
SEED = int(os.environ.get("BENCH_SEED", "1"))
ARMS = os.environ.get("BENCH_ARMS", "exact,exact-tables,global-batch").split(",")
TRANSFORMER = Path(__file__).with_name("programs") / "characters.py"
BATCH, EPOCHS, UPDATES = 32, 2, 750
INTERVALS = 10
EXACT_PROGRAMS = {"exact": "noisy.py", "exact-tables": "noisy_tables.py"}
EXACT_EPOCHS, EXACT_UPDATES = 9, 144
PACE_S, EXACT_PACE_S = 0.1, 0.4
"""Least seconds of an update until the last event of a history, so that it happens before the end."""
SLOWER = 4.0
"""An update takes this many times as long while a generation is prepared."""
EVENTS_END = 0.4
"""Events happen in this first share of a job's updates."""
PACED = f"""

import os, pathlib, time

unpaced_dataset = dataset


def dataset(numbers):
    if "COUNTING_PACE" in os.environ:
        pace_s = float(pathlib.Path(os.environ["COUNTING_PACE"]).read_text())
        time.sleep(pace_s * len(numbers) / {BATCH})
    return unpaced_dataset(numbers)
"""
"""Lets the transformer read slowly while another generation is prepared, like the programs of tests."""


class Event(NamedTuple):
    """An event at an update: a hand-over, or the loss of a task. `ps`, `workers`: the size of
    the hand-over that follows; after the loss of a worker there is none.
    """

    update: int
    kind: Literal["resize", "lose worker", "lose ps", "lose chief"]
    ps: int
    workers: int


START = Event(0, "resize", 1, 1)


def random_history(chance: random.Random, updates: int, events: int, most: int) -> list[Event]:
    """Return a history of a job that begins with 1 ps and 1 worker. `most`: workers."""
    workers = 1
    history = []
    for update in sorted(chance.sample(range(5, int(EVENTS_END * updates)), events)):
        kinds: list[Any] = ["resize", "resize", "lose ps", "lose chief"]
        kinds += ["lose worker"] * 2 if workers > 1 else []
        kind = chance.choice(kinds)
        workers = workers - 1 if kind == "lose worker" else chance.randint(1, most)
        history.append(Event(update, kind, chance.randint(1, 2), workers))
    return history


class HistoryPlayer:
    """Applies a history to a fleet. `pace_s`: least seconds of an update."""

    def __init__(self, fleet: Fleet, pace_s: float) -> None:
        self._fleet, self._pace_s = fleet, pace_s
        self._generation = self._chief = self._next_serial = 0
        self._ps: list[int] = []
        self._workers: list[int] = []

    async def play(self, start: Event, history: Sequence[Event]) -> None:
        """Begin with a size, and let each event happen when its update is made."""
        await self._hand_over(start)
        for event in history:
            is_reached = partial(_is_report_after, self._generation, event.update)
            await self._fleet.until(ProgressReported, is_reached)
            await self._apply_event(event)

    async def _apply_event(self, event: Event) -> None:
        if event.kind == "lose worker":
            await self._fleet.kill(f"worker-{self._workers.pop()}")
            return
        if event.kind == "lose ps":
            await self._fleet.kill(f"ps-{self._ps.pop()}")
        if event.kind == "lose chief":
            await self._fleet.kill(f"chief-{self._chief}")
            self._chief += 1
        await self._hand_over(event)

    async def _hand_over(self, event: Event) -> None:
        """Start another generation, which keeps tasks of the one before where it can."""
        previous = self._generation or None
        self._generation += 1
        # Workers wait at the same time, so more of them need a slower pace.
        pace_s = self._pace_s * max(len(self._workers), event.workers)
        self._fleet.pace(SLOWER * pace_s)
        self._ps = self._serials_of(self._ps, event.ps)
        self._workers = self._serials_of(self._workers, event.workers)
        await self._fleet.generation(
            self._generation,
            ps=self._ps,
            workers=self._workers,
            previous=previous if event.kind == "resize" else None,
            chief=self._chief,
        )
        self._fleet.pace(pace_s)

    def _serials_of(self, serials: list[int], count: int) -> list[int]:
        """Return so many serials of tasks: the first of these, and new ones."""
        while len(serials) < count:
            serials = [*serials, self._next_serial]
            self._next_serial += 1
        return serials[:count]


def _is_report_after(generation: int, update: int, report: ProgressReported) -> bool:
    return report.generation == generation and report.step >= update


@asynccontextmanager
async def fleet_of(folder: Path, program: str, **fields: Any) -> AsyncIterator[Fleet]:
    """Yield a fleet on a bus of its own. `program`: a name or a path."""
    server = NatsServer(folder / "nats")
    await server.start()
    bus = await connected(server.url, "test")
    try:
        async with Fleet(bus, server.url, folder / "fleet", program, **fields) as fleet:
            yield fleet
    finally:
        await bus.close()
        await server.kill()


async def finish_job(fleet: Fleet, updates: int) -> None:
    fleet.pace(0)
    finished = await fleet.finished()
    if finished.outcome != "succeeded" or finished.step != updates:
        raise RuntimeError(f"{finished.outcome} after {finished.step} updates: {finished.cause}")


# ---------------------------------------------------------------- exact


async def compare_bits(folder: Path, arm: str) -> dict[str, Any]:
    program = EXACT_PROGRAMS[arm]
    static = await exact_weights(folder / f"{arm}-static", program, [])
    if not static:
        raise RuntimeError("a checkpoint has no variable of the model: nothing would be compared")
    equal = 0
    for number in range(HISTORIES):
        began_s = time.monotonic()
        history = random_history(random.Random(SEED * 1000 + number), EXACT_UPDATES, 3, 4)
        found = await exact_weights(folder / f"{arm}-{number}", program, history)
        is_equal = found == static
        equal += is_equal
        what = ", ".join(f"{each.kind} at {each.update}" for each in history)
        verdict = "equal" if is_equal else "DIFFERENT"
        took_s = time.monotonic() - began_s
        say(f"{arm} {number + 1}/{HISTORIES} {verdict}: {what} ({took_s:.0f} s)")
    name = arm.replace("-", "_")
    return {
        "exact_histories": HISTORIES,
        f"{name}_equal": equal,
        f"{name}_variables": len(static),
    }


async def exact_weights(folder: Path, program: str, history: Sequence[Event]) -> dict[str, bytes]:
    """Train an exact job with this history; return the bytes of its final variables."""
    fields: dict[str, Any] = {
        "epochs": EXACT_EPOCHS,
        "consistency": "exact",
        "checkpoint": CheckpointRule(every_s=1.0),
    }
    folder.mkdir()
    async with fleet_of(folder, program, **fields) as fleet:
        await HistoryPlayer(fleet, EXACT_PACE_S if history else 0.0).play(START, history)
        await finish_job(fleet, EXACT_UPDATES)
        return fleet.final_weights()


# ---------------------------------------------------------------- loss over updates


class Arm(NamedTuple):
    """A job of the transformer. `workers`: at the start."""

    consistency: str
    workers: int
    history: Sequence[Event] = ()


class Band(NamedTuple):
    """The losses that a further job with 1 worker has with a probability of 99 %."""

    mean: float
    half: float


async def compare_losses(folder: Path) -> dict[str, Any]:
    static = []
    for seed in range(SEEDS):
        curve = await loss_curve(folder / f"static-{seed}", seed, "async", 1, [])
        _say_curve(f"1 worker, seed {seed}", curve)
        static.append(curve)
    bands = [
        Band(statistics.fmean(each), half_band(each, intervals=INTERVALS))
        for each in zip(*static, strict=True)
    ]
    arms = {f"global_batch_{workers}": Arm("global-batch", workers) for workers in (2, 4, 8)}
    for number in range(3):
        history = random_history(random.Random(SEED * 100 + number), UPDATES, 4, 4)
        arms[f"global_batch_history_{number + 1}"] = Arm("global-batch", 1, history)
    arms["async_4"] = Arm("async", 4)
    distances, finals = {}, {}
    for name, arm in arms.items():
        curve = await loss_curve(folder / name, SEEDS, *arm)
        _say_curve(name, curve)
        distances[name] = _distance(bands, curve)
        finals[f"final_loss_{name}"] = curve[-1]
        say(f"{name}: at most {distances[name]:.2f} half bands from the mean")
    return {
        "final_loss_static": statistics.mean([each[-1] for each in static]),
        **finals,
        **distances,
        "global_batch_worst": max([distances[name] for name in arms if name != "async_4"]),
        "seeds": SEEDS,
    }


def _distance(bands: Sequence[Band], curve: Sequence[float]) -> float:
    """Return the largest distance of a curve from the means of the bands, in half bands."""
    pairs = zip(bands, curve, strict=True)
    return max(abs(loss - band.mean) / band.half for band, loss in pairs)


def _say_curve(name: str, curve: Sequence[float]) -> None:
    say(f"{name}: " + " ".join(f"{each:.3f}" for each in curve))


async def loss_curve(
    folder: Path, seed: int, consistency: str, workers: int, history: Sequence[Event]
) -> list[float]:
    """Train the transformer; return its mean loss in each interval of updates."""
    fields: dict[str, Any] = {
        "epochs": EPOCHS,
        "batch": Span(start=BATCH, min=BATCH, max=BATCH),
        "workers": Span(start=1, min=1, max=8),
        "consistency": consistency,
        "params": {"seed": seed},
        "shuffle": Shuffle(on=True, seed=seed),
        "checkpoint": CheckpointRule(every_s=5.0),
    }
    folder.mkdir()
    program = folder / "characters.py"
    program.write_text(TRANSFORMER.read_text() + PACED)
    async with fleet_of(folder, str(program), **fields) as fleet:
        start = Event(0, "resize", 1, workers)
        await HistoryPlayer(fleet, PACE_S if history else 0.0).play(start, history)
        await finish_job(fleet, UPDATES)
        return mean_losses([m for m in fleet.said if isinstance(m, ProgressReported)])


def mean_losses(reports: Sequence[ProgressReported]) -> list[float]:
    """Return the mean loss in each interval of updates. Updates that a later generation made again
    count once, with its loss.
    """
    kept: list[ProgressReported] = []
    for report in reports:
        while kept and kept[-1].step >= report.step:
            kept.pop()
        if report.loss is not None:
            kept.append(report)
    losses: list[list[float]] = [[] for _ in range(INTERVALS)]
    before = 0
    for report in kept:
        for update in range(before, report.step):
            losses[update * INTERVALS // UPDATES].append(float(report.loss or 0.0))
        before = report.step
    return [statistics.fmean(each) for each in losses]


async def main(folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for arm in EXACT_PROGRAMS:
        if arm in ARMS:
            figures |= await compare_bits(folder, arm)
    if "global-batch" in ARMS:
        figures |= await compare_losses(folder)
    return figures


if __name__ == "__main__":
    finish_in_a_folder("weir-histories-", main)
