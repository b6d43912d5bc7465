"""Tests of a job that begins with the last checkpoint of a finished one.

They need TensorFlow, because they test what is restored. One test trains a whole job with a
read-only root and one writable folder. It is skipped on machines that do not allow a mount
namespace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.trainer.worker import shard_ledger
from services.trainer.worker.shard_ledger import Ledger, Shard
from tests.architecture.source import ROOT
from tests.conftest import NatsServer, connected
from tests.trainer.fleet import Fleet

EXAMPLES = 250


async def test_a_job_continues_from_a_finished_one_of_the_same_uid_on_a_new_bus(
    tmp_path: Path,
) -> None:
    """The bus was lost, so the uid is used again. The earlier job's folder does not change."""
    earlier = tmp_path / "first" / "checkpoints"
    before = await trained(tmp_path / "first", epochs=2)
    files = contents(earlier)

    after = await trained(tmp_path / "second", epochs=3, continue_from=str(earlier))

    assert before == [2] * EXAMPLES and after == [3] * EXAMPLES
    assert contents(earlier) == files


async def trained(folder: Path, epochs: int, **settings: str) -> list[int]:
    """Train a job to its end on a bus of its own, and return how often each example was applied."""
    server = NatsServer(folder.with_suffix(".nats"))
    await server.start()
    bus = await connected(server.url, "test")
    try:
        async with Fleet(bus, server.url, folder, "counting.py", settings, epochs=epochs) as fleet:
            fleet.pace(0)
            await fleet.generation(1, ps=1, workers=1)
            fleet.pace(0)
            finished = await fleet.finished()
            assert finished.outcome == "succeeded", finished.cause
            assert finished.samples == finished.counted == EXAMPLES * epochs
            counts: list[int] = fleet.counts()["counts"]
            return counts
    finally:
        await bus.close()
        await server.kill()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("ckpt-*") if path.is_file()}


def test_more_epochs_are_appended() -> None:
    done = Ledger(examples=10, epochs=2, todo=())

    more = shard_ledger.extend_epochs(done, 3)

    assert (more.todo, more.total, more.applied) == ((Shard(20, 30),), 30, 20)
    assert shard_ledger.extend_epochs(done, 2).finished


def test_open_examples_of_a_cancelled_job_are_trained_first() -> None:
    left = Ledger(examples=10, epochs=2, todo=(Shard(15, 20),), given=(Shard(10, 15),))

    assert shard_ledger.extend_epochs(left, 3).todo == (Shard(10, 20), Shard(20, 30))


def test_fewer_epochs_than_are_trained_already_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 1"):
        shard_ledger.extend_epochs(Ledger(examples=10, epochs=2, todo=()), 1)


FILE = "tests/trainer/worker/test_training.py"
STORY = f"{FILE}::test_every_example_counts_once_per_epoch_across_resizes"
READ_ONLY = (
    'mount --bind "$1" "$1" && mount -o remount,bind,ro / && shift && ! touch /root-is-writable &&'
    ' exec "$@"'
)
WHOLE_STORY_S = 600


def confined(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that can write only to `folder`, which is HOME and TMPDIR."""
    environment = {
        **os.environ,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        READ_ONLY,
        "sh",
        str(folder),
        *command,
    ]
    return subprocess.run(
        words,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WHOLE_STORY_S,
        check=False,
    )


@pytest.mark.long
def test_a_job_trains_with_a_read_only_root(tmp_path: Path) -> None:
    if confined(tmp_path, "true").returncode != 0:
        pytest.skip("this machine makes no mount namespaces for us")

    told = confined(tmp_path, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", STORY)

    assert told.returncode == 0, told.stdout + told.stderr
