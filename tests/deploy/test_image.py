"""Tests of both images: built by the Dockerfile's steps, and run without any other packages."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from services.local.cluster_spec import NodeSpec
from services.local.service import Cluster, local_cluster
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import CapacityChanged, JobRejected, Message, TaskReady
from tests.deploy.dockerfile import Builder, Stage, steps
from tests.process_guard import run_mark

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy/Dockerfile"
CONTROL_PLANE_BYTES = 200e6
MEMORY, ROOM_BYTES = Path("/dev/shm"), 6e9
WITHIN_S = 180.0
EVERYTHING = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, name + "."):
        if not found.name.endswith("__main__") and ".tests" not in found.name:
            importlib.import_module(found.name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    """Yield a builder with a temporary folder.

    The folder is in memory if there is room: the trainer's packages are 2 GB.
    """
    with tempfile.TemporaryDirectory(dir=MEMORY if roomy(MEMORY) else None) as folder:
        yield Builder(DOCKERFILE, ROOT, Path(folder))


@pytest.fixture(scope="module")
def control_plane(builder: Builder) -> Stage:
    return builder.build("control-plane")


def roomy(folder: Path) -> bool:
    return folder.is_dir() and shutil.disk_usage(folder).free > ROOM_BYTES


def command(image: Stage, *words: str) -> tuple[list[str], dict[str, str]]:
    """Return a command of the image's Python without site packages (-S), and its environment."""
    paths = os.pathsep.join(
        str(image.here(path)) for path in image.environ["PYTHONPATH"].split(":")
    )
    home = {"HOME": str(image.here()), "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return [sys.executable, "-S", *words], {
        **image.environ,
        **home,
        **run_mark(),
        "PATH": os.environ["PATH"],
    }


def imported(image: Stage, *packages: str) -> set[str]:
    """Import every module of the packages; return the top-level packages that were loaded."""
    words, environ = command(image, "-c", EVERYTHING, *packages)
    done = subprocess.run(
        words, env=environ, cwd=image.here(), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return set(done.stdout.split())


@asynccontextmanager
async def running(image: Stage, log: Path, *words: str, **settings: str) -> AsyncIterator[Path]:
    """Run the command that a pod would run; yield its log."""
    line, environ = command(image, "-m", *words)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *line, env={**environ, **settings}, cwd=image.here(), stdout=output, stderr=output
        )
    try:
        yield log
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), WITHIN_S)


async def first(bus: Bus, kind: type[Message]) -> Message:
    heard: asyncio.Queue[Message] = asyncio.Queue()

    async def on_heard(fact: StoredMessage) -> None:
        heard.put_nowait(fact.message)

    await bus.follow([kind], on_heard, {})
    return await asyncio.wait_for(heard.get(), WITHIN_S)


# ---------------------------------------------------------------- the Dockerfile


def test_each_requirements_list_matches_its_extra() -> None:
    """A list has the packages of the project's extra and all their dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for target in ("control-plane", "trainer"):
        asked = [*project["dependencies"], *project["optional-dependencies"][target]]
        assert set((ROOT / f"deploy/image/{target}.txt").read_text().split()) == closure(asked)


def closure(asked: list[str]) -> set[str]:
    found, todo = set[str](), [Requirement(line) for line in asked]
    while todo:
        name = re.sub("[-_.]+", "-", todo.pop().name).lower()
        more = [Requirement(line) for line in requires(name) or ()] if name not in found else []
        found.add(name)
        todo += [one for one in more if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def test_base_images_are_pinned_by_version(builder: Builder, control_plane: Stage) -> None:
    assert len(builder.images) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", builder.images.pop())


def test_the_python_of_the_images_is_allowed_and_tested(
    builder: Builder,
) -> None:
    minor = re.search(r"python:(3\.\d+)\.", dict(steps(DOCKERFILE.read_text()))["ARG"])
    assert minor and minor[1] == "{}.{}".format(*sys.version_info)


# ---------------------------------------------------------------- the control plane


def test_the_control_plane_image_has_every_import_and_no_tensorflow(control_plane: Stage) -> None:
    parts = (f"services.{name}" for name in ("monitor", "allocator", "launcher", "setup", "cli"))
    taken = imported(control_plane, "shared", *parts)

    assert {"kubernetes", "nats", "numpy", "rich"} <= taken
    assert taken & {"tensorflow", "keras"} == set()
    assert not (control_plane.here("packages") / "tensorflow").exists()


def test_the_control_plane_image_is_small(control_plane: Stage) -> None:
    """Sizes are counted in whole blocks, as `du` does."""
    files = [path.stat() for path in control_plane.here().rglob("*")]

    assert sum(512 * one.st_blocks for one in files) <= CONTROL_PLANE_BYTES


def test_both_images_run_as_an_unprivileged_user(control_plane: Stage) -> None:
    users = [rest for word, rest in steps(DOCKERFILE.read_text()) if word == "USER"]

    assert control_plane.user == "65532:65532" and users == ["65532:65532"]


async def test_the_services_start_from_the_image(
    control_plane: Stage, nats_url: str, bus: Bus, cluster: Cluster, tmp_path: Path
) -> None:
    told = {
        "WEIR_NATS_URL": nats_url,
        "WEIR_MONITOR_KUBE_URL": cluster.url,
        "WEIR_LAUNCHER_KUBE_URL": cluster.url,
    }
    async with (
        running(control_plane, tmp_path / "monitor", "services.monitor", **told),
        running(control_plane, tmp_path / "allocator", "services.allocator", **told),
        running(control_plane, tmp_path / "launcher", "services.launcher", **told) as log,
    ):
        capacity = await first(bus, CapacityChanged)
        await bus.js.publish("weir.job.requested.default.nothing", b"{}")
        answer = await first(bus, JobRejected)
        async with asyncio.timeout(WITHIN_S):
            while "Awake" not in log.read_text():
                await asyncio.sleep(0.05)
    assert isinstance(capacity, CapacityChanged) and capacity.node == "node"
    assert isinstance(answer, JobRejected)


async def test_the_setup_job_of_the_image_creates_the_streams(
    control_plane: Stage, nats_url: str, tmp_path: Path
) -> None:
    async with running(
        control_plane, tmp_path / "setup", "services.setup", WEIR_NATS_URL=nats_url
    ) as log:
        async with asyncio.timeout(WITHIN_S):
            while "StreamsMade" not in log.read_text():
                await asyncio.sleep(0.05)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with local_cluster(
        [NodeSpec(name="node", cpu=4, memory_gib=8)], tmp_path / "cluster"
    ) as made:
        yield made


# ---------------------------------------------------------------- the trainer


@pytest.mark.long  # it installs the image's packages: 2 GB
async def test_a_task_of_the_trainer_image_becomes_ready(
    builder: Builder, nats_url: str, bus: Bus, tmp_path: Path
) -> None:
    image = builder.build("trainer")
    task = {
        "JOB": "digits",
        "UID": "1",
        "POD": "digits-ps-0",
        "POD_UID": "u",
        "ROLE": "ps",
        "SERIAL": "0",
    }
    where = {"PORTS": "0,0", "CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    settings = {f"WEIR_TRAINER_{name}": value for name, value in {**task, **where}.items()}

    taken = imported(image, "services.trainer", "sklearn.datasets")
    assert {"tensorflow", "keras", "nats"} <= taken and "kubernetes" not in taken
    assert image.command == ("python", "-m", "services.trainer")
    async with running(
        image, tmp_path / "log", "services.trainer", WEIR_NATS_URL=nats_url, **settings
    ):
        ready = await first(bus, TaskReady)
    assert isinstance(ready, TaskReady) and ready.pod == "digits-ps-0"
