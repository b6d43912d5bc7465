"""Measure what the measurement of gradient noise costs and how accurate it is: `make bench-noise`.

Cost: the same job twice, with 2 workers each, of which one does not measure. Both exist all the
time. One is frozen while the other trains, in alternation. `throughput_ratio`: the median of the
examples per second with measurement divided by those without; 0.97 or more is the aim. `cpu_ratio`:
the same of the CPU time per batch of chief and workers, which depends less on what else the machine
does. `gradient_noise_<mode>`: the last value that the job reported.

Accuracy: `noise_ratio_<program>`: the noise scale that a worker measures divided by that of the
gradients of all examples, at the same weights (`tests/trainer/programs/noise.py`). 0.7 to 1.3 is the
aim.

Environment: BENCH_MODES (`async,global-batch`), BENCH_ALTERNATIONS (6), BENCH_STEADY_S (10),
BENCH_PROGRAMS (of `noise.py`, with commas; all).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from shared.messages import ProgressReported
from tests.bench.data import (
    CORES,
    OURS,
    describe_speeds,
    measure,
    weir_job,
    weir_speed,
    write_program,
)
from tests.bench.overhead import Side
from tests.bench.player import sizes
from tests.bench.report import finish_or_refuse, median, say

MODES = tuple(os.environ.get("BENCH_MODES", "async,global-batch").split(","))
ALTERNATIONS = int(os.environ.get("BENCH_ALTERNATIONS", "6"))
PROGRAMS = os.environ.get("BENCH_PROGRAMS", "line,convnet,half-precision,wide-and-deep")
SCRIPT = Path(__file__).parents[1] / "trainer" / "programs" / "noise.py"
OFF = {"WEIR_LAUNCHER_NOISE_SHARE": "0"}
WORKERS = 2


async def main() -> dict[str, Any]:
    figures: dict[str, Any] = await asyncio.to_thread(accuracy)
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        program = write_program("array", Path(name))
        for mode in MODES:
            figures |= await cost(program, mode)
    for name, worst in (("throughput_ratio", min), ("cpu_ratio", max)):
        figures[name] = worst(figures[f"{name}_{mode}"] for mode in MODES)
    return {**figures, "alternations": ALTERNATIONS}


def accuracy() -> dict[str, float]:
    """Return the ratios of measured and offline noise scales."""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), *PROGRAMS.split(",")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environ, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    return {
        f"noise_ratio_{name}": told[name]["measured"] / told[name]["offline"]
        for name in PROGRAMS.split(",")
    }


async def cost(program: Path, mode: str) -> dict[str, Any]:
    """Return the medians of speed and CPU time with measurement, divided by those without."""
    limits = sizes(chief=CORES, ps=CORES, worker=CORES)
    job = partial(weir_job, program, WORKERS, limits, fields={"consistency": mode})
    async with job() as with_noise:
        ours = Side(with_noise.stack, OURS)
        ours.send(signal.SIGSTOP)
        async with job(settings=OFF) as without:
            other = Side(without.stack, OURS)
            other.send(signal.SIGSTOP)
            sides = {
                "with": partial(measure, ours, partial(weir_speed, with_noise.watched)),
                "without": partial(measure, other, partial(weir_speed, without.watched)),
            }
            speed_ratios, cpu_ratios = list[float](), list[float]()
            for number in range(ALTERNATIONS):
                order = list(sides) if number % 2 == 0 else list(sides)[::-1]
                speeds = {name: await sides[name]() for name in order}
                say(f"  {mode} {number + 1}/{ALTERNATIONS} {describe_speeds(speeds)}")
                one, plain = speeds["with"], speeds["without"]
                speed_ratios.append(one.examples_per_s / plain.examples_per_s)
                cpu_ratios.append(
                    (one.chief_ms + one.worker_ms) / (plain.chief_ms + plain.worker_ms)
                )
            for side in (ours, other):
                side.send(signal.SIGCONT)
            reports = with_noise.watched.of(ProgressReported)
            return {
                f"throughput_ratio_{mode}": median(speed_ratios),
                f"cpu_ratio_{mode}": median(cpu_ratios),
                f"gradient_noise_{mode}": reports[-1].gradient_noise,
            }


if __name__ == "__main__":
    finish_or_refuse(main())
