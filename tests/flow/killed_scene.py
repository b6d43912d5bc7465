"""A test that starts one process of each kind and then waits until it is killed.

`test_killed_run.py` runs it by its path.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import psutil

from services.local.tenant import __name__ as TENANT
from shared.bus.bus import Bus
from tests.cli.test_up import begun
from tests.trainer.fleet import Fleet

CLUSTER = "nodes: [{cpu: 0.5, memory_gib: 4}]\ntenants: [{node: node, cpu: 0.1}]\n"
ORPHAN = "setsid sleep 600 >&- & echo $!"


async def test_start_one_of_everything(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    """TensorFlow is necessary: the processes found hours after their test were trainers."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    await begun(tmp_path, "--cluster", "cluster.yaml")
    async with Fleet(bus, nats_url, tmp_path / "fleet", "counting.py", warm=False) as fleet:
        await fleet.generation(1, ps=1, workers=1)
        while not any(TENANT in command_of(process) for process in below()):
            await asyncio.sleep(0.1)
        shell = await asyncio.create_subprocess_exec(
            "sh", "-c", ORPHAN, stdout=asyncio.subprocess.PIPE
        )
        orphan = int((await shell.communicate())[0])
        commands = {process.pid: command_of(process) for process in below()} | {orphan: ["orphan"]}
        report = Path(os.environ["SCENE_REPORT"])
        report.with_suffix(".new").write_text(json.dumps(commands))
        report.with_suffix(".new").rename(report)
        await asyncio.Event().wait()


def below() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
