"""Tests that this version reads what recorded versions have written.

These are messages, snapshots, the ledger and a checkpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import pytest

from services.allocator.state.state import State, apply
from services.launcher import service as launcher
from services.trainer.pod.fence import Entry
from shared.auth.permissions import ALLOCATOR, LAUNCHER, bucket_subject
from shared.bus import subjects
from shared.bus.subjects import FACTS, LEDGER, ORDERS, STATE
from tests.flow.stage import JOB
from tests.trainer import fleet
from tests.versions.install import NotThere, commit_of, install_version
from tests.versions.records import CHECKPOINT, FIXTURES, LOG, RUNNING, Record, read_log, versions

KEY = f"default.{JOB}"


def folded(records: list[Record]) -> State:
    state = State()
    for record in records:
        if record.stream in (ORDERS, FACTS):
            message = subjects.decode_message(record.subject, record.data)
            state = apply(state, message, record.stream, record.sequence, record.stored_s)
    return state


def last(records: list[Record], subject: str) -> Record:
    return [record for record in records if record.subject == subject][-1]


def test_a_version_is_recorded() -> None:
    assert "0.2.0" in versions()


@pytest.mark.parametrize("version", versions())
def test_the_recorded_log_replays_to_the_recorded_story(version: str) -> None:
    running = folded(read_log(version, RUNNING)).jobs[KEY]
    assert (
        running.progress is not None
        and 0 < running.progress.samples < running.progress.total_samples
    )

    closed = folded(read_log(version, LOG)).closed[KEY]
    assert (
        closed.finished.outcome == "succeeded"
        and closed.finished.counted == closed.finished.samples
    )


@pytest.mark.parametrize("version", versions())
def test_the_recorded_snapshots_and_ledger_are_read(version: str) -> None:
    records = read_log(version, RUNNING)

    allocator = zlib.decompress(last(records, bucket_subject(STATE, ALLOCATOR)).data)
    assert KEY in msgspec.json.decode(allocator, type=State).jobs
    kept = zlib.decompress(last(records, bucket_subject(STATE, LAUNCHER)).data)
    assert msgspec.json.decode(kept, type=launcher.Snapshot).after[ORDERS] > 0
    ledger = msgspec.json.decode(last(records, bucket_subject(LEDGER, KEY)).data, type=Entry)
    assert ledger.paths and ledger.generation > 1


@pytest.mark.parametrize("version", versions())
def test_the_recorded_checkpoint_is_read(version: str) -> None:
    (index,) = (FIXTURES / version / CHECKPOINT).glob("*.index")
    command = [sys.executable, str(fleet.PROGRAMS / "read_counts.py"), str(index.with_suffix(""))]

    read = subprocess.run(command, capture_output=True, env=fleet.environ(), check=True)

    found = msgspec.json.decode(read.stdout)
    assert found["applied"] == sum(found["counts"]) > 0


@pytest.mark.parametrize("version", versions())
def test_a_recorded_version_can_be_installed_beside_this_one(version: str, tmp_path: Path) -> None:
    try:
        folder = install_version(version, tmp_path / "old")
    except NotThere:
        pytest.skip(f"commit {commit_of(version)} is not in this clone: its history is cut off")
    code = "import services, shared, services.allocator.decide; print(services.__file__)"
    environ = {**os.environ, "PYTHONPATH": str(folder)}

    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout.strip() == str(folder / "services" / "__init__.py")
