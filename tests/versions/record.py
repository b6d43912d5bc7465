"""Record what this version writes, on the commit that is to be VERSION.

    python -m tests.versions.record VERSION

One job on a stack of its own grows, is stopped with the stack while it trains, and finishes after
the next start.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from services.trainer.pod.fence import Entry
from shared.auth.permissions import bucket_subject
from shared.bus.subjects import LEDGER
from shared.messages import CheckpointSaved, TrainingResumed
from tests.architecture.source import ROOT
from tests.flow.stage import JOB, PATIENCE_S, stage
from tests.versions.records import (
    CHECKPOINT,
    COMMIT,
    FIXTURES,
    LOG,
    RUNNING,
    Record,
    dump_store,
    write_log,
)

EPOCHS = 12


async def record(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="weir-record-") as name:
        folder = Path(name)
        async with stage(folder) as scene:
            stranger = await scene.stranger_comes("node-2")
            await scene.submit(epochs=EPOCHS)
            first = await scene.hear(TrainingResumed)
            await scene.stranger_leaves(stranger)
            grown = await scene.hear(TrainingResumed, lambda m: m.generation > first.generation)
            await scene.hear(CheckpointSaved, lambda m: m.generation == grown.generation)
        running = await dump_store(folder / "weir" / "nats")
        write_log(target / RUNNING, running)
        keep_checkpoint(running, target / CHECKPOINT)
        async with stage(folder) as scene:
            scene.pace(0)
            await scene.watched.await_finish(PATIENCE_S)
        write_log(target / LOG, await dump_store(folder / "weir" / "nats"))


def keep_checkpoint(records: list[Record], target: Path) -> None:
    """Copy the files of the checkpoint that the ledger names last."""
    ledger = [each for each in records if each.subject == bucket_subject(LEDGER, f"default.{JOB}")][
        -1
    ]
    path = Path(msgspec.json.decode(ledger.data, type=Entry).paths[0])
    target.mkdir(parents=True, exist_ok=True)
    for file in path.parent.glob(f"{path.name}.*"):
        shutil.copy(file, target)


def main() -> None:
    target = FIXTURES / sys.argv[1]
    shutil.rmtree(target, ignore_errors=True)
    asyncio.run(record(target))
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (target / COMMIT).write_text(commit.stdout)


if __name__ == "__main__":
    main()
