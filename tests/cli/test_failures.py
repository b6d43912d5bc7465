"""Tests that `weir events` shows every fault that `make chaos` injects, and other failures.

`TOLD` has the messages that show each fault. A new fault in `tests/bench/chaos` needs an entry.
"""

from __future__ import annotations

from typing import get_args

import pytest

from services.console.text.event_lines import event_kind
from services.console.text.sentences import TROUBLES, sentence
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    CheckpointFailed,
    CheckpointSkipped,
    GenerationAbandoned,
    GenerationPrepared,
    JobFinished,
    JobRejected,
    Message,
    ServiceTroubled,
    TaskExited,
    TaskLeaving,
    Trouble,
)
from tests.bench.chaos.schedule import BY_NAME
from tests.shared.sample_messages import one_of_each

LOST: tuple[type[Message], ...] = (TaskExited, AllocationDecided)
"""The end of a task, and the decision about it: `lost ...; replaced (...)`."""
TOLD: dict[str, tuple[type[Message] | Trouble, ...]] = {
    "worker killed": LOST,
    "ps killed": LOST,
    "chief killed": LOST,
    "worker frozen": LOST,
    "ps frozen": LOST,
    "chief frozen": LOST,
    "next child killed": (GenerationPrepared, GenerationAbandoned),
    "node lost": (CapacityChanged, *LOST),
    "service killed": ("began again",),
    "service frozen": ("bus away", "bus slow"),
    "nats-server killed": ("bus away",),
    "nats-server frozen": ("bus away",),
    "cluster lost": ("kubernetes away", *LOST),
    "API cut off": ("kubernetes away",),
    "disk full": (CheckpointFailed,),
    "nats killed in commit": ("bus away",),
    "nats frozen in commit": ("bus away",),
    "intake full": (),  # the publisher gets an error at once
    "node drained": (TaskLeaving,),
    "facts purged": ("began again",),
    "orders full": ("no room", *LOST),
    "bus set back": ("bus away", "began again"),
    "messages doubled": (),  # no failure: repeated messages are ignored
}
BESIDE: dict[str, tuple[type[Message] | Trouble, ...]] = {
    "out of memory": LOST,
    "a hot ps, a straggler": (AllocationDecided,),
    "a torn checkpoint": (CheckpointSkipped,),
    "a spoilt program": (JobFinished,),
    "a request that is wrong": (JobRejected,),
}


def test_every_provoked_fault_has_its_line() -> None:
    assert set(TOLD) == set(BY_NAME)
    troubles = {
        what
        for told in (*TOLD.values(), *BESIDE.values())
        for what in told
        if isinstance(what, str)
    }
    assert troubles == set(get_args(Trouble)) == set(TROUBLES)


@pytest.mark.parametrize("failure", [name for name, told in (TOLD | BESIDE).items() if told])
def test_the_events_of_a_fault_are_shown_by_weir_events(failure: str) -> None:
    each = {type(said): said for said in one_of_each()}
    for what in (TOLD | BESIDE)[failure]:
        said = each[ServiceTroubled if isinstance(what, str) else what]
        assert sentence(said) and event_kind(said)
