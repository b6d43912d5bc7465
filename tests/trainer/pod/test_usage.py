"""Tests of the usage of pods: how it is measured, and which samples a chief accepts.

Anyone may publish on that subject, so no message on it may do harm.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from services.trainer.pod.usage import (
    GIB,
    ProcessMemory,
    UsageMeter,
    UsageReporter,
    UsageSample,
    decode_sample,
    memory_by_process,
    memory_limit_gib,
    pod_processes,
    spare_gib,
    used_gib,
)
from services.trainer.settings import Settings
from shared.bus.bus import Bus
from shared.messages import TaskUsage
from tests.trainer.builders import spec

GOOD = TaskUsage(task="ps-0", cpu=0.25, memory_gib=0.5)
BAD = [
    b"",
    b"\xff\xfe",
    b"null",
    b"[1]",
    b"{}",
    b'{"task": "ps-0"}',
    b'{"task": 1, "cpu": "a", "memory_gib": -1}',
]


def test_a_usage_sample_round_trips() -> None:
    assert decode_sample(msgspec.json.encode(GOOD)) == GOOD


@pytest.mark.parametrize("body", [*BAD, b'{"task": "ps-0", "cpu": 1e999, "memory_gib": 0}'])
def test_an_invalid_usage_sample_is_ignored(body: bytes) -> None:
    assert decode_sample(body) is None


VALUES: Any = (
    st.none() | st.text() | st.integers() | st.floats(allow_nan=False) | st.lists(st.integers())
)


@given(
    st.binary()
    | st.dictionaries(st.sampled_from(["task", "cpu", "memory_gib"]), VALUES).map(
        msgspec.json.encode
    )
)
def test_any_decoded_usage_sample_is_possible(body: bytes) -> None:
    sample = decode_sample(body)

    assert sample is None or (sample.cpu >= 0.0 and sample.memory_gib >= 0.0)


def test_a_process_without_a_core_is_measured_as_waiting() -> None:
    use = UsageMeter()
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        looks = (look(use, 0.2) for _ in range(100))
        seen = next(seen for seen in looks if seen.waited > 0.1)
    finally:
        for one in busy:
            one.kill()
            one.wait()

    assert seen.cpu > 0.1 and seen.waited > 0.1 and 0.1 < seen.busy <= 1.0


BUSY_FOR_A_QUARTER = """
import time
while True:
    began = time.monotonic()
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    time.sleep(3 * (time.monotonic() - began))
    print(flush=True)
"""


def test_a_mostly_sleeping_process_is_partly_busy() -> None:
    """The process sleeps three times as long as it works, however busy the machine is."""
    command = [sys.executable, "-c", BUSY_FOR_A_QUARTER]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as now_and_then:
        try:
            assert now_and_then.stdout
            now_and_then.stdout.readline()
            use, began = UsageMeter(), time.monotonic()
            for _ in range(3):
                now_and_then.stdout.readline()
            seen = use.sample(time.monotonic() - began)
        finally:
            now_and_then.kill()

    assert 0.05 < seen.busy < 0.8


OWN, TOP = "kubepods/pod7", ""
SECOND_VERSION, FIRST_VERSION = (
    "0::/kubepods/pod7\n",
    "5:cpu,cpuacct:/x\n4:memory:/kubepods/pod7\n0::/\n",
)


@pytest.mark.parametrize(
    ("mine", "file", "says", "gib"),
    [
        (SECOND_VERSION, f"{OWN}/memory.max", str(6 * GIB), 6.0),
        ("0::/\n", f"{TOP}memory.max", str(6 * GIB), 6.0),
        (FIRST_VERSION, f"memory/{OWN}/memory.limit_in_bytes", str(6 * GIB), 6.0),
        (FIRST_VERSION, f"memory/{TOP}memory.limit_in_bytes", str(6 * GIB), 6.0),
        (SECOND_VERSION, f"{OWN}/memory.max", "max", 1.5),
        (FIRST_VERSION, f"memory/{OWN}/memory.limit_in_bytes", "9223372036854771712", 1.5),
        (SECOND_VERSION, "elsewhere", "", 1.5),
    ],
)
def test_the_memory_limit_is_that_of_the_cgroup(
    tmp_path: Path, mine: str, file: str, says: str, gib: float
) -> None:
    groups, own = tmp_path / "groups", tmp_path / "own"
    (groups / file).parent.mkdir(parents=True)
    (groups / file).write_text(f"{says}\n")
    own.write_text(mine)

    assert memory_limit_gib(1.5, groups, own) == gib


def test_without_a_cgroup_the_memory_limit_is_the_setting(tmp_path: Path) -> None:
    assert memory_limit_gib(1.5, tmp_path / "none", tmp_path / "nothing") == 1.5


def look(use: UsageMeter, after_s: float) -> UsageSample:
    began = time.monotonic()
    time.sleep(after_s)
    return use.sample(time.monotonic() - began)


MEMORY = {1: ProcessMemory(0.5, 0.25), 2: ProcessMemory(3.0, 2.5)}


def test_spare_memory_leaves_room_for_a_second_child() -> None:
    assert spare_gib(8.0, MEMORY, [2]) == 8.0 - 3.5 - 2.5


def test_memory_that_a_second_child_has_taken_counts_once() -> None:
    memory = {**MEMORY, 3: ProcessMemory(2.0, 1.5), 4: ProcessMemory(3.5, 3.0)}

    assert spare_gib(12.0, memory, [2, 3]) == 12.0 - 9.0 - 1.0
    assert spare_gib(12.0, memory, [2, 4]) == 12.0 - 9.0
    assert spare_gib(9.5, memory, [2, 3]) == 9.5 - 9.0 - 1.0, "it still grows"


def test_all_memory_is_spare_where_no_second_child_can_start() -> None:
    assert spare_gib(5.0, MEMORY, [2]) == 5.0 - 3.5


def test_without_a_limit_spare_memory_is_unknown() -> None:
    assert spare_gib(0.0, MEMORY, [2]) is None


@pytest.mark.parametrize("children", [[], [1 << 30]], ids=["no-child", "one-that-has-gone"])
def test_unreadable_usage_counts_as_no_spare_memory(children: list[int]) -> None:
    assert spare_gib(8.0, MEMORY, children) == 0.0


def test_memory_is_that_of_this_process_and_its_children() -> None:
    command = [sys.executable, "-c", "ballast = bytearray(64 << 20); print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        try:
            memory = memory_by_process(pod_processes())
        finally:
            child.kill()

    assert os.getpid() in memory and memory[child.pid].own_gib > 64 / 1024
    assert used_gib(memory) > used_gib({child.pid: memory[child.pid]})


async def test_a_chief_skips_malformed_samples_and_warns_once(
    bus: Bus,
) -> None:
    chief = UsageReporter(
        bus, Settings(job="digits", uid=7, pod="chief-0", pod_uid="u", role="chief", serial=0)
    )
    await chief.subscribe()

    with capture_logs() as logs:
        for body in [*BAD, msgspec.json.encode(GOOD)]:
            await bus.client.publish("weir-usage.default.digits.7", body)
        async with asyncio.timeout(60):
            while not chief.usage:
                await asyncio.sleep(0.01)

    assert chief.usage == {"ps-0": GOOD} and [entry["event"] for entry in logs] == ["OddUsage"]


async def test_a_chief_collects_the_samples_of_its_pods(bus: Bus) -> None:
    about = {"job": "digits", "uid": 7, "pod_uid": "u", "usage_s": 0.05}
    chief = UsageReporter(bus, Settings(**about, pod="chief-0", role="chief", serial=0))
    server = UsageReporter(bus, Settings(**about, pod="digits-ps-3", role="ps", serial=3))
    await chief.subscribe()

    measuring = asyncio.create_task(server.report_usage())
    async with asyncio.timeout(60):
        while not chief.usage:
            await asyncio.sleep(0.01)
    measuring.cancel()

    assert list(chief.usage) == ["ps-3"] and chief.usage["ps-3"].memory_gib > 0.0


async def test_samples_of_removed_tasks_are_not_reported(bus: Bus) -> None:
    chief = UsageReporter(
        bus, Settings(job="digits", uid=7, pod="chief-0", pod_uid="u", role="chief", serial=0)
    )
    chief.usage = {
        name: TaskUsage(task=name, cpu=0.5, memory_gib=0.5) for name in ("ps-1", "ps-3", "worker-2")
    }

    told = chief.usage_of(spec(2, previous=1, pods=["chief-0", "ps-3", "worker-2"]))
    named = chief.usage_of(
        replace(spec(1), tasks=tuple(replace(t, pod=f"digits-{t.role}-3") for t in spec(1).tasks))
    )

    assert [use.task for use in told] == ["ps-3", "worker-2"] and [use.task for use in named] == [
        "ps-3"
    ]
