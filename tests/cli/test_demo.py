"""Tests of `weir demo`: its progress lines, its table and its picture."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from services.__main__ import COMMANDS
from services.cli import demo
from services.cli.demo import ProgressLines
from services.cli.trial import Trial
from services.console.report import runs
from services.console.report.runs import CpuSample, Run
from shared.bus.consumer import StoredMessage
from shared.messages import (
    JobFinished,
    Message,
    ProgressReported,
    TaskReady,
    TaskStarted,
    TrainingResumed,
)
from shared.runtime.process import cancel_tasks
from tests.console.board.builders import decided


class Watched:
    """A fake `Trial` that has only messages, CPU samples and the text of the current step."""

    def __init__(self) -> None:
        self.saying, self.heard, self.cpu = "", list[Message](), list[CpuSample]()

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]


def report(samples: int) -> ProgressReported:
    return ProgressReported(
        job="digits",
        uid=1,
        generation=1,
        epoch=0,
        step=samples // 10,
        samples=samples,
        total_samples=200,
        samples_per_second=50.0,
    )


class Strangers:
    async def come(self, node: str, cpu: float) -> str:
        return node

    async def leave(self, name: str) -> None:
        pass


class Played(Watched):
    """A fake `Trial` that gets its next messages whenever the demo waits.

    `waits` has the text of the current step at each wait.
    """

    def __init__(self, *messages: Message) -> None:
        super().__init__()
        self.tenants, self.coming, self.waits = Strangers(), list(messages), list[str]()

    async def submit(self, request: object, program: Path) -> None:
        pass

    async def until(self, holds: Callable[[], Any], timeout_s: float, what: str) -> None:
        self.waits.append(self.saying)
        while not holds():
            self.heard.append(self.coming.pop(0))

    async def await_finish(self, timeout_s: float) -> None:
        self.waits.append(self.saying)


def ready(serial: int) -> TaskReady:
    return TaskReady(**pod(serial), host="h", ports=(1, 2))


def pod(serial: int) -> dict[str, Any]:
    name = f"digits-worker-{serial}"
    return {
        "job": "digits",
        "uid": 1,
        "pod": name,
        "pod_uid": name,
        "role": "worker",
        "serial": serial,
        "node": "n",
    }


def resumed(generation: int) -> TrainingResumed:
    return TrainingResumed(job="digits", uid=1, generation=generation, step=1, samples=10)


async def test_the_demo_shows_what_it_waits_for() -> None:
    first = [TaskStarted(**pod(0)), *map(ready, range(demo.FIRST_TASKS)), resumed(1)]
    far = replace(report(50), reported_s=time.time() + 600)  # past LEAVE_AFTER_S
    watched = Played(*first, report(0), far, ready(3), resumed(2))

    await demo._play_story(cast(Trial, watched))

    assert watched.coming == [] and len(watched.waits) == 7
    assert len(set(watched.waits)) == len(watched.waits), "nothing is said of two waits"


def test_a_legend_names_exactly_what_is_drawn() -> None:
    foreseen = Run(name="static (predicted)", total_s=20.0, epoch_s=[2.0] * 10)
    measured = Run(
        name="elastic", total_s=10.0, epoch_s=[1.0] * 10, utilisation=[(0.0, 0.1), (10.0, 0.4)]
    )

    *_, epochs, used = runs.plot_runs([foreseen, measured], "one against the other").axes

    assert named(epochs) == ["static (predicted)", "elastic"] and named(used) == ["elastic"]


def test_every_run_of_many_is_drawn() -> None:
    names = [f"run {number}" for number in range(10)]
    used = [(0.0, 0.1), (10.0, 0.4)]
    drawn = [Run(name=name, total_s=20.0, epoch_s=[2.0], utilisation=used) for name in names]

    total, *others = runs.plot_runs(drawn, "one against the others").axes

    assert len(total.patches) == len(names)
    assert [named(axes) for axes in others] == [names, names]


def test_the_dotted_line_of_a_hand_over_is_named_once_in_the_legend() -> None:
    used = [(0.0, 0.1), (10.0, 0.4)]
    run = Run(
        name="elastic", total_s=10.0, epoch_s=[1.0] * 10, utilisation=used, hand_overs=[4.0, 7.0]
    )

    *_, axes = runs.plot_runs([run], "one against the other").axes

    assert named(axes) == ["elastic", "elastic: a new size takes over"]


def test_the_static_prediction_uses_speeds_before_the_growth() -> None:
    """100 examples/s for 5 s, then 20 examples/s while the larger generation is prepared.

    An epoch has 200 examples.
    """
    watched = grown()
    static = demo._predict_static_run(watched)

    assert static.epoch_s == [pytest.approx(2.0)] * demo.EPOCHS and static.total_s == pytest.approx(
        10 + 2 * demo.EPOCHS
    )
    assert "the mean of the 2.5 epochs in the 5.0 s before the decision to grow" in static.basis
    table = demo._comparison_table(watched, static, static)
    figure = runs.plot_runs(
        [static, watched.as_run("elastic", demo.EPOCHS)], "one against the other"
    )
    assert static.basis == table.caption and static.basis in [
        text.get_text() for text in figure.texts
    ]


def grown() -> Trial:
    """Return a trial: trains from 10 s, decision to grow at 15.2 s, grown at 35 s, ends at 60 s."""
    told = [(at, 100 * (at - 10)) for at in range(11, 16)] + [
        (at, 500 + 20 * (at - 15)) for at in range(16, 35)
    ]
    reports = [
        replace(report(n), total_samples=200 * demo.EPOCHS, reported_s=float(at)) for at, n in told
    ]
    ended = JobFinished(job="digits", uid=1, outcome="succeeded", finished_s=60.0)
    said: list[tuple[float, Message]] = [
        (10.0, resumed(1)),
        (15.2, replace(decided(2), decided_s=15.2)),
    ]
    said += [*((one.reported_s, one) for one in reports), (35.0, resumed(2)), (60.0, ended)]
    nothing = cast(Any, None)
    heard = [StoredMessage(message, "", "", 0, at) for at, message in said]
    cpu = [CpuSample(at_s=float(at), seconds=float(at), allocatable=2.0) for at in range(60)]
    return Trial(nothing, nothing, nothing, nothing, heard=heard, cpu=cpu)


def named(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_utilisation_has_its_period() -> None:
    watched = Watched()
    watched.heard.append(report(50))
    drawn = demo._figures(cast(Trial, watched), watched.of(ProgressReported), [], time.time())

    assert "utilisation, last 3 s" in [column.header for column in drawn.columns]


async def test_each_step_of_the_demo_and_its_progress_is_a_line() -> None:
    watched, lines = Watched(), list[str]()
    telling = asyncio.ensure_future(
        demo.print_turns(cast(Trial, watched), lines.append, ProgressLines(report_s=0.0))
    )

    async def until(count: int) -> None:
        async with asyncio.timeout(60):
            while len(lines) < count:
                await asyncio.sleep(0.01)

    watched.saying = "the job was submitted"
    await until(1)
    watched.heard.append(report(50))
    await until(2)
    await asyncio.sleep(3 * demo.REDRAW_S)
    watched.saying = "the pods of others ended"
    await until(3)
    await cancel_tasks(telling)

    assert lines == [
        "the job was submitted",
        "25.0 % done, 0 epochs complete, 50 examples/s",
        "the pods of others ended",
    ], "what is not new is not said again"


def test_the_demo_promises_only_growth() -> None:
    """No other job comes in the demo, so the job never shrinks for one."""
    assert "grow" in COMMANDS["demo"] and "shrink" not in COMMANDS["demo"]
