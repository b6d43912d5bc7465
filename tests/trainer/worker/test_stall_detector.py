"""Tests of the stall detector: a step that hangs is found, other long work is not reported."""

from __future__ import annotations

import socket

import pytest
from msgspec import structs

from services.launcher.settings import Settings as Launcher
from services.trainer.protocol import Failed
from services.trainer.settings import Settings as Trainer
from services.trainer.worker import shard_ledger
from services.trainer.worker.shard_ledger import Ledger
from services.trainer.worker.stall_detector import StallDetector, unreachable_tasks
from services.trainer.worker.watchdog import Watchdog

LIMIT_S, PATIENCE = 100.0, 1.5


class Lanes:
    """Lanes that a test moves by hand."""

    def __init__(self) -> None:
        self.steps = 0
        self.ledger: Ledger = shard_ledger.new_ledger(64, 1)

    @property
    def is_updating(self) -> bool:
        return bool(self.ledger.given)

    def give(self) -> None:
        self.ledger, _ = shard_ledger.take_shard(self.ledger, 16)

    def apply(self) -> None:
        self.ledger = shard_ledger.mark_applied(self.ledger, self.ledger.given[0])
        self.steps += 1


class Chief:
    """Lanes under a watchdog."""

    def __init__(self) -> None:
        self.lanes = Lanes()
        self.dog = Watchdog("net.py", LIMIT_S, LIMIT_S)
        self.dog.checks.append(StallDetector(self.lanes, self.dog, PATIENCE))

    def passes(self, seconds: float) -> Failed | None:
        found = (self.dog.check_all(1.0) for _ in range(round(seconds)))
        return next((failed for failed in found if failed), None)


def test_a_batch_that_hangs_fails_the_job_and_is_named() -> None:
    chief = Chief()
    chief.lanes.give()
    chief.lanes.give()
    assert chief.passes(149) is None

    failed = chief.passes(2)

    assert failed is not None and not failed.peer
    assert "no update was applied for 150 s (since update 0)" in failed.cause
    assert "workers had 32 examples (places 0 .. 15, 16 .. 31 of their epoch)" in failed.cause


def test_every_update_resets_the_stall_timer() -> None:
    chief = Chief()
    for _ in range(3):
        chief.lanes.give()
        assert chief.passes(110) is None
        chief.lanes.apply()

    assert chief.passes(1) is None


def test_saving_evaluating_and_being_drained_are_no_stall() -> None:
    chief = Chief()
    chief.lanes.give()
    chief.lanes.apply()
    assert chief.passes(10_000) is None

    chief.lanes.give()
    assert chief.passes(149) is None, "and the time before does not count afterwards"


def test_a_stall_with_a_lost_task_is_blamed_on_the_task() -> None:
    chief = Chief()
    chief.dog.missing_tasks = lambda: ["ps-0 at h:1"]
    chief.lanes.give()

    failed = chief.passes(151)

    assert failed is not None and failed.peer and "ps-0 at h:1" in failed.cause


def test_a_task_is_reachable_if_it_accepts_a_connection() -> None:
    with socket.socket() as stands, socket.socket() as gone:
        stands.bind(("127.0.0.1", 0))
        stands.listen()
        gone.bind(("127.0.0.1", 0))
        there, away = (f"127.0.0.1:{s.getsockname()[1]}" for s in (stands, gone))

        assert unreachable_tasks({"chief": [away], "ps": [there], "worker": [there, away]}) == [
            f"worker-1 at {away}"
        ]


def test_a_stall_is_reported_before_the_launchers_timeout() -> None:
    told = Launcher()

    longest_s = told.stuck_patience * told.stuck_early_s

    assert longest_s < min(told.prepare_timeout_s, told.resume_timeout_s)


@pytest.mark.parametrize("name", ["stuck_early_s", "stuck_s", "stuck_patience"])
def test_the_trainers_default_timeouts_are_those_of_the_launcher(name: str) -> None:
    own = {field.name: field.default for field in structs.fields(Trainer)}

    assert own[name] == getattr(Launcher(), name)
