"""What every test may ask for: a real nats-server, and a bus on it."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from nats.errors import Error as NatsError
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling, Scheduling

from services.allocator import failures
from shared.bus import bus as wire
from shared.bus import consumer
from shared.bus.bus import Bus
from shared.runtime.process import free_port
from tests import process_guard, pure
from tests.programs import program_path

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # how fast examples are made is the machine's affair, not the test's

failures.RAISE_ALL = True  # a policy that fails fails the test
os.environ["WEIR_ALLOCATOR_STRICT"] = "true"  # in the services that tests start, too

WITHIN_S, LOOK_S = 60.0, 0.005
"""Of whatever a test waits for: a machine that is busy, and now and then stands still for seconds,
is not at fault.
"""
LONGEST = (
    "tests/versions/test_upgrade.py",
    "tests/flow/",
    "tests/trainer/worker/test_steps_as_in_one_process.py",
    "tests/deploy/test_image.py",
    "tests/trainer/worker/test_training.py",
    "tests/trainer/",
    "tests/local/",
)
MODULE_FIXTURE = re.compile(r"fixture\(scope=.module")
"""One process runs all tests of a module that has one: each process would make its own."""

GUARD = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    process_guard.restore_sigint()
    config.stash[GUARD] = process_guard.start_guard()


def pytest_unconfigure(config: pytest.Config) -> None:
    process_guard.end_guard(config.stash[GUARD])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pure", action="store_true", help="run pure tests only (tests/pure.py)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--pure`, do not even import a module that is not pure."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if is_test and config.getoption("pure") and not pure.is_pure(collection_path):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep pure tests with `--pure`. Start the longest first where tests run side by side."""
    if config.getoption("pure"):
        waiting = [item for item in items if _awaits(item)]
        items[:] = [item for item in items if not _awaits(item)]
        config.hook.pytest_deselected(items=waiting)
    if hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: next(
                (n for n, part in enumerate(LONGEST) if part in item.nodeid), len(LONGEST)
            )
        )


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist` knows no such hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Give each process one test at a time, and modules with a `MODULE_FIXTURE` as a whole. Pure
    tests are so short that they are given in larger parts.
    """
    if config.getoption("pure"):
        return None
    config.option.loadscopereorder = False
    return _ByFixture(config, log)


class _ByFixture(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.split("::")[0]
        return module if module in self._with_module_fixture else nodeid

    @cached_property
    def _with_module_fixture(self) -> set[str]:
        return {
            path.relative_to(self.config.rootpath).as_posix()
            for path in Path(__file__).parent.rglob("test_*.py")
            if MODULE_FIXTURE.search(path.read_text())
        }


def _awaits(item: pytest.Item) -> bool:
    """Return whether a test, or a fixture that it uses, is a coroutine."""
    assert isinstance(item, pytest.Function)
    definitions = item._fixtureinfo.name2fixturedefs.values()
    functions = [item.function, *(each.func for found in definitions for each in found)]
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in functions
    )


class NatsServer:
    """A nats-server in a folder of its own; killed and started again, it is the same server at the
    same address.
    """

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder, self._port, self._more = folder, free_port(), more
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        where = (
            "-js",
            "-a",
            "127.0.0.1",
            "-p",
            str(self._port),
            "-sd",
            str(self.folder),
            *self._more,
        )
        quiet = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(
            program_path("nats-server"), *where, stdout=quiet, stderr=quiet
        )
        await self._until_it_answers()

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None

    @contextmanager
    def hung(self) -> Iterator[None]:
        """It keeps its connections and answers nothing. It may be killed meanwhile."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        _until_stopped(self._process.pid)
        try:
            yield
        finally:
            if self._process is not None:
                self._process.send_signal(signal.SIGCONT)

    async def _until_it_answers(self) -> None:
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                except OSError:
                    assert self._process and self._process.returncode is None, (
                        "the nats-server has ended"
                    )
                    await asyncio.sleep(0.02)
                    continue
                writer.close()
                return


def _until_stopped(pid: int) -> None:
    """Wait until every thread has stopped: on a busy machine one may run on for a moment after the
    signal.
    """
    threads = Path(f"/proc/{pid}/task")
    for _ in range(int(WITHIN_S / LOOK_S)):
        states = [
            (each / "stat").read_text().rpartition(")")[2].split()[0] for each in threads.iterdir()
        ]
        if all(state == "T" for state in states):
            return
        time.sleep(LOOK_S)
    raise TimeoutError(f"process {pid} does not stop")


async def connected(url: str, name: str) -> Bus:
    """A bus on a server that may still be starting JetStream; its streams and buckets are there."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                made = await wire.connect(url, name)
                await made.create()
                return made
            except (OSError, NatsError):
                await asyncio.sleep(0.05)


@pytest.fixture
def failures_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test that provokes failures of policies: they are set aside, as in the service."""
    monkeypatch.setattr(failures, "RAISE_ALL", False)


@pytest.fixture
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    yield server
    await server.kill()


@pytest.fixture
async def nats_url(nats_server: NatsServer) -> str:
    return nats_server.url


@pytest.fixture
def brief_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was killed is missed after 2.5 heartbeats, whatever they take: here 1 s instead
    of 5.
    """
    monkeypatch.setattr(consumer, "HEARTBEAT_S", 0.4)


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    """A connection that made the streams."""
    made = await connected(nats_url, "test")
    yield made
    await made.close()


@pytest.fixture
async def person(bus: Bus) -> Bus:
    """The same, from which a test speaks as a person does."""
    return bus
