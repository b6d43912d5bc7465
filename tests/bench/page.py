"""Measure if the page keeps up with the facts: `make bench-page` (about 1 minute).

A nats-server with 1,000 nodes and 200 jobs in its log; the service of the page in a separate
process, without credentials; and Chromium, which shows it. Then RATE facts per second for
MEASURED_S: two of three are reports of the jobs in turn, the third is the capacity of a node.
Measured in Chromium, at every frame that it draws, first with the top of the page in view (`top_`)
and then the nodes (`nodes_`):

    frames_per_s    frames drawn
    frame_p99_ms    time between two frames
    behind_*_ms     age of the newest fact on the screen (by the server's clock, on this machine) at
                    each frame that shows something new: reading, pushing, drawing
    backlog_facts   facts stored and not on the screen when the last one was published, by the
                    newest fact on the screen
    drained_s       from storing the last fact until it is on the screen
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from msgspec.structs import replace
from playwright.async_api import Page, async_playwright

from services.local.stack import is_listening
from shared.bus.bus import Bus
from shared.bus.subjects import FACTS
from shared.messages import CapacityChanged, Message, ProgressReported
from shared.runtime.process import free_port
from tests.allocator.builders import accepted, request, resumed
from tests.bench.report import finish, percentile, say
from tests.conftest import NatsServer, connected
from tests.console.board.builders import decided, holding, progress
from tests.console.page.conftest import CHROMIUM, FLAGS, until

NODES, JOBS = int(os.environ.get("BENCH_NODES", "1000")), int(os.environ.get("BENCH_JOBS", "200"))
RATE = float(os.environ.get("BENCH_RATE", "60"))
MEASURED_S = float(os.environ.get("BENCH_STEADY_S", "20"))
SETTLE_S, PATIENCE_S = float(os.environ.get("BENCH_SETTLE_S", "5")), 120.0
PLACES = {"top": "tiles", "nodes": "node-map"}
"""The part in view: numbers, the cluster over time, decisions and the first jobs; or the nodes."""
SEEN = "({ ...window.measured, at_s: window.weir.at_s })"
AT_ONCE = 100
WIDE = {"width": 1360, "height": 900}
COUNT = """() => { const m = (window.measured = { frames: [], behind: [] }); let last = 0, number = -1; const frame =
(now) => { if (last) m.frames.push(now - last); last = now; if (window.weir.number !== number) { number =
window.weir.number; m.behind.push(Date.now() - 1000 * window.weir.at_s); } requestAnimationFrame(frame); };
requestAnimationFrame(frame); }"""


def world() -> list[list[Message]]:
    """Return the first messages of the log; those of a list can be published in any order."""
    names = [f"job-{number}" for number in range(JOBS)]
    accepts = [accepted(request(name), uid=uid) for uid, name in enumerate(names, start=1)]
    begins: list[Message] = [
        replace(decided(job=name, asked=request(name)), uid=uid)
        for uid, name in enumerate(names, start=1)
    ]
    trains: list[Message] = [
        replace(resumed(1, name), uid=uid) for uid, name in enumerate(names, start=1)
    ]
    return [[*map(node, range(NODES))], [*accepts], begins, trains]


def node(number: int, turn: int = 0) -> CapacityChanged:
    pods = (number + turn) % 7
    return replace(holding(f"node-{number}", pods=pods, job=f"job-{number % JOBS}"), seen=str(turn))


def report(number: int) -> ProgressReported:
    job, turn = number % JOBS, number // JOBS + 1
    said = progress(10 * turn, speed=90 + job % 20, loss=2.0 / turn, job=f"job-{job}")
    return replace(said, uid=job + 1, total_samples=100_000)


async def publish(bus: Bus, messages: list[Message]) -> None:
    for begin in range(0, len(messages), AT_ONCE):
        await asyncio.gather(*map(bus.publish, messages[begin : begin + AT_ONCE]))


async def speak(bus: Bus, seconds: float, first: int = 0) -> int:
    """Publish RATE facts per second, with numbers from `first`; return the next number."""
    begun_s, said = time.monotonic(), first
    while (elapsed := time.monotonic() - begun_s) < seconds:
        while said - first < elapsed * RATE:
            third = said % 3 == 2
            await bus.publish(
                node(said * 7 % NODES, said + 1) if third else report(said - said // 3)
            )
            said += 1
        await asyncio.sleep(max(0.0, (said - first) / RATE - (time.monotonic() - begun_s)))
    return said


@asynccontextmanager
async def service(url: str, port: int) -> AsyncIterator[psutil.Process]:
    given = {
        "WEIR_NATS_URL": url,
        "WEIR_PAGE_PORT": str(port),
        "WEIR_NATS_CREDENTIALS": "",
        "WEIR_LOG_LEVEL": "warning",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.console.page", env={**os.environ, **given}
    )
    try:
        while not is_listening(port):
            await asyncio.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def chromium(url: str) -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = await browser.new_page(viewport=WIDE)  # type: ignore[arg-type]
        tab.set_default_timeout(PATIENCE_S * 1000)
        await tab.goto(url)
        await tab.wait_for_selector('#status[data-state="live"]')
        await until(tab, f"document.querySelectorAll('.node').length === {NODES}", PATIENCE_S)
        await until(
            tab, f"document.querySelectorAll('#job-table tbody tr').length === {JOBS}", PATIENCE_S
        )
        yield tab
        await browser.close()


async def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        server = NatsServer(Path(folder))
        await server.start()
        bus = await connected(server.url, "bench")
        try:
            for messages in world():
                await publish(bus, messages)
            port = free_port()
            async with (
                service(server.url, port) as page,
                chromium(f"http://127.0.0.1:{port}/") as tab,
            ):
                return await measured(bus, page, tab)
        finally:
            await bus.close()
            await server.kill()


async def measured(bus: Bus, page: psutil.Process, tab: Page) -> dict[str, Any]:
    said = await speak(bus, SETTLE_S)  # the first drawing is not measured
    await tab.evaluate(COUNT)
    begun_s, cpu = time.time(), sum(page.cpu_times()[:2])
    found: dict[str, Any] = {}
    for place, sight in PLACES.items():
        say(f"{place}: {RATE:g} facts/s of {JOBS} jobs on {NODES} nodes for {MEASURED_S:g} s")
        await tab.evaluate(f"document.getElementById('{sight}').scrollIntoView()")
        said = await speak(bus, SETTLE_S, said)
        await tab.evaluate("window.measured.frames.length = window.measured.behind.length = 0")
        said = await speak(bus, MEASURED_S, said)
        found |= {
            f"{place}_{name}": value
            for name, value in _seen(await tab.evaluate(SEEN), time.time()).items()
        }
    ended_s = time.time()
    newest_s = (await bus.js.get_msg(FACTS, subject="weir.>", direct=True)).time
    await until(
        tab,
        f"window.weir.at_s >= {newest_s.timestamp() if newest_s else ended_s:.6f} - 0.001",
        PATIENCE_S,
    )
    return found | {
        "drained_s": time.time() - ended_s,
        "facts_per_s": said / (ended_s - begun_s + SETTLE_S),
        "page_cpu": (sum(page.cpu_times()[:2]) - cpu) / (ended_s - begun_s),
        "page_mb": page.memory_info().rss / 1e6,
        "nodes": NODES,
        "jobs": JOBS,
    }


def _seen(told: dict[str, Any], now_s: float) -> dict[str, float]:
    return {
        "frames_per_s": len(told["frames"]) / MEASURED_S,
        "frame_p99_ms": percentile(told["frames"], 0.99),
        "behind_p50_ms": percentile(told["behind"], 0.5),
        "behind_p99_ms": percentile(told["behind"], 0.99),
        "backlog_facts": max(0.0, now_s - told["at_s"]) * RATE,
    }


if __name__ == "__main__":
    if CHROMIUM is None:
        say("no Chromium here: `make browser` installs Debian's")
        sys.exit(1)
    finish(asyncio.run(main()))
