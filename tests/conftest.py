"""Fixtures and options of all tests: a real nats-server and a bus on it, and `--pure`."""

from __future__ import annotations

import asyncio
import gc
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
settings.load_profile("busy")  # the time to create examples depends on the machine, not on the test

failures.RAISE_ALL = True  # a policy that raises makes the test fail
os.environ["WEIR_ALLOCATOR_STRICT"] = "true"  # also in the services that tests start

WITHIN_S, LOOK_S = 60.0, 0.005
"""Timeout and polling interval in s. The timeout is long: a busy machine may stop for seconds."""
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
"""All tests of a module with such a fixture run in one process, which creates it only once."""

GUARD = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    process_guard.restore_sigint()
    config.stash[GUARD] = process_guard.start_guard()


def pytest_collection(session: pytest.Session) -> None:
    """Pause garbage collection: the modules and items of all tests stay until the end. Collecting
    them takes 15 s of CPU instead of 25.
    """
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


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
    """With `--pure`, keep pure tests only. In workers of pytest-xdist, start the longest first."""
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


@pytest.hookimpl(optionalhook=True)  # this hook does not exist with `-p no:xdist`
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Distribute single tests to the processes, and modules with a `MODULE_FIXTURE` as a whole.

    Pure tests are very short, so pytest-xdist distributes them in larger parts.
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
    """Return whether a test, or a fixture that it uses, is a coroutine or an async generator."""
    assert isinstance(item, pytest.Function)
    definitions = item._fixtureinfo.name2fixturedefs.values()
    functions = [item.function, *(each.func for found in definitions for each in found)]
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in functions
    )


class NatsServer:
    """A nats-server with its own folder. It can be killed and restarted at the same address."""

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
        """Stop the server with SIGSTOP: connections stay open, without answers.

        It may be killed before it continues.
        """
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
    """Wait until every thread has stopped. On a busy machine, this may take a moment."""
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
    """Return a bus with its streams and buckets. Retry while the server starts JetStream."""
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
    """Set failures of policies aside, as the service does. For tests that provoke such failures."""
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
    """Shorten the heartbeat, so that a killed server is noticed after 1 s instead of 5 s.

    A consumer reports a lost server after 2.5 heartbeats.
    """
    monkeypatch.setattr(consumer, "HEARTBEAT_S", 0.4)


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    """Yield a connection to a server on which the streams exist."""
    made = await connected(nats_url, "test")
    yield made
    await made.close()


@pytest.fixture
async def person(bus: Bus) -> Bus:
    """Return the same connection. Tests publish with it what a user would publish."""
    return bus
