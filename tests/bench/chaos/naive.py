"""Compare two recoveries: Weir's from the loss of one ps, and a restart of the whole job.

Naive: with `handover: restart`, every process of every pod of the job is killed at once. All are
started again and resume from the last checkpoint. Both jobs have the same program and size and run
on the same machine, one after the other.
"""

from __future__ import annotations

import signal
import time

import msgspec

from services.local.kubelet import processes
from shared.messages import ClusterSpecPublished
from tests.bench.chaos import injectors, probes, standing
from tests.bench.chaos.play import LIMIT_S, SLOW_S, Play
from tests.bench.chaos.schedule import Fault
from tests.bench.report import say

EPOCHS = 150


class Rounds(msgspec.Struct, frozen=True, kw_only=True):
    """Times in s from each loss to the next applied update."""

    lost_ps_s: tuple[float, ...] = ()
    naive_s: tuple[float, ...] = ()


async def compared(play: Play, rounds: int) -> Rounds:
    if not rounds:
        return Rounds()
    lost = await _measured(play, rounds, "make-before-break")
    return Rounds(lost_ps_s=lost, naive_s=await _measured(play, rounds, "restart"))


async def _measured(play: Play, rounds: int, handover: str) -> tuple[float, ...]:
    world, took = play.world, list[float]()
    await play.begin(f"lost-{handover}", EPOCHS, handover=handover, consistency="async")
    world.pace(SLOW_S)
    await world.strangers_leave()
    await world.watch.until(
        lambda: len(standing.tasks(world.heard, "worker")) > 2, LIMIT_S, "growth"
    )
    for number in range(rounds):
        await play.settled(LIMIT_S)
        struck_s = time.time()
        await (_lose_ps(play, number) if handover != "restart" else _lose_all(play))
        took.append(await probes.training(world, struck_s, LIMIT_S) - struck_s)
        say(f"{handover}: updates again after {took[-1]:.1f} s")
    await play.settled(LIMIT_S)
    await play.end()
    return tuple(took)


async def _lose_ps(play: Play, number: int) -> None:
    """Kill the first process of a ps pod, so that the pod is lost with its imported modules."""
    await injectors.kill_task(
        play.world, Fault(0, "ps killed", "supervisor", "at rest", 0.0, 0.0, number)
    )


async def _lose_all(play: Play) -> None:
    here = {t.pod for t in standing.of(play.world.heard, ClusterSpecPublished)[-1].tasks}
    uids = [p["metadata"]["uid"] for p in await play.world.pods() if p["metadata"]["name"] in here]
    by_pod = processes.processes_by_pod()
    for pid in [pid for uid in uids for pid in by_pod.get(uid, [])]:
        processes.send_signal(pid, signal.SIGKILL)
