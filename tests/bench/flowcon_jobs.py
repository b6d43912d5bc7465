"""The jobs on FlowCon's machine: kinds, assumed loss curves, and start times.

Loss curves (assumed, in the shape of such trainings; `machine-seconds` are core-seconds / 8, noise
2 % of a measurement):

    vae          550 -> 180 with 3 machine-s, 180 -> 105 with 100: converges slowly; 300 machine-s of work
    mnist-torch  2.3 -> 0.08 with 8: flat long before the end of its 120 machine-s
    mnist-tf     2.3 -> 0.10 with 50: improves in all of its 80 machine-s; the late one
    gru, lstm    5.5 -> 1.5 with 25, 6 -> 3 with 30; 50 and 60 machine-s, and at most 4 of the 8 cores

Schedules: the seed's (vae at 0 s, mnist-torch at 40, mnist-tf at 80), 10 noise seeds; 10 and 15
jobs drawn from the five (vae, mnist-torch and mnist-tf with 120, 40, 40 machine-s there), started
at whole seconds of [0, 100), 10 seeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from tests.bench.machine import CORES, Image

Schedule = Sequence[tuple[int, Image]]
"""Start in s, and job."""


def falling(*terms: tuple[float, float], floor: float) -> Callable[[float], float]:
    """Return the loss after core-seconds: floor + sum of height x exp(-machine-seconds / scale)."""
    return lambda done: (
        floor + math.fsum(height * math.exp(-done / CORES / scale) for height, scale in terms)
    )


def image(
    name: str, machine_s: float, loss: Callable[[float], float], most: float = CORES
) -> Image:
    return Image(name=name, work=machine_s * CORES, most=most, loss=loss)


VAE = image("vae", 300, falling((370, 3), (75, 100), floor=105))
TORCH = image("mnist-torch", 120, falling((2.22, 8), floor=0.08))
LATE = image("mnist-tf", 80, falling((2.2, 50), floor=0.10))
GRU = image("gru", 50, falling((4.0, 25), floor=1.5), most=4)
LSTM = image("lstm", 60, falling((3.0, 30), floor=3.0), most=4)
DRAWN = (*(replace(i, work=s * CORES) for i, s in ((VAE, 120), (TORCH, 40), (LATE, 40))), GRU, LSTM)
SEED_SCHEDULE: Schedule = ((0, VAE), (40, TORCH), (80, LATE))


def drawn(jobs: int, seed: int) -> Schedule:
    rng = random.Random(seed)
    return sorted(
        ((rng.randrange(100), rng.choice(DRAWN)) for _ in range(jobs)), key=lambda at: at[0]
    )
