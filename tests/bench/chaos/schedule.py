"""The schedule of faults, as a function of a seed.

Each pass has every kind of fault once, in random order; so four passes have four faults of each.
Passes alternate between faults at rest and inside a hand-over, which the run then provokes. Some
kinds are possible in only one of the two.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

Moment = Literal["at rest", "while it prepares", "between order and resumption"]
AT_REST: tuple[Moment, ...] = ("at rest",)
INSIDE: tuple[Moment, ...] = ("while it prepares", "between order and resumption")
LONGEST_DELAY_S: dict[Moment, float] = {
    "at rest": 1.0,
    "while it prepares": 2.5,
    "between order and resumption": 0.15,
}
HOLD_S = (3.0, 8.0)
"""Limits in s of the time for which a target stays frozen, unreachable or full."""
UNHELD = ("killed", "set back")


class Kind(msgspec.Struct, frozen=True):
    """A kind of fault.

    `who`: the targets that it may hit; `moments`: when it may be injected; `trains`: the targets
    are processes that train.
    """

    name: str
    who: tuple[str, ...]
    moments: tuple[tuple[Moment, ...], ...] = (AT_REST, INSIDE)
    trains: bool = False


TASK = ("child", "supervisor")
ROLES = ("chief", "ps", "worker")
KINDS = (
    Kind("worker killed", TASK, trains=True),
    Kind("ps killed", TASK, trains=True),
    Kind("chief killed", TASK, trains=True),
    Kind("worker frozen", TASK, (AT_REST,), trains=True),
    Kind("ps frozen", TASK, (AT_REST,), trains=True),
    Kind("chief frozen", TASK, trains=True),
    Kind("next child killed", ROLES, (INSIDE[:1],), trains=True),
    Kind("node lost", ("killed", "silent"), (AT_REST,), trains=True),
    Kind("service killed", ("monitor", "allocator", "launcher")),
    Kind("service frozen", ("allocator", "launcher", "monitor")),
    Kind("nats-server killed", ("nats",)),
    Kind("nats-server frozen", ("nats",), (AT_REST,)),
    Kind("cluster lost", ("cluster",), (AT_REST,)),
    Kind("API cut off", ("refused", "frozen")),
    Kind("disk full", ("checkpoints",), (AT_REST,)),
    Kind("messages doubled", ("late", "reordered")),
    Kind("nats killed in commit", ("leader", "follower"), (AT_REST,)),
    Kind("nats frozen in commit", ("leader", "follower"), (AT_REST,)),
    Kind("intake full", ("own", "another"), (AT_REST,)),
    Kind("node drained", ("neighbours full",), (AT_REST,), trains=True),
    Kind("facts purged", ("all services",), (AT_REST,)),
    Kind("orders full", ("the stream",), (AT_REST,), trains=True),
    Kind("bus set back", ("a minute",), (AT_REST,)),
)
BY_NAME = {kind.name: kind for kind in KINDS}


class Fault(msgspec.Struct, frozen=True):
    """`choice` selects the target, modulo their number. `hold_s` is how long the fault lasts."""

    number: int
    kind: str
    who: str
    moment: Moment
    delay_s: float
    hold_s: float
    choice: int

    @property
    def inside(self) -> bool:
        return self.moment in INSIDE

    @property
    def trains(self) -> bool:
        return BY_NAME[self.kind].trains

    def told(self) -> str:
        held = "" if any(word in self.kind for word in UNHELD) else f", for {self.hold_s:.1f} s"
        return (
            f"{self.number:3} {self.kind:21} {self.who:15} {self.moment}, {self.delay_s:.2f} s"
            f" later{held}"
        )


def schedule(seed: int, faults: int, kinds: Sequence[str] = tuple(BY_NAME)) -> tuple[Fault, ...]:
    """Return a schedule of `faults` faults. The counts of two kinds differ by at most one."""
    chance, found = random.Random(seed), list[Fault]()
    turn = 0
    while len(found) < faults:
        for name in chance.sample(list(kinds), len(kinds)):
            found.append(_fault(chance, len(found) + 1, BY_NAME[name], turn))
        turn += 1
    return tuple(found[:faults])


def _fault(chance: random.Random, number: int, kind: Kind, turn: int) -> Fault:
    """Return a fault. Its target and moment change with the pass, so that four passes have all."""
    moment = chance.choice(kind.moments[(turn + KINDS.index(kind)) % len(kind.moments)])
    who = (
        kind.who[(turn // len(kind.moments)) % len(kind.who)]
        if len(kind.who) == 2
        else kind.who[turn % len(kind.who)]
    )
    delay_s = chance.uniform(0.0, LONGEST_DELAY_S[moment])
    return Fault(
        number, kind.name, who, moment, delay_s, chance.uniform(*HOLD_S), chance.randrange(8)
    )


def count_kinds(faults: Sequence[Fault]) -> dict[str, int]:
    return dict(Counter(fault.kind for fault in faults))
