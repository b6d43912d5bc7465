"""`weir demo`: a real job grows when the pods of others leave. Nothing stays behind.

A cluster of four small nodes; strangers' pods fill three of them. The digits job starts on the
rest, the strangers leave in mid-run, and the job takes their place: two to five minutes, longer on
a busy machine. The last line of standard output is one JSON object.

The screen shows tasks by node, generation, step, speed, loss, utilisation. Progress lines fill the
time between events: the progress of the job if it is new; otherwise the step that the job waits
for, and for how long. Their times are seconds of a monotonic clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from services.cli.command_line import FILE, Arguments, command, option
from services.cli.trial import Failed, Trial, trial
from services.cli.up import cluster_file
from services.console.job_file import examples_folder
from services.console.report import runs
from services.console.text.sentences import sentence
from services.local.stack import CannotStart, Stack
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobFinished,
    ProgressReported,
    TaskReady,
    TaskStarted,
    TrainingResumed,
)
from shared.runtime.process import cancel_tasks
from shared.text import format_duration

PICTURE = Path("weir-demo.png")
EXAMPLES = ("weir demo", "weir demo --picture demo.png --keep demo-logs")
JOBS = examples_folder()
CLUSTER = "nodes:\n  - {name: node, count: 4, cpu: 0.5, memory_gib: 6}\n"
STRANGERS = (("node-2", 0.5), ("node-3", 0.5), ("node-4", 0.5))
EPOCHS, BATCH = 120, 128
LEAVE_AFTER_S = 8.0
FIRST_TASKS = 3
"""A chief, a ps and a worker."""
PATIENCE_S = 240.0
REDRAW_S = 0.25
BEGINS = (
    "a cluster of four small nodes starts; this takes two to five minutes, longer on a busy machine"
)
BASIS = (
    "static (predicted): not run; each epoch takes the mean of the {epochs:.1f} epochs in the"
    " {seconds:.1f} s before the decision to grow, beside the pods of others"
)
ENDS = "the cluster ends, and the picture is drawn"


def task_resources(cpu: float) -> dict[str, float]:
    return {"cpu": cpu, "memory_gib": 1.5}


REQUEST: dict[str, Any] = {
    "job": "digits",
    "epochs": EPOCHS,
    "batch": {"start": BATCH, "min": BATCH, "max": BATCH},
    "ps": {"start": 1, "min": 1, "max": 2},
    "workers": {"start": 1, "min": 1, "max": 6},
    "resources": {
        "chief": task_resources(0.15),
        "ps": task_resources(0.1),
        "worker": task_resources(0.25),
    },
    "policy": "config-manager",
    "consistency": "async",  # an update of 32 digits is too small to be divided among six workers
}


@command(EXAMPLES)
@option(
    "--picture",
    type=FILE,
    default=PICTURE,
    metavar="PNG",
    help=f"the file for the picture (default: {PICTURE})",
)
@option(
    "--keep",
    type=FILE,
    metavar="FOLDER",
    help="keep state and logs in this folder",
)
def run(args: Arguments) -> int:
    """Run the demo. Return 0 if the job grew and counted every example once."""
    with _working_folder(args.keep) as folder, cluster_file(None, CLUSTER) as cluster:
        try:
            return asyncio.run(_run_until_signal(_run_demo(folder, cluster, args.picture)))
        except (Failed, CannotStart) as error:
            print(f"weir demo: {error}", file=sys.stderr)
            hint = f"logs: {folder}" if args.keep else "`weir demo --keep FOLDER` keeps its logs"
            print(hint, file=sys.stderr)
            return 1


@contextlib.contextmanager
def _working_folder(keep: Path | None):  # type: ignore[no-untyped-def]
    folder = keep or Path(tempfile.mkdtemp(prefix="weir-demo-"))
    try:
        yield folder
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


async def _run_until_signal(work: Any) -> int:
    """Cancel the work on Ctrl-C and SIGTERM, so that it cleans up."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return int(await task)
    except asyncio.CancelledError:
        print("weir demo: stopped", file=sys.stderr)
        return 130


async def _run_demo(folder: Path, cluster: Path, png: Path) -> int:
    console = Console(stderr=not sys.stdout.isatty())
    console.print(BEGINS, soft_wrap=True)
    async with Stack(folder, cluster) as stack, trial(stack) as watched:
        show = _show_live if console.is_terminal else _print_progress
        await show(console, watched)
        console.print(ENDS)
    return _report_result(console, watched, png)


async def _show_live(console: Console, watched: Trial) -> None:
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        drawing = asyncio.create_task(_redraw_screen(live, watched))
        try:
            await _play_story(watched)
        finally:
            drawing.cancel()
            live.update(draw(watched, "the end", time.time()))


async def _print_progress(console: Console, watched: Trial) -> None:
    print_line = partial(console.print, markup=False, soft_wrap=True)
    printing = asyncio.create_task(print_turns(watched, print_line, ProgressLines()))
    try:
        await _play_story(watched)
    finally:
        await cancel_tasks(printing)
        console.print(draw(watched, "the end", time.time()))


async def print_turns(
    watched: Trial, print_line: Callable[[str], None], turns: ProgressLines
) -> None:
    """Print the progress line by line, for an output that cannot redraw a picture."""
    while True:
        reports = watched.of(ProgressReported)
        newest = reports[-1] if reports else None
        if line := turns.line(watched.saying, newest, time.monotonic()):
            print_line(line)
        await asyncio.sleep(REDRAW_S)


async def _redraw_screen(live: Live, watched: Trial) -> None:
    turns = ProgressLines()
    while True:
        heading = turns.heading(watched.saying, time.monotonic())
        live.update(draw(watched, heading, time.time()))
        await asyncio.sleep(REDRAW_S)


async def _play_story(watched: Trial) -> None:
    """Run the job through its stages. Raise `Failed` if a stage takes too long."""
    watched.saying = "pods of others fill three of four nodes"
    names = [await watched.tenants.come(node, cpu) for node, cpu in STRANGERS]
    await watched.submit(REQUEST, JOBS / "digits.py")
    watched.saying = "the job was submitted as a message; it starts on the free capacity"
    await watched.until(lambda: watched.of(TaskStarted), PATIENCE_S, "its first pod")
    watched.saying = "its pods run; each imports TensorFlow first, which takes some seconds"
    await watched.until(
        lambda: len(watched.of(TaskReady)) >= FIRST_TASKS, PATIENCE_S, "all of its pods ready"
    )
    watched.saying = (
        "its pods are ready; they connect, build the model and trace a step, which takes longest"
    )
    await watched.until(lambda: watched.of(TrainingResumed), PATIENCE_S, "the start")
    watched.saying = "it trains; the pods of others end soon"
    leave_s = (_last_report(watched) or time.time()) + LEAVE_AFTER_S
    await watched.until(lambda: _last_report(watched) >= leave_s, PATIENCE_S, "progress")
    for name in names:
        await watched.tenants.leave(name)
    watched.saying = (
        "the pods of others ended: their cores are free, and the job grows while it trains"
    )
    await watched.until(
        lambda: len(watched.of(TaskReady)) > FIRST_TASKS, PATIENCE_S, "its new pods"
    )
    watched.saying = "new pods are ready; the larger generation is prepared beside the running one"
    await watched.until(lambda: len(watched.of(TrainingResumed)) > 1, PATIENCE_S, "growth")
    watched.saying = "grown: more ps, more workers, no example lost or repeated"
    await _wait_for_end(watched)


async def _wait_for_end(watched: Trial) -> None:
    """Wait for the end, however long it takes, as long as the job makes progress."""
    while True:
        before = _last_report(watched)
        try:
            await watched.await_finish(PATIENCE_S)
            return
        except Failed:
            if _last_report(watched) == before:
                raise


def _last_report(watched: Trial) -> float:
    """Return the time of the last report; 0 if there is none."""
    reports = watched.of(ProgressReported)
    return float(reports[-1].reported_s) if reports else 0.0


# ---------------------------------------------------------------- result


def _report_result(console: Console, watched: Trial, png: Path) -> int:
    elastic = watched.as_run("elastic", EPOCHS)
    static = _predict_static_run(watched)
    runs.draw_runs([static, elastic], png, "digits: elastic (measured) against static (predicted)")
    console.print(_comparison_table(watched, elastic, static))
    console.print(f"the picture: {png}")
    result = _result_fields(watched)
    print(json.dumps(result), flush=True)
    counted_once = result["examples_counted"] == result["examples_expected"]
    return 0 if result["grew"] and counted_once else 1


def _predict_static_run(watched: Trial) -> runs.Run:
    """Predict the run of a job that keeps its first size, from its speed before the decision to
    grow.

    After that decision the speed is no basis: the preparation of the larger generation slows the
    job, which would not happen to a static one.
    """
    began = _training_since(watched)
    last = _last_alone(watched)
    trained_s = max(last.reported_s - began, 1e-9)
    epoch = last.total_samples / EPOCHS * trained_s / last.samples
    total = began - watched.submitted_s + epoch * EPOCHS
    basis = BASIS.format(seconds=trained_s, epochs=last.samples * EPOCHS / last.total_samples)
    return runs.Run(name="static (predicted)", total_s=total, epoch_s=[epoch] * EPOCHS, basis=basis)


def _last_alone(watched: Trial) -> ProgressReported:
    """Return the last report of the first generation before the decision to grow, else its
    first.
    """
    later = [d.decided_s for d in watched.of(AllocationDecided) if d.generation > 1]
    grew_s = later[0] if later else math.inf
    reports: list[ProgressReported] = []
    for report in watched.of(ProgressReported):
        if report.generation == 1 and report.samples:
            reports.append(report)
    for report in reversed(reports):
        if report.reported_s <= grew_s:
            return report
    return reports[0]


def _training_since(watched: Trial) -> float:
    for stored in watched.heard:
        if isinstance(stored.message, TrainingResumed):
            return stored.stored_s
    raise Failed("the job never trained")


def _comparison_table(watched: Trial, elastic: runs.Run, static: runs.Run) -> Table:
    table = Table(title="digits, elastic against static", caption=static.basis)
    for heading in ("", "static (predicted)", "elastic (measured)"):
        table.add_column(heading, justify="right")
    ends = (elastic.epoch_s[-1], static.epoch_s[-1])
    table.add_row("total time", f"{static.total_s:.0f} s", f"{elastic.total_s:.0f} s")
    table.add_row("last epoch", f"{ends[1]:.2f} s", f"{ends[0]:.2f} s")
    finished_s = watched.of(JobFinished)[-1].finished_s
    mean = runs.utilisation(watched.cpu, watched.submitted_s, finished_s)
    table.add_row("utilisation, mean of the run", "", f"{mean:.0%}")
    return table


def _result_fields(watched: Trial) -> dict[str, Any]:
    finished = watched.of(JobFinished)[-1]
    decided = watched.of(AllocationDecided)
    resumed = watched.of(TrainingResumed)
    first = sizes(decided, resumed[0].generation)
    last = sizes(decided, resumed[-1].generation)
    pauses = [r.pause_s for r in resumed if r.pause_s is not None]
    return {
        "grew": last["ps"] > first["ps"] and last["worker"] > first["worker"],
        "generations": len(resumed),
        "examples_expected": watched.of(ProgressReported)[-1].total_samples,
        "examples_counted": finished.counted,
        "final_accuracy": round(finished.metrics.get("accuracy", 0.0), 4),
        "pause_s": round(max(pauses), 3) if pauses else None,
        "total_s": round(finished.finished_s - watched.submitted_s, 1),
        "cpu_limits_enforced": watched.enforced,
    }


# ---------------------------------------------------------------- the screen


class WatchedJob(Protocol):
    """A job that is watched: its messages, and the CPU time that its cluster used."""

    cpu: list[runs.CpuSample]

    def of(self, kind: type[Any]) -> list[Any]:
        """Return the messages of a kind, in the order of arrival."""


COLOURS = {"chief": "magenta", "ps": "cyan", "worker": "green"}
WIDTH, STEPS = 24, 20
WINDOW_S = 3.0
UTILISATION = f"utilisation, last {WINDOW_S:g} s"


def sizes(decided: list[AllocationDecided], generation: int) -> Counter[str]:
    """Return the number of tasks of each role that a generation has."""
    for decision in reversed(decided):
        if decision.generation == generation:
            return Counter(task.role for task in decision.tasks)
    return Counter()


def draw(watched: WatchedJob, event: str, now_s: float) -> Panel:
    reports, resumed = watched.of(ProgressReported), watched.of(TrainingResumed)
    figures = _figures(watched, reports, resumed, now_s)
    parts = Group(Text(event, style="bold"), _nodes(watched), figures)
    return Panel(parts, title="weir", width=100)


def _nodes(watched: WatchedJob) -> Table:
    table = Table("node", "cores held", "tasks", expand=True, box=None)
    nodes = {node.node: node for node in watched.of(CapacityChanged)}
    for name, node in sorted(nodes.items()):
        table.add_row(name, _cores(node), _tasks(node))
    return table


def _cores(node: CapacityChanged) -> Text:
    """Draw a bar: ours green, others' red, free dim."""
    own, others = _held_cores(node)
    own_cells = round(own / node.allocatable.cpu * STEPS)
    other_cells = round(others / node.allocatable.cpu * STEPS)
    free_cells = max(STEPS - own_cells - other_cells, 0)
    return Text.assemble(
        ("█" * own_cells, "green"), ("█" * other_cells, "red"), ("·" * free_cells, "dim")
    )


def _held_cores(node: CapacityChanged) -> tuple[float, float]:
    """Return the cores of our pods and of all others."""
    own = sum(pod.resources.cpu for pod in node.own)
    return own, node.allocatable.cpu - node.free.cpu - own


def _tasks(node: CapacityChanged) -> Text:
    _, others = _held_cores(node)
    text = Text("others " if others > 1e-6 else "", style="red")
    for pod in sorted(node.own, key=lambda pod: pod.pod):
        role, serial = pod.pod.rsplit("-", 2)[1:]
        strike = "strike" if pod.terminating else ""
        text.append(f"{role}-{serial} ", style=f"{COLOURS.get(role, '')} {strike}")
    return text


def _figures(
    watched: WatchedJob,
    reports: list[ProgressReported],
    resumed: list[TrainingResumed],
    now_s: float,
) -> Table:
    headings = ("generation", "step", "examples/s", "loss", UTILISATION, "last pause", "done")
    table = Table(*headings, box=None, expand=True)
    if not reports:
        return table
    last = reports[-1]
    pause = ""
    for start in resumed:
        if start.pause_s is not None:
            pause = format_duration(start.pause_s, fine=True)
    table.add_row(
        str(last.generation),
        str(last.step),
        f"{last.samples_per_second:,.0f}",
        "" if last.loss is None else f"{last.loss:.3f}",
        f"{runs.utilisation(watched.cpu, now_s - WINDOW_S, now_s):.0%}",
        pause,
        ProgressBar(total=last.total_samples, completed=last.samples, width=WIDTH),
    )
    return table


REPORT_S, STILL_S = 5.0, 15.0
"""Seconds between two lines of reports; the most seconds without a line."""


class ProgressLines:
    """The lines of a job's progress: the last one, its time, and the current event."""

    def __init__(self, report_s: float = REPORT_S, still_s: float = STILL_S) -> None:
        self.report_s, self.still_s = report_s, still_s
        self._event = ""
        self._event_s = 0.0
        self._line_s = 0.0
        self._report: ProgressReported | None = None

    def line(self, event: str, report: ProgressReported | None, now_s: float) -> str:
        """Return the next line; empty if there is none. `report`: the newest."""
        line = self._next_line(event, report, now_s)
        if line:
            self._line_s = now_s
        return line

    def _next_line(self, event: str, report: ProgressReported | None, now_s: float) -> str:
        if self._is_new(event, now_s):
            return event
        silent_s = now_s - self._line_s
        if report is not None and report is not self._report and silent_s >= self.report_s:
            self._report = report
            return sentence(report)
        if event and silent_s >= self.still_s:
            return f"{format_duration(now_s - self._event_s)} so far: {event}"
        return ""

    def heading(self, event: str, now_s: float) -> str:
        """Return the current event and its duration."""
        self._is_new(event, now_s)
        return f"{event} ({format_duration(now_s - self._event_s)})" if event else ""

    def _is_new(self, event: str, now_s: float) -> bool:
        """Return True if the event is new, and note its time."""
        if event == self._event:
            return False
        self._event, self._event_s = event, now_s
        return True
