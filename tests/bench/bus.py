"""Benchmark of the bus under load: `make bench-bus` (about 2 minutes).

A nats-server, and the bus code of the services in separate processes (`bus_sides.py`): SPEAKERS
publishers of facts about many jobs, each fact after the acknowledgement of the job's last one, and
one durable consumer that folds and acknowledges them. There are no credentials. One run, in which
the publishers never stop:

    steady     MEASURED_S long: facts_per_s (applied), p99_ms (from before `publish` to applied;
               both by the clock of this machine)
    frozen     the consumer is stopped (SIGSTOP) for 30 s
    restart    the server is killed (SIGKILL) and started again
    absence    it is killed and comes back long after the end of its window for duplicates. To save
               time, the stream has a window of WINDOW_S instead of 120 s, and the server stays away
               for ABSENT_S, as much longer than that as 10 minutes are than 120 s

The server syncs to its disk every BENCH_SYNC, as in `weir up`; `BENCH_SYNC=2m` is the default of
the server.

`catch_up_s`: the longest of the three times from the return of the consumer (or the server) to a
fact that is applied within CURRENT_S of its publication. `lost`: acknowledged and never applied.
`applied_disordered`: applied after a later fact of its job, or against the order of the stream.
`repeated`: stored twice and applied once; after the absence, every job publishes one fact again
after a newer one, as if its acknowledgement had been lost, and the server no longer recognises it.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from services.local.stack import SYNC_INTERVAL
from shared.bus.subjects import FACTS
from tests.bench.report import finish, percentile, say
from tests.conftest import NatsServer, connected

SPEAKERS = int(os.environ.get("BENCH_SPEAKERS", "1"))
JOBS = int(os.environ.get("BENCH_JOBS", "200"))
RATE = float(os.environ.get("BENCH_RATE", "5500"))
MEASURED_S = float(os.environ.get("BENCH_STEADY_S", "30"))
SETTLE_S = float(os.environ.get("BENCH_SETTLE_S", "5"))
FROZEN_S = float(os.environ.get("BENCH_FROZEN_S", "30"))
WINDOW_S, ABSENT_S = 3.0, float(os.environ.get("BENCH_ABSENT_S", "15"))
SYNC = os.environ.get("BENCH_SYNC", SYNC_INTERVAL)
CURRENT_S = 0.05
LINE = 1 << 24  # bytes
PATIENCE_S = 120.0


@dataclass
class Side:
    """A process of one side, and the last figures that it printed."""

    process: asyncio.subprocess.Process
    told: dict[str, Any] = field(default_factory=dict)
    listening: asyncio.Future[None] | None = None

    @classmethod
    async def start(cls, *words: object) -> Side:
        command = (sys.executable, "-m", "tests.bench.bus_sides", *map(str, words))
        side = cls(
            await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, limit=LINE
            )
        )
        side.listening = asyncio.ensure_future(side._listen())
        return side

    async def _listen(self) -> None:
        assert self.process.stdout
        async for line in self.process.stdout:
            self.told = json.loads(line)

    async def end(self) -> dict[str, Any]:
        """Stop the process; return the last figures that it printed."""
        if self.process.returncode is None:
            self.process.terminate()
        await asyncio.wait_for(self.process.wait(), PATIENCE_S)
        if self.listening:
            await self.listening
        return self.told


class Bench:
    def __init__(self, server: NatsServer, folder: Path) -> None:
        self.server, self.file = server, folder / "times"
        self.hearer: Side
        self.speakers: list[Side] = []
        self.marks: dict[str, float] = {}  # when the side that was away came back, in s since 1970
        self.steady = (0.0, 0.0)

    async def start(self) -> None:
        await self._forgetful()
        self.hearer = await Side.start("hearer", self.server.url, "hearer", self.file)
        jobs = JOBS // SPEAKERS
        self.speakers = [
            await Side.start(
                "speaker", self.server.url, f"speaker-{n}", 1 + n * jobs, jobs, RATE / SPEAKERS
            )
            for n in range(SPEAKERS)
        ]
        await self._current()

    async def _forgetful(self) -> None:
        bus = await connected(self.server.url, "bench")
        config = (await bus.js.stream_info(FACTS)).config
        await bus.js.update_stream(replace(config, duplicate_window=WINDOW_S))
        await bus.close()

    async def _current(self) -> None:
        """Wait until the consumer applies facts that were published just before."""
        began_s = time.time()
        while not (
            self.hearer.told.get("at_s", 0.0) > began_s
            and self.hearer.told["late_ms"] < CURRENT_S * 1000
        ):
            if time.time() > began_s + PATIENCE_S:
                raise RuntimeError(
                    f"the hearer has not caught up within {PATIENCE_S:g} s: {self.hearer.told}"
                )
            self._all_live()
            await asyncio.sleep(0.1)

    def _all_live(self) -> None:
        for side in (self.hearer, *self.speakers):
            if side.process.returncode is not None:
                raise RuntimeError("a side has ended; its words are above")

    async def run(self) -> None:
        say(f"steady: {RATE:g} facts/s of {JOBS} jobs for {MEASURED_S:g} s")
        await asyncio.sleep(SETTLE_S)
        begin_s = time.time()
        await asyncio.sleep(MEASURED_S)
        self.steady = (begin_s, time.time())
        await self._phase("frozen", self._frozen)
        await self._phase("restart", lambda: self._away(0.0))
        await self._phase("absence", lambda: self._away(ABSENT_S))

    async def _phase(self, name: str, trouble: Callable[[], Any]) -> None:
        await trouble()
        self.marks[name] = time.time()
        await self._current()
        say(
            f"{name}: current again {time.time() - self.marks[name]:.1f} s later,"
            f" {self.hearer.told['applied']} applied"
        )
        await asyncio.sleep(SETTLE_S)

    async def _frozen(self) -> None:
        self.hearer.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(FROZEN_S)
        self.hearer.process.send_signal(signal.SIGCONT)

    async def _away(self, seconds: float) -> None:
        await self.server.kill()
        await asyncio.sleep(seconds)
        await self.server.start()

    async def result(self) -> dict[str, Any]:
        said: dict[str, int] = {}
        for side in self.speakers:
            said |= (await side.end())["said"]
        await asyncio.sleep(SETTLE_S)
        last = await self.hearer.end()
        times = array.array("d", self.file.read_bytes())
        return figures(
            said, last, list(zip(times[::2], times[1::2], strict=True)), self.steady, self.marks
        )

    async def close(self) -> None:
        for side in (self.hearer, *self.speakers):
            if side.process.returncode is None:
                side.process.kill()
                await side.process.wait()


Applied = list[tuple[float, float]]  # time (s since 1970), latency (s)


def figures(
    said: dict[str, int],
    last: dict[str, Any],
    applied: Applied,
    steady: tuple[float, float],
    marks: dict[str, float],
) -> dict[str, Any]:
    late_ms = [late_s * 1000 for at_s, late_s in applied if steady[0] <= at_s < steady[1]]
    waits = {name: current(applied, mark_s) - mark_s for name, mark_s in marks.items()}
    behind = sum(max(0, step - last["steps"].get(job, 0)) for job, step in said.items())
    return {
        "facts_per_s": len(late_ms) / (steady[1] - steady[0]),
        "p99_ms": percentile(late_ms, 0.99),
        "lost": len(last["missing"]) + behind,
        "applied_disordered": last["disordered"],
        "catch_up_s": max(waits.values()),
        **{f"{name}_s": wait_s for name, wait_s in waits.items()},
        "p50_ms": percentile(late_ms, 0.5),
        "facts": sum(said.values()),
        "applied": last["applied"],
        "repeated": last["repeated"],
    }


def current(applied: Applied, after_s: float) -> float:
    """Return the first time after `after_s` at which a fact was applied within CURRENT_S."""
    return next(at_s for at_s, late_s in applied if at_s >= after_s and late_s <= CURRENT_S)


async def main() -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-bench-")))
        config = folder / "nats.conf"
        config.write_text(f"jetstream {{ sync_interval: {SYNC} }}\n")
        server = NatsServer(folder / "nats", "-c", str(config))
        await server.start()
        stack.push_async_callback(server.kill)
        bench = Bench(server, folder)
        stack.push_async_callback(bench.close)
        await bench.start()
        await bench.run()
        return await bench.result()


if __name__ == "__main__":
    finish(asyncio.run(main()))
