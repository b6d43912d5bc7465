"""Tests that the log of a process has asyncio's messages, and that asyncio writes nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from shared.runtime.log import RateLimitedWarning

FAILS = """
import asyncio, sys
from shared.runtime import log
log.configure_logging(*{words})
async def main():
    report = {{"message": "handshake failed", "exception": OSError("no peer")}}
    asyncio.get_running_loop().call_exception_handler(report)
asyncio.run(main())
"""


def stderr_of(words: str) -> str:
    """Return the standard error of a process in which asyncio reports an error."""
    done = subprocess.run(
        [sys.executable, "-c", FAILS.format(words=words)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stderr


@pytest.mark.parametrize("as_json", [True, None])
def test_asyncio_messages_are_in_the_services_log(as_json: bool | None) -> None:
    (line,) = stderr_of(f'("monitor", "info", {as_json})').splitlines()

    told = json.loads(line)
    assert (told["service"], told["event"], told["level"]) == ("monitor", "AsyncioMessage", "error")
    assert told["said"].startswith("handshake failed") and "no peer" in json.dumps(
        told["exception"]
    )


def test_a_command_on_a_terminal_shows_no_log_lines() -> None:
    assert stderr_of('("cli", "error", None, 50)') == ""


def test_a_warning_is_repeated_only_after_a_while() -> None:
    seconds = iter([100.0, 101.0, 102.0, 129.9, 130.0])
    warning = RateLimitedWarning(every_s=30.0, clock=lambda: next(seconds))
    with capture_logs() as lines:
        for _ in range(5):
            warning.warn_error("Waits", ConnectionError("gone"), stream="s")

    assert [line["event"] for line in lines] == ["Waits", "Waits"]
    assert lines[0]["stream"] == "s" and "gone" in lines[0]["error"]
