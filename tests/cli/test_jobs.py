"""Tests of `weir jobs`, which shows the jobs from the allocator's bucket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from services.allocator.job_views import JobView
from services.console.bus_reader import Views, follow_views, views_with_starts
from services.console.top.job_tables import HEADINGS
from shared.bus.bus import Bus
from shared.bus.subjects import JOBS
from shared.messages import JobAccepted
from tests.allocator.builders import UID
from tests.cli.conftest import Prompt
from tests.console.board.builders import decided
from tests.console.board.test_job_history import CHIEF, runs
from tests.shared.sample_messages import request


async def shown(bus: Bus, job: str, namespace: str = "default", **fields: Any) -> JobView:
    view = JobView(**{"job": job, "namespace": namespace, "uid": 7, "phase": "Running", **fields})
    await (await bus.bucket(JOBS)).put(f"{namespace}.{job}", msgspec.json.encode(view))
    return view


async def test_jobs_shows_a_row_for_each_job_with_its_complete_epochs(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await bus.publish(JobAccepted(job="digits", uid=7, request=request(epochs=9), accepted_s=1.0))
    await shown(bus, "digits", epoch=2, samples=1, total_samples=4, why="there is no room")

    said = await prompt("jobs", "--nats", nats_url)

    heading, _, row = (line.split() for line in said.out.splitlines())
    assert (row[heading.index("JOB")], row[heading.index("EPOCHS")]) == ("digits", "2/9")
    assert said.out.rstrip().endswith("there is no room")


async def test_no_printed_line_ends_with_blanks(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    await shown(bus, "digits", why="there is no room")
    await shown(bus, "clicks")

    lines = (await prompt("jobs", "--nats", nats_url)).out.splitlines()

    assert len(lines) == 4 and all(line == line.rstrip() for line in lines)


async def test_without_a_terminal_each_job_is_one_line_of_any_length(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    long = " ".join(f"word-{number}" for number in range(300))
    await shown(bus, "d" * 40, why=long)

    heading, _, row = (await prompt("jobs", "--nats", nats_url)).out.splitlines()

    assert tuple(heading.split()) == HEADINGS and row.endswith(f" {long}") and "d" * 40 in row


async def test_jobs_without_any_job_is_no_error(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    said = await prompt("jobs", "--nats", nats_url)

    assert (said.code, said.out) == (0, "") and "there are no jobs" in said.err


async def test_jobs_json_prints_one_object_for_each_job(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    views = [await shown(bus, "clicks"), await shown(bus, "digits")]

    said = await prompt("jobs", "--nats", nats_url, "--json")

    assert [msgspec.json.decode(line, type=JobView) for line in said.out.splitlines()] == views


async def test_jobs_of_a_namespace_shows_only_its_jobs(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await shown(bus, "digits", "red")
    await shown(bus, "clicks")

    said = await prompt("jobs", "--nats", nats_url, "-n", "red", "--json")

    assert [json.loads(line)["job"] for line in said.out.splitlines()] == ["digits"]


async def test_a_starting_job_shows_the_number_of_awaited_pods(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await shown(
        bus, "mnist", uid=UID, phase="Starting", why="generation 1 is in flight: the first size"
    )
    await bus.publish(decided())
    await bus.publish(runs(CHIEF))

    said = await prompt("jobs", "--nats", nats_url)
    as_kept = await prompt("jobs", "--nats", nats_url, "--json")

    assert said.out.rstrip().endswith("waits for 3 pods: 1 of 3 run, 0 ready")
    assert json.loads(as_kept.out)["why"] == "generation 1 is in flight: the first size"


async def test_jobs_watch_shows_each_step_of_a_start(bus: Bus) -> None:
    await shown(bus, "mnist", uid=UID, phase="Starting")
    await bus.publish(decided())
    async with asyncio.timeout(60), aclosing(views_with_starts(bus, None, watch=True)) as changes:
        await bus_tells(changes, "waits for 3 pods: 0 of 3 run, 0 ready")
        await bus.publish(runs(CHIEF))
        await bus_tells(changes, "waits for 3 pods: 1 of 3 run, 0 ready")
        await shown(bus, "mnist", uid=UID, phase="Running", why="grows")
        await bus_tells(changes, "grows")


async def bus_tells(changes: AsyncGenerator[Views, None], why: str) -> None:
    while (await anext(changes))["default.mnist"].why != why:
        pass


async def test_watched_views_change_and_disappear_with_their_jobs(bus: Bus) -> None:
    bucket = await bus.bucket(JOBS)
    async with asyncio.timeout(60), aclosing(follow_views(bus, None)) as changes:
        seen = [set(await anext(changes))]
        await shown(bus, "digits")
        seen.append(set(await anext(changes)))
        await bucket.delete("default.digits")
        seen.append(set(await anext(changes)))

    assert seen == [set(), {"default.digits"}, set()]
