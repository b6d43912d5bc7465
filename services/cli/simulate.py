"""`weir simulate`: run jobs on a simulated cluster, under one or more policies.

The decisions are those of the real allocator (see `services/whatif/simulator/`). The same seed
gives the same world to every policy. The command prints a table; options write the figures as JSON
and draw a picture. A page of help describes the files, with examples.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Rules
from services.cli.command_line import (
    ABOVE_ZERO,
    AT_LEAST_ZERO,
    FILE,
    Arguments,
    Value,
    command,
    flag,
    help_page,
    option,
    parse_policies,
)
from services.console.report import runs as runs_module
from services.console.report.runs import describe_different_jobs, runs_table
from services.console.text.cells import Terminal
from services.console.trouble import DONE, FAILED, WRONG_USE, Trouble
from services.whatif import event_log
from services.whatif.simulator import csv_files, recorded_run
from services.whatif.simulator import scenario as scenario_module
from services.whatif.simulator.outcome import Run, run_figures, timeline
from services.whatif.simulator.run import simulate
from services.whatif.simulator.scenario import Cluster, Scenario, Surface, Work
from shared.documents import InvalidFile
from shared.text import format_count

EXAMPLES = ("weir simulate --jobs jobs.csv --surfaces speeds.csv --cluster nodes.yaml",)
T = TypeVar("T")
WIDTH = 110  # of the table, without a terminal

JOBS = "job,submitted_s,model,samples,global_batch,ps,workers,max_workers\na,0,net,50000,64,1,2,8\n"
SPEEDS = "model,ps,workers,global_batch,samples_per_second\nnet,1,1,64,100.5\nnet,1,8,64,530.7\n"
LOSSES = "model,samples,loss\nnet,0,2.3\nnet,50000,0.4\n"
CLUSTER = """\
nodes: [{name: node, count: 3, cpu: 6, memory_gib: 16, gpu: 0}]
tenants: [{node: node-2, cpu: 6, from_s: 0, to_s: 120}]
quotas: {team-a: {cpu: 4, memory_gib: 8}}
"""


def _format_page(example: str) -> str:
    return "".join(f"  {line}\n" for line in example.splitlines())


FILE_FORMATS = f"""\
jobs (samples: in all epochs; global_batch: of all workers together)
{_format_page(JOBS)}  optional: min_ps, max_ps, min_workers, batch_min, batch_max, ps_cpu,
  worker_cpu, worker_gpu, device_batch_max, priority, namespace
surfaces (ps 0, or gpus in place of ps and workers: devices side by side)
{_format_page(SPEEDS)}cluster (as of `weir up`; tenants and quotas may be left out)
{_format_page(CLUSTER)}Times are seconds from the beginning, cpu is cores; more columns are allowed.
"""
USUAL = Scenario(jobs=(), cluster=Cluster(nodes=()), surfaces={})


@command(EXAMPLES)
@option("--jobs", type=FILE, metavar="CSV", help="the jobs: time, model, examples, bounds")
@option("--surfaces", type=FILE, metavar="CSV", help="each model's measured speeds")
@option("--cluster", type=FILE, metavar="YAML", help="the nodes, and tenants on them")
@option(
    "--from-log",
    type=FILE,
    metavar="LOG",
    help="instead of these: a log of `weir events --json`",
)
@option(
    "--policies",
    type=Value(parse_policies, offers=sorted(POLICIES)),
    default=(Rules().policy,),
    metavar="A,B",
    help=f"default: {Rules().policy}; of {', '.join(sorted(POLICIES))}, or module:function",
)
@option(
    "--restart-seconds",
    type=AT_LEAST_ZERO,
    metavar="S",
    help=f"the pause of each change (default: {USUAL.restart_s:g}, or the log's)",
)
@option(
    "--noise",
    type=AT_LEAST_ZERO,
    default=USUAL.noise,
    metavar="SHARE",
    help="speeds vary by this share, e.g. 0.03 (default: 0)",
)
@option(
    "--report-seconds",
    type=ABOVE_ZERO,
    metavar="S",
    help=f"interval of a job's reports (default: {USUAL.report_s:g}, or the log's)",
)
@option(
    "--reserve-after",
    type=AT_LEAST_ZERO,
    default=Rules().reserve_after_s,
    metavar="S",
    help=f"reserve capacity after this wait ({Rules().reserve_after_s:g}; 0: never)",
)
@option(
    "--seed",
    type=int,
    default=0,
    metavar="N",
    help="the same seed gives the same result (default: 0)",
)
@option("--json", type=FILE, metavar="OUT", help="write each policy's figures here")
@flag("--timeline", help="in the JSON: each job's allocation over time")
@option(
    "--picture",
    type=FILE,
    metavar="PNG",
    help="draw allocations, utilisation, completion times",
)
@help_page(
    "files",
    "the format of the files",
    FILE_FORMATS,
    "the format of these files, with examples",
)
@option(
    "--loss",
    type=FILE,
    metavar="CSV",
    help=f"loss curves, if known: {' then '.join(LOSSES.split()[:2])}",
    page="files",
)
def run(args: Arguments) -> int:
    if args.timeline and not args.json:
        raise Trouble("--timeline is written to the JSON: give --json OUT", WRONG_USE)
    before, world = _recorded_run(args) if args.from_log else ([], read_scenario(args))
    runs = [*before, *simulate_policies(world, args.policies, args.seed, args.reserve_after)]
    width = Terminal().width if sys.stdout.isatty() else WIDTH
    console = Terminal(width=width)
    console.print(runs_table(runs, width))
    if said := describe_different_jobs(runs):
        console.print(f"\n{said}", highlight=False)
    if args.json:
        _write_file(
            args.json,
            msgspec.json.format(msgspec.json.encode(figures_by_policy(runs, args.timeline))),
        )
    if args.picture:
        _draw_runs(runs, args.picture)
    return _report_failures(runs)


def _report_failures(runs: Sequence[Run]) -> int:
    """Print the first traceback of each policy that failed; return the exit code."""
    code = DONE
    for done in runs:
        if not done.failures:
            continue
        code = FAILED
        first = done.failures[0]
        jobs = format_count(len({failure.job for failure in done.failures}), "job")
        error = f"policy {done.policy} failed with {jobs}; {first.job}: {first.reason}"
        print(f"{first.traceback}{error}", file=sys.stderr)
    return code


def simulate_policies(
    world: Scenario,
    names: Sequence[str],
    seed: int,
    reserve_after_s: float = Rules().reserve_after_s,
) -> Iterator[Run]:
    """Yield a run for each policy; show a progress bar of the finished jobs meanwhile."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[day]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        for name in names:
            line = bar.add_task(name, total=len(world.jobs), day="")

            def watch(over: int, now: float, line: Any = line) -> None:
                bar.update(line, completed=over, day=f"at {now:,.0f} s")

            rules = Rules(policy=name, reserve_after_s=reserve_after_s)
            yield simulate(world, rules, seed, time.perf_counter, watch)


def figures_by_policy(runs: Sequence[Run], with_timeline: bool) -> dict[str, dict[str, Any]]:
    """Return the JSON document: the figures of each policy, by its name."""
    figures: dict[str, dict[str, Any]] = {}
    for done in runs:
        figures[done.policy] = dict(run_figures(done))
        if with_timeline:
            figures[done.policy]["timeline"] = timeline(done)
    return figures


# ---------------------------------------------------------------- files


def read_scenario(args: Arguments) -> Scenario:
    """Return the scenario in the files. Raise `Trouble` with every error in every file."""
    missing = [f"--{name}" for name in ("jobs", "surfaces", "cluster") if not getattr(args, name)]
    if missing:
        raise Trouble(f"{' and '.join(missing)} must be given, or --from-log", WRONG_USE)
    reasons: list[str] = []
    surfaces = _read_file(args.surfaces, csv_files.read_surfaces, reasons)
    losses = _read_file(args.loss, csv_files.read_losses, reasons) if args.loss else {}
    jobs = _read_file(args.jobs, _job_reader(surfaces), reasons)
    cluster = _read_file(args.cluster, scenario_module.read_cluster, reasons)
    if surfaces is None or losses is None or jobs is None or cluster is None:
        raise _unusable_files(reasons)
    return _with_options(
        args, Scenario(jobs=jobs, cluster=cluster, surfaces=surfaces, losses=losses)
    )


def _recorded_run(args: Arguments) -> tuple[list[Run], Scenario]:
    """Return the recorded run in the log, and its scenario."""
    names = ("jobs", "surfaces", "loss", "cluster")
    given = [f"--{name}" for name in names if getattr(args, name)]
    if given:
        raise Trouble(
            f"{', '.join(given)} cannot be given with --from-log: the log has the same data",
            WRONG_USE,
        )
    reasons: list[str] = []
    log = _read_file(args.from_log, event_log.read_log, reasons)
    if log is None:
        raise _unusable_files(reasons)
    found = recorded_run.read_recorded_run(log)
    if found.left_out:
        print(f"left out, without any report: {', '.join(found.left_out)}", file=sys.stderr)
    return [found.run], _with_options(args, found.scenario)


def _with_options(args: Arguments, world: Scenario) -> Scenario:
    restart_s = world.restart_s if args.restart_seconds is None else args.restart_seconds
    report_s = world.report_s if args.report_seconds is None else args.report_seconds
    return replace(world, restart_s=restart_s, report_s=report_s, noise=args.noise)


def _unusable_files(reasons: Sequence[str]) -> Trouble:
    lines = [
        "these files cannot be used:",
        *reasons,
        "`weir simulate --help-files` shows their format",
    ]
    return Trouble("\n".join(lines), WRONG_USE)


def _job_reader(surfaces: dict[str, Surface] | None) -> Callable[[str], tuple[Work, ...]]:
    return lambda text: csv_files.read_jobs(text, surfaces)


def _read_file(path: Path, parse: Callable[[str], T], reasons: list[str]) -> T | None:
    try:
        return parse(path.read_text("utf-8"))
    except InvalidFile as bad:
        reasons += [f"  {path}: {line}" for line in str(bad).splitlines()]
    except OSError as error:
        reasons.append(f"  {path}: {error.strerror}")
    except UnicodeDecodeError as error:
        reasons.append(f"  {path}: is not text in UTF-8: {error.reason}")
    return None


def _write_file(path: Path, body: bytes) -> None:
    try:
        path.write_bytes(body + b"\n")
    except OSError as error:
        raise Trouble(f"cannot write {path}: {error.strerror}; give another path") from error


def _draw_runs(runs: Sequence[Run], path: Path) -> None:
    try:
        runs_module.draw_simulated_runs(runs, path)
    except ModuleNotFoundError as error:
        raise Trouble(
            f"no picture: {error.name} is not installed (pip install 'weir[local]')"
        ) from error
    except OSError as error:
        raise Trouble(f"cannot write {path}: {error.strerror}; give another path") from error
