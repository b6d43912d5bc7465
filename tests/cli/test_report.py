"""Tests of `weir report`: it writes the report of a job from a real server's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.console.report.account import account_job
from services.console.report.drawing import whole as count
from shared.bus.bus import Bus
from tests.cli.conftest import Prompt
from tests.console.report.story import of_digits, whole


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def said(bus: Bus) -> None:
    for told in whole().told:
        await bus.publish(told.message)


async def test_the_report_of_a_job_is_written(
    bus: Bus, nats_url: str, prompt: Prompt, here: Path
) -> None:
    await said(bus)
    done = await prompt("report", "digits", "--nats", nats_url)

    assert (done.code, done.out, done.err) == (0, "digits.html: open it in a browser\n", "")
    text, log = (here / "digits.html").read_text(), whole()
    assert text.startswith("<!doctype html>") and text.endswith("</html>\n")
    assert f"{count(of_digits(log.board).applied)} of 12,000 applied" in text
    assert f"({account_job(log.board, of_digits(log.board)).lost} examples lost)" in text
    assert text.count('id="decision-') == 4


async def test_a_report_can_be_written_to_standard_output(
    bus: Bus, nats_url: str, prompt: Prompt, here: Path
) -> None:
    await said(bus)
    done = await prompt("report", "digits", "--nats", nats_url, "-o", "-")

    assert (
        done.code == 0 and done.out.startswith("<!doctype html>") and not list(here.glob("*.html"))
    )


async def test_the_report_of_an_unknown_job_is_an_error(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    done = await prompt("report", "nothing", "--nats", nats_url)

    assert (
        done.code == 1
        and "the log has no accepted job default/nothing; `weir jobs` lists all jobs" in done.err
    )


async def test_an_unwritable_report_has_a_remedy(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    await said(bus)
    done = await prompt("report", "digits", "--nats", nats_url, "-o", "nowhere/digits.html")

    assert (
        done.code == 2
        and "cannot write nowhere/digits.html: No such file or directory; choose another"
        in done.err
    )
