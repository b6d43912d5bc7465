"""The resources that a pod uses: CPU seconds and memory of all its processes, and their wait for
CPU.

A thread that is ready and does not run waits: its control group has used up its quota, or other
processes occupy the cores. So waiting time distinguishes a task that lacks CPU from one that has
little to do, whatever the reason.

Pods report samples to their chief over plain NATS, because only the newest value matters.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import structlog
from nats.aio.msg import Msg

from services.trainer.protocol import MemoryHeadroom
from services.trainer.settings import Settings
from shared.auth.permissions import USAGE
from shared.bus.bus import Bus
from shared.messages import GIB, ClusterSpecPublished, TaskUsage, task_name

NO_LIMIT = 1 << 60  # bytes; a version 1 group without a limit has the maximum
GROUPS, MINE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
SAMPLES = msgspec.json.Decoder(TaskUsage)
Thread = tuple[int, int]
"""Process and thread number."""
logger = structlog.get_logger()


def decode_sample(body: bytes) -> TaskUsage | None:
    """Return another pod's usage; None if the bytes are no sample: anyone may send to that
    subject.
    """
    try:
        return SAMPLES.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class ThreadTimes(msgspec.Struct, frozen=True):
    """Seconds that a thread has spent since it started: on a core, and ready without one."""

    used: float
    waited: float


NO_TIME = ThreadTimes(0.0, 0.0)


class ProcessMemory(NamedTuple):
    """The memory of a process. `proportional_gib`: a page that n processes use counts as 1/n;
    `own_gib`: the pages that no other process uses.
    """

    proportional_gib: float
    own_gib: float


Memory = Mapping[int, ProcessMemory]
"""The memory of each process, by its number. The kernel walks through all pages of a process to
compute it, which takes more than 10 ms of CPU for a process with TensorFlow: do so once a sample.
"""


class UsageSample(msgspec.Struct, frozen=True):
    """The usage of a pod between two samples, and the memory of its processes now.

    `cpu`: mean cores. `waited`: mean number of threads that were ready without a core. `busy`: the
    share of time in which its busiest thread ran or was ready.
    """

    cpu: float
    waited: float
    busy: float
    memory: Memory


class UsageMeter:
    """Measure the usage of this process and its children from sample to sample."""

    def __init__(self) -> None:
        here = pod_processes()
        self._before = cpu_seconds(here), thread_times(here)

    def sample(self, elapsed_s: float) -> UsageSample:
        here = pod_processes()
        (used_s, before), (now_s, now) = self._before, (cpu_seconds(here), thread_times(here))
        self._before = now_s, now
        waited_s, busiest_s = 0.0, 0.0
        for spent, old in _paired_times(now, before):
            thread_waited_s = spent.waited - old.waited
            waited_s += thread_waited_s
            busiest_s = max(busiest_s, spent.used - old.used + thread_waited_s)
        elapsed_s = max(elapsed_s, 1e-6)
        return UsageSample(
            cpu=max(now_s - used_s, 0.0) / elapsed_s,
            waited=waited_s / elapsed_s,
            busy=min(1.0, busiest_s / elapsed_s),
            memory=memory_by_process(here),
        )


def pod_processes() -> list[psutil.Process]:
    """Return this process and all its descendants. It walks through all processes of the
    machine.
    """
    root = psutil.Process()
    return [root, *root.children(recursive=True)]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return CPU seconds, including those of threads that have ended."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def thread_times(processes: Iterable[psutil.Process]) -> dict[Thread, ThreadTimes]:
    found = dict[Thread, ThreadTimes]()
    for process in processes:
        found |= process_thread_times(process.pid)
    return found


def memory_by_process(processes: Iterable[psutil.Process]) -> dict[int, ProcessMemory]:
    found = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_full_info()
            found[process.pid] = ProcessMemory(memory.pss / GIB, memory.uss / GIB)
    return found


def used_gib(memory: Memory) -> float:
    """Return the memory of these processes together; shared pages count once."""
    return sum(each.proportional_gib for each in memory.values())


def _paired_times(
    now: dict[Thread, ThreadTimes], before: dict[Thread, ThreadTimes]
) -> Iterator[tuple[ThreadTimes, ThreadTimes]]:
    """Yield each thread's times now and at the last sample. A reused thread number starts from
    zero.
    """
    for thread, spent in now.items():
        old = before.get(thread, NO_TIME)
        yield spent, old if old.used <= spent.used and old.waited <= spent.waited else NO_TIME


def process_thread_times(pid: int) -> dict[Thread, ThreadTimes]:
    """Return the times of each thread of a process from the kernel's `schedstat` (nanoseconds).

    Return nothing for a process that is gone, or on a kernel without these files.
    """
    found = {}
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):
            used, waited, *_ = map(int, thread.read_text().split())
            found[pid, int(thread.parent.name)] = ThreadTimes(used / 1e9, waited / 1e9)
    return found


def spare_gib(limit_gib: float, memory: Memory, children: Sequence[int]) -> float | None:
    """Return the GiB left in the pod beside a second child as large as the running one; 0 if
    unknown; None without a limit. `children`: processes, the running one first.

    A child that is being prepared uses some of that memory already. If a second child does not fit,
    none will start beside the running one, and all memory that is not in use is left.
    """
    if not limit_gib:
        return None
    if not children or children[0] not in memory:
        return 0.0
    running, *later = children
    taken = sum([memory[pid].own_gib for pid in later if pid in memory])
    growth = max(memory[running].own_gib - taken, 0.0)
    left = limit_gib - used_gib(memory)
    return left - growth if later or left >= growth else left


def memory_limit_gib(set_gib: float, groups: Path = GROUPS, mine: Path = MINE) -> float:
    """Return the current memory limit of this process' control group, which may have been changed
    in place; else the configured one.

    The group is looked up by its path and, in a container that sees only its own group, at the top.
    """
    for path in (
        *_memory_limit_files(groups, mine),
        groups / "memory.max",
        groups / "memory" / "memory.limit_in_bytes",
    ):
        with contextlib.suppress(OSError, ValueError):  # missing file, or `max`
            limit = int(path.read_text())
            return limit / GIB if limit < NO_LIMIT else set_gib
    return set_gib


def _memory_limit_files(groups: Path, mine: Path) -> Iterator[Path]:
    """Yield the limit files of this process' groups. A line is `<number>:<controllers>:<path>`;
    version 2 has one line without controllers.
    """
    with contextlib.suppress(OSError):
        for line in mine.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield groups / path.lstrip("/") / "memory.max"
            elif "memory" in controllers.split(","):
                yield groups / "memory" / path.lstrip("/") / "memory.limit_in_bytes"


def memory_shortage(limit_gib: float, child: int | None) -> str | None:
    """Return why a second child as large as this one does not fit into the pod; None if it fits, or
    if no limit is known.
    """
    if not limit_gib or child is None:
        return None
    memory = memory_by_process(pod_processes())
    if child not in memory:
        return None
    used, own = used_gib(memory), memory[child].own_gib
    if used + own <= limit_gib:
        return None
    return (
        f"{used:.2f} GiB are in use and a second child takes {own:.2f} GiB more than the limit of "
        f"{limit_gib:g}"
    )


class UsageReporter:
    """Every pod reports its usage; a chief also subscribes to the reports. `usage`: the newest of
    each task, by name. `children`: returns the processes of the generations in this pod, the
    running one first.
    """

    def __init__(
        self, bus: Bus, settings: Settings, children: Callable[[], Sequence[int]] = tuple
    ) -> None:
        self.bus = bus
        self.settings = settings
        self.children = children
        self.subject = f"{USAGE}.{settings.namespace}.{settings.job}.{settings.uid}"
        self.usage: dict[str, TaskUsage] = {}
        self.warned = False

    async def report_usage(self) -> None:
        use, name = UsageMeter(), task_name(self.settings.role, self.settings.serial)
        while True:
            await asyncio.sleep(self.settings.usage_s)
            look = await asyncio.to_thread(use.sample, self.settings.usage_s)
            limit_gib = await asyncio.to_thread(memory_limit_gib, self.settings.memory_gib)
            sample = TaskUsage(
                task=name,
                cpu=round(look.cpu, 3),
                waited=round(look.waited, 3),
                busy=round(look.busy, 3),
                memory_gib=round(used_gib(look.memory), 3),
                spare_gib=spare_gib(limit_gib, look.memory, self.children()),
            )
            if self.bus.client.is_connected:  # an old sample is useless later
                await self.bus.client.publish(self.subject, msgspec.json.encode(sample))

    async def subscribe(self) -> None:
        await self.bus.client.subscribe(self.subject, cb=self.on_usage)

    def usage_of(self, spec: ClusterSpecPublished) -> tuple[TaskUsage, ...]:
        """Return the usage of a generation's tasks; the last report of a task that is gone does not
        count.
        """
        names = {task.pod.removeprefix(f"{spec.job}-") for task in spec.tasks}
        return tuple(sample for name, sample in self.usage.items() if name in names)

    async def on_usage(self, raw: Msg) -> None:
        """Accept plain messages only. A server's answers, which a client may redirect here, have
        headers or other subjects.
        """
        plain = raw.subject == self.subject and not raw.headers
        sample = decode_sample(raw.data) if plain else None
        if sample is not None:
            self.usage[sample.task] = sample
        elif not self.warned:
            self.warned = True
            logger.warning(
                "OddUsage", subject=raw.subject, body=raw.data[:200].decode("utf-8", "replace")
            )


def memory_headroom(
    spec: ClusterSpecPublished, usage: Mapping[str, TaskUsage]
) -> MemoryHeadroom | None:
    """Return the memory that the fullest ps of a generation has left beside a second child.

    Return None while a ps has not reported its usage yet.
    """
    names = [task_in_job(task.pod) for task in spec.tasks if task.role == "ps"]
    if any(name not in usage for name in names):
        return None
    spare = [usage[name].spare_gib for name in names]
    limited = [gib for gib in spare if gib is not None]
    return MemoryHeadroom(gib=min(limited, default=None))


def task_in_job(pod: str) -> str:
    """Return the name of a pod `<job>-<role>-<serial>` without the job."""
    return "-".join(pod.split("-")[-2:])
