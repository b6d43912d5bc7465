"""Tests of the page in a real Chromium: its content, the keyboard, a phone, and bus outages.

Screenshots go to the folder that WEIR_PICTURES names.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from services.console.board.board import apply, initial_board
from services.console.page.watch import Watch
from services.whatif.event_log import LogEntry
from shared.runtime.process import cancel_tasks
from shared.text import format_duration
from tests.allocator.builders import accepted, request, resumed
from tests.conftest import NatsServer, connected
from tests.console.board.builders import Log, decided, holding, progress
from tests.console.page import scene
from tests.console.page.conftest import PHONE, WIDE, Look, Still, served, until

DRAWN = "#cluster-plot svg .unit"
TIMELINE = "#job-plot svg .unit"
OVERLAPS = """() => {
  const texts = 'svg text:not(.letter), h2, .tile b, .tile span, .legend li, .node b, .heading label';
  const boxes = [...document.querySelectorAll(texts)].map((e) => [e.textContent.trim(), e.getBoundingClientRect()]);
  const seen = boxes.filter(([text, box]) => text && box.width > 0 && box.height > 0);
  const crossing = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  const over = ([t, a], i) => seen.slice(i + 1).filter(([, b]) => crossing(a, b)).map(([u]) => `${t} | ${u}`);
  return seen.flatMap(over);
}"""
RIGHTMOST = """() => {
  const right = (e) => e.getBoundingClientRect().right;
  const drawn = [...document.querySelectorAll('#job-plot svg :is(path.line, .pause, .mark)')];
  return [Math.max(...drawn.map(right)), right(document.querySelector('#job-plot svg .axis'))];
}"""
ROW = 'tr[data-key="default.digits"]'
COMPARED = """() => {
  window.apart = [];
  const row = document.querySelector('tr[data-key="default.digits"]');
  const done = () => [...document.querySelectorAll('#job-figures div')].find((e) => e.textContent.startsWith('done'));
  const look = () => {
    const [table, timeline] = [row.cells[4].textContent, done().querySelector('dd').textContent.split(' (')[0]];
    if (table !== timeline) window.apart.push([table, timeline]);
    requestAnimationFrame(look);
  };
  look();
}"""
BEYOND = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def still() -> Still:
    return Still(scene.board(time.time()))


async def opened(look: Look, url: str, **how: Any) -> Any:
    tab = await look(url, **how)
    await tab.wait_for_selector(DRAWN)
    await tab.wait_for_selector(TIMELINE)
    return tab


TIMES = [
    0.0,
    0.618,
    9.99,
    42.06,
    59.9,
    60.0,
    75.2,
    120.0,
    3_600.0,
    7_512.0,
    86_399.0,
    90_000.0,
    172_800.0,
    -3.0,
    -75.0,
]


async def test_the_page_formats_durations_as_the_commands_do(look: Look) -> None:
    async with served(still()) as page:
        tab = await opened(look, page.url)
        told = (
            "async (times) => { const words = await import('./words.js'); return"
            " times.map(words.%s); }"
        )

        assert await tab.evaluate(told % "seconds", TIMES) == [
            format_duration(time, fine=True) for time in TIMES
        ]
        assert await tab.evaluate(told % "duration", TIMES) == [
            format_duration(time) for time in TIMES
        ]
        worth = ["5 min 2 s saved for", "1 h 36 min lost, beside"]
        assert await tab.evaluate(told % "worth", [302.0, -5810.6]) == worth


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("name", "size"), [("wide", WIDE), ("phone", PHONE)])
async def test_the_page_is_legible_wide_and_on_a_phone_in_both_themes(
    look: Look, pictures: Path, name: str, size: dict[str, int], theme: str
) -> None:
    async with served(still()) as page:
        tab = await opened(look, page.url, size=size, theme=theme, fragment="#job=default.digits")
        await tab.locator("#decision-list summary").first.click()
        await tab.locator("#job-marks button").nth(1).click()
        await tab.wait_for_selector("#job-decision:not([hidden])")
        await tab.evaluate("window.scrollTo(0, 0)")
        await tab.screenshot(path=pictures / f"page-{name}-{theme}.png", full_page=True)

        assert await tab.evaluate(OVERLAPS) == []
        assert await tab.evaluate(BEYOND) <= 0, "nothing is wider than the window"
        ground = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(244, 245, 247)", "dark": "rgb(16, 19, 23)"}[theme]


async def test_the_page_shows_the_board_and_every_axis_has_a_unit(look: Look) -> None:
    watch = still()
    async with served(watch) as page:
        tab = await opened(look, page.url, fragment="#job=default.digits")
        view = watch.board.jobs["default.digits"].view
        row = tab.locator('tr[data-key="default.digits"]')
        assert await row.locator("td").nth(0).inner_text() == view.phase
        assert await row.locator("td").nth(1).inner_text() == str(view.ps)
        assert await row.locator("td").nth(2).inner_text() == str(view.workers)
        assert f"{view.loss:.4f}" in await row.locator("td").nth(6).inner_text()
        held = watch.board.totals.ours
        tiles = " ".join((await tab.locator("#tiles").inner_text()).split())
        totals = watch.board.totals
        assert f"{held:g}" in tiles and f"{totals.ours_gib:g} GiB memory held by jobs" in tiles
        assert (
            f"{totals.used_gib:g} GiB memory used by jobs" in tiles
            and f"of {totals.allocatable_gib:g} GiB" in tiles
        )
        assert (
            await row.locator("td").nth(8).inner_text()
            == f"{watch.board.jobs['default.digits'].held_resources.memory_gib:g}"
        )
        node = watch.board.nodes["node-4"]
        memory = await tab.locator('.node[data-name="node-4"] .memory').inner_text()
        assert (
            " ".join(memory.split())
            == f"jobs: {node.ours.memory_gib:g} of {node.allocatable.memory_gib:g} GiB"
        )
        units = [
            await text.text_content() for text in await tab.locator("#job-plot svg .unit").all()
        ]
        assert units == ["tasks", "examples/s", "loss", "cores"]
        assert await tab.locator("#job-plot svg text", has_text="time of day").count() == 1
        assert int(await tab.locator("#job-plot").get_attribute("data-points")) == len(
            watch.board.jobs["default.digits"].reports
        )


async def test_table_and_timeline_agree_in_every_frame(look: Look) -> None:
    watch = still()
    async with served(watch) as page:
        tab = await opened(look, page.url, fragment="#job=default.digits")
        await tab.evaluate(COMPARED)
        story = watch.board.jobs["default.digits"]
        last = story.reports[-1]
        for percent in (97, 98, 99):
            samples = percent * story.view.total_samples // 100
            sequence = watch.board.sequences["weir-facts"] + 1
            said = replace(
                progress(samples, last.generation, job="digits"),
                uid=story.uid,
                step=last.step + percent,
                total_samples=story.view.total_samples,
            )
            watch.show(apply(watch.board, LogEntry(time.time(), "weir-facts", sequence, said)))
            await until(
                tab,
                f"document.querySelector('{ROW} td:nth-of-type(4)').textContent ==="
                f" '{percent}\\u00a0%'",
            )
        assert await tab.evaluate("window.apart") == []
        pauses = await tab.locator("#job-figures div", has_text="pauses").locator("dd").inner_text()
        lasted = await tab.locator(f"{ROW} td").nth(9).inner_text()
        assert lasted == "0.70 s" and pauses == f"3: 2.50 s in total, the last {lasted}"


async def test_nothing_is_shown_as_absent_before_the_log_is_read(look: Look) -> None:
    watch = Still(initial_board())
    watch.caught_up = False
    async with served(watch) as page:
        tab = await look(page.url)
        await tab.wait_for_selector('#status[data-state="reading"]')
        shown = await tab.locator("main").inner_text()
        assert shown.count("reading …") == 3
        assert not any(
            claim in shown
            for claim in ("There are no jobs", "Nothing has been decided", "cores of all nodes")
        )
        watch.caught_up = True
        watch.show(watch.board)
        await tab.wait_for_selector('#status[data-state="live"]')
        await tab.locator("#no-jobs").wait_for()
        shown = await tab.locator("main").inner_text()
        assert (
            "reading …" not in shown
            and "There are no jobs" in shown
            and "Nothing has been decided yet" in shown
        )
        assert "Drawn after the next report of a node." in shown


async def test_a_cluster_without_jobs_is_shown_as_such(look: Look) -> None:
    async with served(
        Still(apply(initial_board(), LogEntry(time.time() - 5, "weir-facts", 1, holding(pods=0))))
    ) as page:
        tab = await look(page.url)
        await tab.wait_for_selector(DRAWN)
        assert (await tab.locator("#status").inner_text()).endswith("0 jobs, 1 node")
        assert "No job has held cores in this span" in await tab.locator("#no-cores").inner_text()


@pytest.mark.parametrize(("name", "size"), [("wide", WIDE), ("phone", PHONE)])
async def test_a_job_before_its_training_shows_no_unknown_number(
    look: Look, pictures: Path, name: str, size: dict[str, int]
) -> None:
    log = Log()
    log.now_s = time.time() - 20
    log.say(holding(), request(), accepted(), decided(workers=2, batch=64), holding(pods=4))
    watch = Still(log.board)
    async with served(watch) as page:
        tab = await opened(look, page.url, size=size, fragment="#job=default.mnist")
        said = " ".join((await tab.locator("#job").inner_text()).split())
        await tab.screenshot(path=pictures / f"page-starting-{name}.png", full_page=True)
        assert "No speed yet: waits for 4 pods: 0 of 4 run, 0 ready." in said
        assert "size none yet; 1 ps, 2 workers, batch 64 decided" in said
        drawn = [
            await text.text_content() for text in await tab.locator("#job-plot svg text").all()
        ]
        assert {"no task has trained yet", "no speed yet", "no loss yet"} <= set(
            drawn
        ) and "no cores held yet" not in drawn
        assert not any(
            unknown in said
            for unknown in ("batch 0", "generation 0", "of 0 examples", "0.00 s in total", "used")
        )
        assert await tab.evaluate(OVERLAPS) == [] and await tab.evaluate(BEYOND) <= 0
        watch.show(log.say(resumed(1)))
        await until(
            tab,
            "document.getElementById('job-word').textContent.includes('its first report has"
            " not come yet')",
        )
        watch.show(log.say(progress(100)))
        await until(tab, "document.getElementById('job-word').hidden")
        assert "no speed yet" not in await tab.locator("#job-plot").inner_text()


async def test_lines_of_a_finished_job_are_labelled(look: Look, pictures: Path) -> None:
    async with served(still()) as page:
        tab = await opened(look, page.url, fragment="#job=default.reviews")
        named = [
            await text.text_content() for text in await tab.locator("#job-plot svg .end").all()
        ]
        assert {"workers", "ps", "held", "used"} <= set(named)
        held, used = [tab.locator("#job-plot svg .end", has_text=name) for name in ("held", "used")]
        assert float(await held.get_attribute("y")) < float(await used.get_attribute("y")), (
            "as its lines are"
        )
        await tab.locator("#job").screenshot(path=pictures / "page-job-over.png")


async def test_held_and_used_cpu_time_have_one_unit(look: Look) -> None:
    watch = still()
    story = replace(watch.board.jobs["default.reviews"], core_s=540.0, used_core_s=299.0)
    watch.board = replace(watch.board, jobs=watch.board.jobs | {story.key: story})
    async with served(watch) as page:
        tab = await opened(look, page.url, fragment="#job=default.reviews")
        said = await tab.locator("#job-figures div", has_text="CPU time").locator("dd").inner_text()
        assert said == "0.15 CPU-hours held, 0.08 CPU-hours used"


async def test_evaluation_results_are_shown_and_labelled(look: Look) -> None:
    async with served(still()) as page:
        tab = await opened(look, page.url, fragment="#job=default.reviews")
        why = await tab.locator('tr[data-key="default.reviews"] td.why-cell').inner_text()
        assert "2,000,000 examples, evaluation: accuracy 0.9340" in why
        evaluation = tab.locator("#job-figures div", has=tab.locator("dt", has_text="evaluation"))
        assert (await evaluation.inner_text()).split() == ["evaluation", "accuracy", "0.9340"]
        assert (
            "evaluation" not in await tab.locator('tr[data-key="default.digits"]').inner_text()
        ), "it has none yet"


async def test_charts_of_a_finished_job_end_at_its_end(look: Look) -> None:
    watch = still()
    story = watch.board.jobs["default.reviews"]
    assert story.finished and story.held[-1].at_s > story.finished.finished_s + 30, (
        "its pods leave later"
    )
    async with served(watch) as page:
        tab = await opened(look, page.url, fragment="#job=default.reviews")
        drawn, axis = await tab.evaluate(RIGHTMOST)
        assert drawn <= axis + 0.5


async def test_a_decision_opens_to_its_reason_and_rejected_sizes(look: Look) -> None:
    async with served(still()) as page:
        tab = await opened(look, page.url, fragment="#job=default.digits")
        await tab.locator("#job-marks button").nth(1).click()
        said = await tab.locator("#job-decision").inner_text()

        assert "free cores would end it sooner" in said and "the ps would be the bottleneck" in said
        assert "a pause of 0.80 s" in said, "what came of it"


async def test_everything_is_usable_by_keyboard(look: Look) -> None:
    async with served(still()) as page:
        tab = await opened(look, page.url, fragment="#job=default.digits")
        await tab.locator("#cluster-plot svg").focus()
        await tab.keyboard.press("ArrowLeft")
        assert "cores: " in await tab.locator("#cluster-readout").inner_text()
        await tab.locator("#job-marks button").first.focus()
        await tab.keyboard.press("Enter")
        assert await tab.locator("#job-decision").is_visible()
        await tab.locator('tr[data-key="default.clicks"] button').focus()
        await tab.keyboard.press("Enter")
        await until(tab, "document.getElementById('job-name').textContent === 'Timeline of clicks'")
        await tab.locator('#node-map [tabindex="0"]').focus()
        await tab.keyboard.press("ArrowRight")
        assert (await tab.locator("#node-readout").inner_text()).startswith(
            "node-2: 4 cores; jobs "
        )
        await tab.locator("#filter").fill("housing")
        await until(
            tab, "document.querySelectorAll('#job-table tbody tr:not([hidden])').length === 1"
        )


async def test_a_proposed_job_gets_the_answer_of_a_dry_run(look: Look, pictures: Path) -> None:
    async with served(still()) as page:
        tab = await opened(look, page.url)
        await until(tab, "document.getElementById('proposal').value !== ''")
        await tab.locator("#what-if-form button").click()
        await until(
            tab, "document.getElementById('what-if-answer').textContent.includes('proposal would')"
        )
        await tab.locator("#what-if").screenshot(path=pictures / "page-what-if.png")


async def test_a_thousand_nodes_are_small_tiles_and_two_hundred_jobs_a_table_that_scrolls(
    look: Look, pictures: Path
) -> None:
    now = time.time()
    board = initial_board()
    messages = [
        holding(f"n{number}", pods=number % 9, job=f"job{number % 200}") for number in range(1000)
    ]
    asked = [accepted(request(f"job{number}"), uid=number + 1) for number in range(200)]
    for number, message in enumerate([*asked, *messages], start=1):
        stream = "weir-orders" if number <= 200 else "weir-facts"
        board = apply(board, LogEntry(now - 60 + number / 20, stream, number, message))
    async with served(Still(board)) as page:
        tab = await look(page.url, theme="dark")
        await until(tab, "document.querySelectorAll('.node').length === 1000")
        await until(tab, "document.querySelectorAll('#job-table tbody tr').length === 200")
        await tab.wait_for_selector(DRAWN)
        await tab.screenshot(path=pictures / "page-many.png", full_page=True)
        assert await tab.evaluate(OVERLAPS) == [] and await tab.evaluate(BEYOND) <= 0


@pytest.mark.usefixtures("brief_heartbeat")
async def test_a_bus_outage_is_shown_and_ends_without_a_reload(
    nats_server: NatsServer, look: Look, pictures: Path
) -> None:
    speaker, own = (
        await connected(nats_server.url, "test"),
        await connected(nats_server.url, "page"),
    )
    watch = Watch(own)
    running = asyncio.ensure_future(watch.run())
    for message in (holding(), request(), accepted(), decided()):
        await speaker.publish(message)
    async with served(watch) as page:
        tab = await look(page.url)
        await tab.wait_for_selector('#status[data-state="live"]')
        await tab.wait_for_selector('tr[data-key="default.mnist"]')
        for message in (resumed(1), progress(100)):
            await speaker.publish(message)
        await until(tab, "document.body.textContent.includes('100 of 1,000 examples')")
        await nats_server.kill()
        await tab.wait_for_selector('#status[data-state="cut"]')
        await tab.screenshot(path=pictures / "page-cut.png")
        await nats_server.start()
        await speaker.publish(progress(200))
        await tab.wait_for_selector('#status[data-state="live"]')
        await until(tab, "document.body.textContent.includes('200 of 1,000 examples')")
    await cancel_tasks(running)
    await own.close()
    await speaker.close()


async def test_the_browser_reconnects_to_a_restarted_page_service(look: Look) -> None:
    async with served(still()) as page:
        port = int(page.url.rsplit(":", 1)[1].rstrip("/"))
        tab = await opened(look, page.url)
    await tab.wait_for_selector('#status[data-state="lost"]')
    async with served(still(), port):
        await tab.wait_for_selector('#status[data-state="live"]')
