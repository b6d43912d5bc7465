"""Fixtures: a real browser, and the page of a fixed board or of a bus."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.console.board.board import Board
from services.console.page.service import Page, Settings
from services.console.page.watch import Watch

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WITHIN_MS = 60_000.0
WIDE, PHONE = {"width": 1360, "height": 900}, {"width": 390, "height": 844}
PICTURES = "WEIR_PICTURES"
"""Environment variable: the folder for screenshots (default: pytest's temporary folder)."""


class Still:
    """A fake `Watch` that shows a given board."""

    def __init__(self, board: Board) -> None:
        self.board, self.cut_s, self.caught_up, self.changed = board, None, True, asyncio.Event()

    def show(self, board: Board) -> None:
        self.board = board
        self.changed.set()
        self.changed = asyncio.Event()


@asynccontextmanager
async def served(watch: Still | Watch, port: int = 0) -> AsyncIterator[Page]:
    page = Page(watch, Settings(port=port))  # type: ignore[arg-type]
    runner = await page.open()
    try:
        yield page
    finally:
        await runner.cleanup()


async def until(tab: Any, met: str, within_s: float = WITHIN_MS / 1000) -> None:
    """Wait until a script returns a true value, at most `within_s` seconds.

    The browser driver's own wait runs text as code, which the page forbids.
    """
    async with asyncio.timeout(within_s):
        while not await tab.evaluate(met):
            await asyncio.sleep(0.05)


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: `make browser` installs Debian's")
    api = pytest.importorskip("playwright.async_api")
    async with api.async_playwright() as playwright:
        made = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=FLAGS, timeout=2 * WITHIN_MS
        )
        yield made
        await made.close()


Look = Callable[..., Awaitable[Any]]


@pytest.fixture
async def look(browser: Any) -> AsyncIterator[Look]:
    """Return a function that opens a page in a window.

    At teardown there must be no script errors, and no requests to other hosts.
    """
    troubles: list[str] = []
    asked: set[str] = set()

    async def opened(
        url: str, size: dict[str, int] = WIDE, theme: str = "light", fragment: str = ""
    ) -> Any:
        context = await browser.new_context(
            viewport=size, color_scheme=theme, reduced_motion="reduce"
        )
        tab = await context.new_page()
        tab.set_default_timeout(WITHIN_MS)
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on(
            "console",
            lambda said: (
                troubles.append(said.text)
                if said.type == "error" and "ERR_" not in said.text
                else None
            ),
        )
        tab.on("request", lambda request: asked.add(request.url.split("/")[2]))
        await tab.goto(url + fragment)
        return tab

    yield opened
    assert troubles == []
    assert {host.partition(":")[0] for host in asked} <= {"127.0.0.1"}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get(PICTURES) or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
