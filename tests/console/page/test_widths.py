"""Tests of the page at widths from a phone's to a large screen's: the table of jobs is complete.

Screenshots go to the folder that WEIR_PICTURES names.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from services.console.board.board import Board, apply, with_reason
from services.whatif.event_log import LogEntry
from tests.allocator.builders import accepted, request
from tests.console.page import scene
from tests.console.page.conftest import Look, Still, served

WAITS = (
    "no node is large enough for a worker of 100 cpu and 1 GiB: the largest has 0.5 cpu and 4 GiB"
)
WIDTHS = (780, 900, 1024, 1200, 1280, 1440, 1520)
PHASES: tuple[Any, ...] = ("Starting", "Succeeded", "Failed", "Cancelled")
LINES_MOST, LINE_PX, WHY_LEAST_PX = 4, 22, 200
CROWDED = """() => [...document.querySelectorAll('#jobs .scroll, #job-table :is(th, td)')]
  .filter((e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).position !== 'absolute')
  .map((e) => e.textContent)"""
ROWS = (
    "() => [...document.querySelectorAll('#job-table tbody tr')].map((row) =>"
    " row.getBoundingClientRect().height)"
)
HIDDEN = (
    "() => { const box = document.querySelector('#jobs .scroll'); return box.scrollHeight -"
    " box.clientHeight; }"
)
WHY = """() => document.querySelector('tr[data-key="default.big"] .why-cell').getBoundingClientRect().width"""
COLUMNS = """() => {
  const rights = (cells) => [...cells].slice(0, 11).map((cell) => Math.round(cell.getBoundingClientRect().right));
  const table = document.getElementById('job-table');
  return [...table.tBodies[0].rows].map((row) => [rights(table.tHead.rows[0].cells), rights(row.cells)]);
}"""
MARKS = """() => Object.fromEntries([...document.querySelectorAll('#job-table .phase')].map((e) => {
  const style = getComputedStyle(e, '::before');
  const empty = style.backgroundColor === 'rgba(0, 0, 0, 0)';
  const shape = [style.content, style.borderRadius, style.borderTopWidth, style.transform, empty];
  return [e.textContent, shape.join(' ')];
}))"""
TILES = """() => Object.values(Object.groupBy(document.querySelectorAll('.tile'), (e) => e.getBoundingClientRect().top))
  .map((line) => line.length)"""


def waiting() -> Board:
    """Return the board of the scene with one more job, which fits no node."""
    now = time.time()
    board = scene.board(now)
    asked = accepted(request("big", epochs=20), uid=60)
    told = LogEntry(
        now - 30,
        "weir-orders",
        board.sequences["weir-orders"] + 1,
        replace(asked, accepted_s=now - 30),
    )
    return with_reason(apply(board, told), "default.big", WAITS)


@pytest.mark.parametrize("width", WIDTHS)
async def test_every_job_column_is_complete_and_no_row_is_tall(
    look: Look, pictures: Path, width: int
) -> None:
    board = waiting()
    shown = {story.view.phase for story in board.jobs.values()}
    assert {"Pending", "Running", "Succeeded"} <= shown and board.jobs[
        "default.big"
    ].view.why == WAITS
    async with served(Still(board)) as page:
        tab = await look(
            page.url, size={"width": width, "height": 900}, fragment="#job=default.digits"
        )
        await tab.wait_for_selector("#job-plot svg .unit")
        await tab.screenshot(path=pictures / f"page-{width}.png", full_page=True)

        assert await tab.evaluate(CROWDED) == [], (
            "nothing is cut, and the table is no wider than its box"
        )
        assert await tab.evaluate(HIDDEN) <= 0, "five jobs need no scrolling"
        assert max(await tab.evaluate(ROWS)) <= LINES_MOST * LINE_PX
        assert await tab.evaluate(WHY) >= WHY_LEAST_PX
        assert all(headings == cells for headings, cells in await tab.evaluate(COLUMNS))
        assert len(set(await tab.evaluate(TILES))) == 1, "as many tiles on each line"


async def test_each_phase_has_its_own_shape(look: Look, pictures: Path) -> None:
    board = waiting()
    story = board.jobs["default.big"]
    for uid, phase in enumerate(PHASES, start=70):
        asked, view = request(phase.lower()), replace(story.view, job=phase.lower(), phase=phase)
        one = replace(story, uid=uid, request=asked, view=view)
        board = replace(board, jobs=board.jobs | {one.key: one})
    async with served(Still(board)) as page:
        tab = await look(page.url)
        await tab.wait_for_selector('tr[data-key="default.failed"]')
        await tab.locator("#jobs").screenshot(path=pictures / "page-phases.png")
        marks = await tab.evaluate(MARKS)
    assert set(marks) == {"Pending", "Running", *PHASES} and len(set(marks.values())) == len(marks)
