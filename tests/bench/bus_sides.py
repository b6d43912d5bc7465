"""The two sides of `make bench-bus`, in separate processes: publishers of jobs, and a consumer.

    python -m tests.bench.bus_sides speaker URL NAME FIRST_UID JOBS FACTS_PER_S
    python -m tests.bench.bus_sides hearer URL NAME FILE

Every job publishes its progress, one fact after the acknowledgement of the last. Facts that it
could not publish in time are skipped. Both processes end on SIGTERM, a publisher after all its
facts are acknowledged. The last line of a process is its result. The consumer also writes two
numbers for each applied fact to FILE: the time (s since 1970), and the latency since publication
(s).
"""

from __future__ import annotations

import array
import asyncio
import math
import random
import signal
import sys
import time
from typing import Any

import msgspec

from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import ProgressReported
from shared.runtime import log
from shared.runtime.process import cancel_tasks

TOLD_S = 0.25
LONG_S = 8.0


def tell(**what: Any) -> None:
    print(msgspec.json.encode(what).decode(), flush=True)


def stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


# ---------------------------------------------------------------- publisher


async def speak(url: str, name: str, first: int, jobs: int, facts_per_s: float) -> None:
    stop, bus = stop_signal(), await wire.connect(url, name)
    said: dict[str, int] = {}
    each_s = jobs / facts_per_s
    await asyncio.gather(*(one_job(bus, first + n, each_s, said, stop) for n in range(jobs)))
    tell(said=said)
    await bus.close()


async def one_job(
    bus: Bus, uid: int, each_s: float, said: dict[str, int], stop: asyncio.Event
) -> None:
    """Publish one fact in each period of `each_s`, at the job's own offset; skip missed periods.

    Without the offset, one slow acknowledgement makes all jobs publish at the same moments from
    then on: a burst of 200 facts, three times the latency, in every third run. A job that waited
    for longer than `LONG_S` publishes the previous fact again, after the newer one, as if it did
    not know that it was stored.
    """
    job, due_s = f"job-{uid}", time.monotonic() + random.random() * each_s
    while not stop.is_set():
        await asyncio.sleep(due_s - time.monotonic())
        step, began_s = said.get(job, 0) + 1, time.monotonic()
        await bus.publish(progress(job, uid, step, time.time()))
        said[job] = step
        if step > 1 and time.monotonic() > began_s + LONG_S:
            await bus.publish(progress(job, uid, step - 1, time.time()))
        periods = max(1, math.ceil((time.monotonic() - due_s) / each_s))
        due_s += periods * each_s


def progress(job: str, uid: int, step: int, now_s: float) -> ProgressReported:
    return ProgressReported(
        job=job,
        uid=uid,
        generation=1,
        step=step,
        epoch=0,
        samples=step * 32,
        total_samples=1 << 40,
        samples_per_second=1000.0,
        loss=0.5,
        reported_s=now_s,
    )


# ---------------------------------------------------------------- consumer


class Fold:
    """The last step of each job. A repeated step changes nothing, as in every fold of a service."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self.missing: set[tuple[str, int]] = set()
        self.sequence = self.applied = self.disordered = self.repeated = 0
        self.times = array.array("d")

    async def on_fact(self, heard: StoredMessage) -> None:
        said = heard.message
        assert isinstance(said, ProgressReported)
        last = self.steps.get(said.job, 0)
        if said.step <= last and (said.job, said.step) not in self.missing:
            self.repeated += 1
            return
        if said.step <= last or heard.sequence <= self.sequence:
            self.disordered += 1
        self.missing.discard((said.job, said.step))
        self.missing.update((said.job, step) for step in range(last + 1, said.step))
        self.steps[said.job], self.sequence = (
            max(last, said.step),
            max(self.sequence, heard.sequence),
        )
        self.applied += 1
        now_s = time.time()
        self.times.extend((now_s, now_s - said.reported_s))


async def hear(url: str, name: str, file: str) -> None:
    stop, bus, fold = stop_signal(), await wire.connect(url, name), Fold()
    await bus.follow([ProgressReported], fold.on_fact, {})
    failing, stopping = (
        asyncio.ensure_future(bus.raise_failure()),
        asyncio.ensure_future(stop.wait()),
    )
    while not (stopping.done() or failing.done()):
        late_s = fold.times[-1] if fold.times else 0.0
        tell(
            applied=fold.applied, late_ms=late_s * 1000, at_s=fold.times[-2] if fold.times else 0.0
        )
        await asyncio.wait((failing, stopping), timeout=TOLD_S, return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        failing.result()
    await cancel_tasks(failing, stopping)
    with open(file, "wb") as out:
        fold.times.tofile(out)
    missing = sorted(fold.missing)
    tell(
        steps=fold.steps,
        missing=missing,
        disordered=fold.disordered,
        repeated=fold.repeated,
        applied=fold.applied,
    )
    await bus.close()


if __name__ == "__main__":
    log.configure_logging("bench", "error")
    side, url, name, *more = sys.argv[1:]
    if side == "speaker":
        asyncio.run(speak(url, name, int(more[0]), int(more[1]), float(more[2])))
    else:
        asyncio.run(hear(url, name, more[0]))
