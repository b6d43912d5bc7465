"""Run `make chaos`: print the schedule, run it, and print one line of JSON."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.bench.chaos.ending import result
from tests.bench.chaos.naive import compared
from tests.bench.chaos.play import Play
from tests.bench.chaos.put_up import world
from tests.bench.chaos.schedule import BY_NAME, Fault, count_kinds, schedule
from tests.bench.report import finish_in_a_folder, say

FAULTS, SEED = int(os.environ.get("CHAOS_FAULTS", "92")), int(os.environ.get("CHAOS_SEED", "1"))
NAIVE = int(os.environ.get("CHAOS_NAIVE", "2"))
KINDS = [name for name in os.environ.get("CHAOS_KINDS", "").split(",") if name] or list(BY_NAME)
LONGEST_S = 60.0 * float(os.environ.get("CHAOS_MINUTES", "50"))
"""No fault is injected after this time in s. The comparison and the end of the last job follow. """


def told(faults: tuple[Fault, ...]) -> None:
    say(
        f"seed {SEED}: {len(faults)} faults, {sum(f.trains for f in faults)} on processes that"
        " train, "
    )
    say(f"{sum(f.inside for f in faults)} inside a hand-over; {count_kinds(faults)}")
    for fault in faults:
        say(fault.told())


async def main(folder: Path) -> dict[str, Any]:
    faults, began_s = schedule(SEED, FAULTS, KINDS), time.time()
    told(faults)
    async with world(folder) as here:
        play = Play(here, began_s + LONGEST_S)
        await play.play(faults)
        rounds = await compared(play, NAIVE)
        return {
            "seed": SEED,
            **await result(here, play, rounds),
            "minutes": round((time.time() - began_s) / 60, 1),
        }


if __name__ == "__main__":
    finish_in_a_folder("weir-chaos-", main)
