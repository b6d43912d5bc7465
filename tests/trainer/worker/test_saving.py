"""Tests of saves of real trainers during training and on bad disks, and of what they restore."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.bus.bus import ANSWER_S, Bus
from shared.bus.subjects import LEDGER
from shared.messages import (
    CheckpointFailed,
    CheckpointRule,
    CheckpointSaved,
    CheckpointSkipped,
    JobFinished,
    JobRequested,
    ProgressReported,
    TrainingResumed,
)
from tests.conftest import NatsServer
from tests.trainer.fleet import WITHIN_S, Fleet
from tests.trainer.worker.test_training import BATCH, counted_once

OFTEN = CheckpointRule(every_s=1.0)
Start = Callable[..., Fleet]


@pytest.fixture
def start(bus: Bus, nats_url: str, tmp_path: Path) -> Start:
    def made(program: str = "counting.py", **fields: Any) -> Fleet:
        chosen = {"epochs": 16, "checkpoint": OFTEN, "settings": {"usage_s": 0.5}, **fields}
        return Fleet(bus, nats_url, tmp_path / "fleet", program, **chosen)

    return made


def folder(fleet: Fleet, generation: int) -> Path:
    return fleet.folder / "checkpoints" / f"gen-{generation}"


def shut(fleet: Fleet, generation: int) -> None:
    """Create a file in place of the folder, so that no user can create the folder."""
    place = folder(fleet, generation)
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(exist_ok=True)
    place.touch()


def spoil(saved: CheckpointSaved) -> None:
    """Replace the data by as many zeros, as after a loss of power during the last write."""
    for data in Path(saved.path).parent.glob(
        f"{Path(saved.path).name}.data-*"
    ):  # the files of each ps, and of the chief
        data.write_bytes(bytes(data.stat().st_size))


async def test_training_resumes_from_a_background_checkpoint_after_a_killed_ps_and_chief(
    start: Start,
) -> None:
    async with start(
        checkpoint=CheckpointRule(every_s=1.0, keep=100)
    ) as fleet:  # the checkpoint stays while the test reads it
        await fleet.generation(1, ps=2, workers=2)
        saved = await fleet.until(CheckpointSaved, lambda m: m.step > 0 and not m.stood)
        read = fleet.counts(saved)
        assert read["applied"] == sum(read["counts"]) == saved.samples
        assert saved.digest.startswith("sha256-") and saved.bytes > 0 and saved.cost_s > 0

        await fleet.kill("ps-1")
        fact = await fleet.generation(2, ps=[0, 2], workers=2, previous=1)
        assert fact.samples >= saved.samples
        await fleet.until(
            CheckpointSaved, lambda m: m.generation == 2 and not m.final and not m.stood
        )

        fleet.pace(0)
        counted_once(fleet, await fleet.finished())


async def test_a_pause_starts_at_the_last_update_and_not_at_the_checkpoint(
    start: Start,
) -> None:
    async with start(checkpoint=CheckpointRule(every_s=6.0)) as fleet:
        await fleet.generation(1, ps=1, workers=1)
        saved = await fleet.until(CheckpointSaved, lambda m: m.step > 0)
        ahead_s = time.time() + 3.0
        last = await fleet.until(ProgressReported, lambda m: m.applied_s >= ahead_s)
        assert last.step > saved.step and last.applied_s <= last.reported_s

        await fleet.kill("ps-0")
        fact = await fleet.generation(2, ps=[1], workers=1)
        stood_s = time.time() - last.applied_s
        assert fact.pause_s is not None and 0 < fact.pause_s <= stood_s

        fleet.pace(0)
        counted_once(fleet, await fleet.finished())


async def test_training_continues_while_the_bus_is_frozen_during_a_commit(
    start: Start, nats_server: NatsServer
) -> None:
    """The outage is longer than two requests to the ledger.

    A real chief is necessary: it continues to train while its supervisor waits.
    """
    settings = {
        "progress_s": 3600.0,
        "usage_s": 3600.0,
    }  # so that the commit is the first request that gets no answer
    async with start(
        checkpoint=CheckpointRule(every_s=1.0, keep=100), epochs=32, settings=settings
    ) as fleet:
        await fleet.generation(1, ps=1, workers=1)
        before = await fleet.until(CheckpointSaved)
        with nats_server.hung():
            await told(fleet, "LedgerWriteWaits")
            began_s = time.monotonic()
            await files_of(fleet, 1, 4)
            await asyncio.sleep(
                max(0.0, began_s + ANSWER_S - time.monotonic())
            )  # the read that follows it waits, too

        late = await fleet.until(CheckpointSaved, lambda m: m.waited_s >= ANSWER_S)
        after = await fleet.until(
            CheckpointSaved, lambda m: m.step > late.step and m.waited_s < ANSWER_S
        )
        assert before.samples < late.samples < after.samples
        assert all(pod.returncode is None for pod in fleet.pods.values())

        fleet.pace(0)
        counted_once(fleet, await fleet.finished())


async def told(fleet: Fleet, event: str) -> None:
    """Wait until the chief has logged this event."""
    async with asyncio.timeout(WITHIN_S):
        while event not in (fleet.folder / "chief-0.log").read_text():
            await asyncio.sleep(0.05)


async def files_of(fleet: Fleet, generation: int, more: int) -> None:
    """Wait until the chief has written this many more checkpoints."""
    count = len(list(folder(fleet, generation).glob("*.index")))
    async with asyncio.timeout(WITHIN_S):
        while len(list(folder(fleet, generation).glob("*.index"))) < count + more:
            await asyncio.sleep(0.05)


async def test_without_memory_for_a_copy_training_stops_for_the_save_with_a_reason(
    start: Start,
) -> None:
    async with start(
        settings={"usage_s": 0.5, "memory_gib": 0.01}
    ) as fleet:  # every ps has more than that
        await fleet.generation(1, ps=1, workers=1)
        saved = await fleet.until(CheckpointSaved, lambda m: "GiB left" in m.stood)
        assert saved.cost_s >= saved.seconds


async def test_a_damaged_checkpoint_is_skipped_and_the_previous_one_restored(start: Start) -> None:
    async with start() as fleet:
        await fleet.generation(1, ps=1, workers=1)
        first = await fleet.until(CheckpointSaved, lambda m: m.step > 0)
        second = await fleet.until(CheckpointSaved, lambda m: m.step > first.step)
        await fleet.kill("chief-0")
        saved = [m for m in fleet.said if isinstance(m, CheckpointSaved)][-2:]
        for name in ("ps-0", "worker-0"):
            fleet.expected.add(name)
        spoil(saved[-1])

        fact = await fleet.generation(2, ps=[1], workers=[1], chief=1)

        skipped = await fleet.until(CheckpointSkipped)
        assert (
            skipped.path == saved[-1].path
            and skipped.instead == saved[-2].path
            and "damaged" in skipped.cause
        )
        assert second.samples <= saved[-1].samples and fact.samples == saved[-2].samples + BATCH
        fleet.pace(0)
        counted_once(fleet, await fleet.finished())
        kept = {path.stem for path in (fleet.folder / "checkpoints").glob("gen-*/ckpt-*.index")}
        assert len(kept) <= fleet.request.checkpoint.keep


async def test_without_a_checkpoint_training_restarts_and_counts_every_example_once(
    start: Start,
) -> None:
    async with start() as fleet:
        await fleet.generation(1, ps=1, workers=1)
        await fleet.until(CheckpointSaved, lambda m: m.step > 0)
        await fleet.kill("chief-0")
        for name in ("ps-0", "worker-0"):
            fleet.expected.add(name)
        shutil.rmtree(folder(fleet, 1))

        fact = await fleet.generation(2, ps=[1], workers=[1], chief=1)

        skipped = [m for m in fleet.said if isinstance(m, CheckpointSkipped)]
        assert [m.cause for m in skipped] == ["it is missing"] * len(skipped) and skipped[
            -1
        ].instead == ""
        assert fact.samples == BATCH
        fleet.pace(0)
        counted_once(fleet, await fleet.finished())


async def test_a_restored_ledger_does_not_hide_newer_checkpoints(start: Start, bus: Bus) -> None:
    """The restored ledger names a deleted checkpoint; the newest committed one is restored."""
    async with start(checkpoint=CheckpointRule(every_s=1.0, keep=1)) as fleet:
        await fleet.generation(1, ps=1, workers=1)
        first = await fleet.until(CheckpointSaved, lambda m: m.step > 0)
        ledger = await bus.bucket(LEDGER)
        old = (await ledger.get("default.tiny")).value
        await marked(fleet, lambda step: step > first.step)
        await wait_until_deleted(Path(first.path + ".index"))
        await fleet.kill("chief-0")
        for name in ("ps-0", "worker-0"):
            fleet.expected.add(name)
        assert old is not None
        await ledger.put("default.tiny", old)

        newest = max(await marked(fleet, lambda _: True))
        fact = await fleet.generation(2, ps=[1], workers=[1], chief=1)

        assert fact.step == newest + 1 > first.step
        fleet.pace(0)
        over = await fleet.finished()
        counted_once(fleet, over)
        await marked(fleet, lambda step: step == over.step)
        (request,) = (fleet.folder / "checkpoints").glob("job/request.json")
        assert msgspec.json.decode(request.read_bytes(), type=JobRequested) == fleet.request
        assert (request.parent / "program").read_bytes() == fleet.program.read_bytes()


async def test_an_uncommitted_checkpoint_is_not_restored(start: Start) -> None:
    """A generation that was fenced may have written it."""
    async with start() as fleet:
        await fleet.generation(1, ps=1, workers=1)
        saved = await fleet.until(CheckpointSaved, lambda m: m.step > 0)
        await marked(fleet, lambda step: step >= saved.step)
        await fleet.kill("chief-0")
        for name in ("ps-0", "worker-0"):
            fleet.expected.add(name)
        last = [m for m in fleet.said if isinstance(m, CheckpointSaved)][-1]
        later = Path(last.path).with_name("ckpt-9999")
        for file in Path(last.path).parent.glob(f"{Path(last.path).name}.[id]*"):
            shutil.copy(file, later.with_name(file.name.replace(Path(last.path).name, later.name)))

        fact = await fleet.generation(2, ps=[1], workers=[1], chief=1)

        assert fact.step < 9999
        fleet.pace(0)
        counted_once(fleet, await fleet.finished())


async def marked(fleet: Fleet, fits: Callable[[int], bool]) -> list[int]:
    """Return the steps of the marked checkpoints, once one of them fits."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            found = (fleet.folder / "checkpoints").glob("gen-*/ckpt-*.committed")
            steps = [int(path.stem.removeprefix("ckpt-")) for path in found]
            if any(map(fits, steps)):
                return steps
            await asyncio.sleep(0.05)


async def wait_until_deleted(path: Path) -> None:
    """Wait until the file is gone: the chief deletes old checkpoints after it marks a new one."""
    async with asyncio.timeout(WITHIN_S):
        while path.exists():
            await asyncio.sleep(0.05)


async def test_an_unwritable_folder_fails_a_checkpoint_and_not_training(
    start: Start,
) -> None:
    async with start() as fleet:
        shut(fleet, 1)
        await fleet.generation(1, ps=1, workers=1)
        failed = await fleet.until(CheckpointFailed)
        assert (
            "does not exist or is not a folder" in failed.cause
            and "every node" in failed.remedy
            and failed.successor is None
        )
        await fleet.steps(5, generation=1)

        folder(fleet, 1).unlink()

        saved = await fleet.until(CheckpointSaved)
        assert saved.step > failed.step
        fleet.pace(0)
        counted_once(fleet, await fleet.finished())


async def test_a_hand_over_that_cannot_be_saved_is_abandoned_and_training_continues(
    start: Start,
) -> None:
    async with start(checkpoint=CheckpointRule(every_s=1000.0)) as fleet:
        await fleet.generation(1, ps=1, workers=1)
        await fleet.steps(3, generation=1)
        shut(fleet, 1)
        await fleet.propose(2, ps=2, workers=2, previous=1)
        await fleet.prepared(2)
        await fleet.order(2, previous=1)
        failed = await fleet.until(CheckpointFailed)
        assert failed.successor == 2 and failed.generation == 1
        await fleet.abandon(2)
        assert (await fleet.steps(5, generation=1)).step > failed.step
        assert not [m for m in fleet.said if isinstance(m, TrainingResumed) and m.generation == 2]

        folder(fleet, 1).unlink()
        fact = await fleet.generation(3, ps=2, workers=2, previous=1)

        assert fact.samples > failed.step * BATCH
        fleet.pace(0)
        counted_once(fleet, await fleet.finished())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk that is full")
async def test_a_full_disk_keeps_the_last_checkpoint_and_the_next_save_is_tried(
    start: Start,
) -> None:
    async with start() as fleet:
        place = fleet.folder / "checkpoints"
        place.mkdir()
        if os.system(f"mount -t tmpfs -o size=256k weir-full {place} 2>/dev/null") != 0:
            pytest.skip("this machine lets nobody mount")
        try:
            await fleet.generation(1, ps=1, workers=1)
            await fleet.until(CheckpointSaved, lambda m: m.step > 0)
            filler = place / "filler"
            with filler.open("wb", buffering=0) as file:
                _fill(file)
            failed = await fleet.until(CheckpointFailed)
            assert "is full" in failed.cause and "make room" in failed.remedy
            last = [m for m in fleet.said if isinstance(m, CheckpointSaved)][-1]
            assert Path(last.path + ".index").exists(), "the last good one is untouched"
            assert not list(place.glob(f"gen-1/ckpt-{failed.step}*")), "nothing half-written stays"

            filler.unlink()

            await fleet.until(CheckpointSaved, lambda m: m.step > failed.step)
            fleet.pace(0)
            finished: JobFinished = await fleet.finished()
            counted_once(fleet, finished)
        finally:
            os.system(f"umount -l {place}")


def _fill(file: Any) -> None:
    for size in (4096, 1):
        try:
            while True:
                file.write(bytes(size))
        except OSError:
            continue
