"""Tests of the report in a real browser: both themes, wide and on a phone, no overlapping labels.

Screenshots go to the folder that WEIR_PICTURES names, else to pytest's temporary folder.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from services.console.report.drawing import STYLE
from services.console.report.page import contents, report_page
from tests.console.report.story import Log, begun_at_ten, of_digits, report, shifted, whole

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
FLAGS += ["--disable-component-update", "--disable-sync"]
SIZES = {"wide": (1200, 900), "tablet": (768, 1024), "phone": (390, 844), "small": (320, 568)}
THEMES = ("light", "dark")
LABELS = """
() => [...document.querySelectorAll('svg text, .card, th, td, h1, h2')].map(one => {
  const box = one.getBoundingClientRect();
  const drawn = one.tagName === 'text' ? one.getScreenCTM() : null;
  return {said: one.textContent, text: drawn !== null, left: box.left, right: box.right,
          top: box.top + scrollY, bottom: box.bottom + scrollY,
          letters: drawn ? drawn.a * parseFloat(getComputedStyle(one).fontSize) : 0};
}).filter(one => one.right > one.left)
"""
SCROLLS = """
() => [...document.querySelectorAll('main, main *')]
  .filter(one => one.scrollWidth > one.clientWidth + 1 && ['auto', 'scroll'].includes(getComputedStyle(one).overflowX))
  .map(one => one.className)
"""
LEGIBLE = 10.0
"""Minimum size of a drawing's letters, in pixels."""
SLACK = 1.0
"""Pixels by which two boxes may overlap: a letter's box is larger than the letter."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed here"
    )
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("WEIR_PICTURES") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def written(log: Log) -> str:
    return report_page(contents(log.board, of_digits(log.board), log.passes.seconds, 200.0, ()))


PAGES = {
    "report": written(whole()),
    "report-of-days": written(shifted(whole(), 3_000)),
    "report-begun": written(begun_at_ten().say(30, report(1, 500, 60.0, 1.0))),
}


class Seen(NamedTuple):
    """The rendering of a page in a browser.

    The boxes of texts, the overflow at the right in pixels, the elements that scroll sideways, and
    the requested URLs.
    """

    boxes: list[dict[str, Any]]
    over: int
    scrolls: list[str]
    asked: list[str]


def looked_at(browser: Any, text: str, theme: str, size: str, to: Path) -> Seen:
    width, height = SIZES[size]
    view = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
    asked: list[str] = []
    view.on("request", lambda request: asked.append(request.url))
    view.set_content(text)
    view.screenshot(path=str(to), full_page=True)
    over = view.evaluate(
        "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    seen = Seen(view.evaluate(LABELS), int(over), view.evaluate(SCROLLS), asked)
    view.close()
    return seen


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", PAGES)
def test_the_pictures_are_legible(
    browser: Any, pictures: Path, name: str, theme: str, size: str
) -> None:
    seen = looked_at(browser, PAGES[name], theme, size, pictures / f"{name}-{theme}-{size}.png")
    labels = [box for box in seen.boxes if box["text"]]

    assert len(labels) > 20 and (seen.over, seen.scrolls, seen.asked) == (0, [], [])
    assert [
        one["said"] for one in labels if one["letters"] < LEGIBLE or one["right"] > SIZES[size][0]
    ] == []
    assert [
        (one["said"], other["said"])
        for one, other in combinations(labels, 2)
        if overlap(one, other)
    ] == []


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    beside = one["right"] - SLACK <= other["left"] or other["right"] - SLACK <= one["left"]
    below = one["bottom"] - SLACK <= other["top"] or other["bottom"] - SLACK <= one["top"]
    return not (beside or below)


# ---------------------------------------------------------------- colours


def colours(theme: str) -> dict[str, str]:
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6})", part))
        for part in STYLE.split("@media (prefers-color-scheme")[:2]
    )
    return light if theme == "light" else light | dark


def luminance(colour: str) -> float:
    """Return the relative luminance, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_lines_have_enough_contrast(theme: str) -> None:
    """Text needs a contrast of 4.5, lines need 3.

    Light lines are exempt, since a pattern or a label accompanies them.
    """
    found = colours(theme)

    assert (
        min(contrast(found[ink], found[on]) for ink in ("ink", "soft") for on in ("paper", "card"))
        >= 4.5
    )
    assert min(contrast(found[line], found["paper"]) for line in ("blue", "green", "red")) >= 3.0
