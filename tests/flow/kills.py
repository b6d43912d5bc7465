"""A schedule of kills from a seed, and the search for the processes to kill.

A round is one hand-over: the job starts; it grows when another user's pod leaves; it shrinks when
one arrives. In each round but one, a service and a process of a trainer are killed, each at a
moment of its own.
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec
import psutil

from services.local.kubelet import processes

Moment = Literal[
    "before the decision", "while it prepares", "between order and resumption", "just after"
]
MOMENTS: tuple[Moment, ...] = (
    "before the decision",
    "while it prepares",
    "between order and resumption",
    "just after",
)
LONGEST_DELAY_S: dict[Moment, float] = {
    "before the decision": 0.3,
    "while it prepares": 2.5,
    "between order and resumption": 0.15,
    "just after": 0.5,
}
SERVICES = ("monitor", "allocator", "launcher")
ROLES = ("chief", "ps", "worker")
Change = Literal["starts", "grows", "shrinks"]
CHANGES: tuple[Change, ...] = ("starts", "grows", "shrinks", "grows", "shrinks")
Part = Literal["service", "supervisor", "running child", "next child"]


class Kill(msgspec.Struct, frozen=True):
    """A kill. `who` is a service's name or a role; `choice` selects a pod, modulo their number."""

    part: Part
    who: str
    moment: Moment
    delay_s: float
    choice: int

    @property
    def kind(self) -> str:
        return self.who if self.part == "service" else f"{self.part} of {self.who}"

    @property
    def costs_a_worker(self) -> bool:
        return self.part != "service" and self.who == "worker"


class Round(msgspec.Struct, frozen=True):
    """A change of the job's size, and the kills during it in the order of their moments."""

    change: Change
    kills: tuple[Kill, ...]


TRAINERS: tuple[tuple[Part, str], ...] = tuple(
    (part, role) for part in ("supervisor", "running child", "next child") for role in ROLES
)
KINDS = {*SERVICES, *(f"{part} of {role}" for part, role in TRAINERS)}


def schedule(seed: int) -> tuple[Round, ...]:
    """Return a round for each change.

    Each service is killed at least once, and no kind of trainer process twice. Odd seeds have no
    kill in the first round, even seeds have none in the last.
    """
    chance = random.Random(seed)
    services = chance.sample(SERVICES, len(SERVICES)) * 2
    trainers = chance.sample(TRAINERS, len(CHANGES))
    quiet = 0 if seed % 2 else len(CHANGES) - 1
    return tuple(
        Round(change, () if n == quiet else _kills(chance, services[n], trainers[n]))
        for n, change in enumerate(CHANGES)
    )


def _kills(chance: random.Random, service: str, trainer: tuple[Part, str]) -> tuple[Kill, ...]:
    both = (_kill(chance, "service", service), _kill(chance, *trainer))
    return tuple(sorted(both, key=lambda kill: (MOMENTS.index(kill.moment), kill.delay_s)))


def _kill(chance: random.Random, part: Part, who: str) -> Kill:
    """Return a kill at a random moment.

    The child of the next generation is killed only while that generation is being prepared or
    handed over to: at other moments it does not exist.
    """
    moment = chance.choice(MOMENTS[1:3] if part == "next child" else MOMENTS)
    return Kill(
        part, who, moment, chance.uniform(0.0, LONGEST_DELAY_S[moment]), chance.randrange(8)
    )


# ---------------------------------------------------------------- the processes to kill

BIRTH_S = 1.0  # s by which a process's start time and the clock may differ


class Seen(msgspec.Struct, frozen=True):
    """A process that runs."""

    pid: int
    parent: int
    born_s: float
    command: list[str]

    def runs(self, module: str) -> bool:
        return f"services.trainer{module}" in self.command


class Family(msgspec.Struct, frozen=True):
    """The processes of one pod.

    `children` is sorted by start time: the child of the running generation, then that of the coming
    generation.
    """

    supervisor: int | None
    children: tuple[Seen, ...]

    def running(self) -> int | None:
        return self.children[0].pid if self.children else None

    def coming(self, since_s: float) -> int | None:
        """Return the pid of the newest child if it started after `since_s`, else None."""
        young = [child.pid for child in self.children if child.born_s > since_s - BIRTH_S]
        return young[-1] if young else None


def family(pod_uid: str) -> Family:
    found = [
        seen
        for pid in processes.processes_by_pod().get(pod_uid, [])
        if (seen := _seen(pid)) is not None
    ]
    supervisor = next((p.pid for p in found if p.runs("")), None)
    fork_servers = {
        p.pid for p in found if p.runs(".worker.fork_server") and p.parent == supervisor
    }
    born = [p for p in found if p.parent in fork_servers or p.runs(".worker.child")]
    return Family(supervisor, tuple(sorted(born, key=lambda p: p.born_s)))


def _seen(pid: int) -> Seen | None:
    """Return the process, or None if it has exited."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return Seen(pid, process.ppid(), process.create_time(), process.cmdline())
    except psutil.Error:
        return None
