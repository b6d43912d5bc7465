"""Tests of `weir simulate`: input files, the table, the figures as JSON, and the plot.

The numbers in the files are invented.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from services.__main__ import weir
from services.console.report import runs as runs_module
from services.whatif.simulator.outcome import JobRecord, Run
from services.whatif.simulator.scenario import Work
from shared.messages import AllocationDecided, JobFinished, Message, Span, TaskPlan
from tests.allocator.builders import EVEN, ONE_CORE, accepted, node, progress, request, resumed
from tests.whatif.simulator.test_recorded_run import line

SURFACES = "model,ps,workers,global_batch,samples_per_second\n" + "".join(
    f"net,{ps},{workers},64,{100 * workers**0.8:.1f}\n" for ps in (1, 2) for workers in (1, 2, 4, 8)
)
JOBS = "job,submitted_s,model,samples,global_batch,ps,workers,max_workers\n" + "".join(
    f"job-{number},{30 * number},net,{20_000 + 5_000 * number},64,1,1,8\n" for number in range(6)
)
CLUSTER = (
    "nodes:\n  - {count: 3, cpu: 6, memory_gib: 16}\ntenants:\n  - {node: node-2, cpu: 6, from_s:"
    " 0, to_s: 120}\n"
)
LOSS = "model,samples,loss\nnet,0,2.0\nnet,20000,0.5\n"
FIGURES = {
    "jct_mean_s",
    "jct_median_s",
    "jct_p95_s",
    "makespan_s",
    "utilisation",
    "completed",
    "resizes",
    "paused_s",
}
FIGURES |= {"decision_ms_p50", "decision_ms_p99", "wait_max_s"}

ROLES: tuple[Any, ...] = ("chief", "ps", "worker")
DECIDED = AllocationDecided(
    job="mnist",
    uid=1,
    generation=1,
    revision=1,
    request=request(resources=EVEN),
    tasks=tuple(
        TaskPlan(role=role, index=0, serial=serial, node="n1", resources=ONE_CORE)
        for serial, role in enumerate(ROLES)
    ),
    batch=32,
    reason="-",
)
FINISHED = JobFinished(job="mnist", uid=1, generation=1, outcome="succeeded")
SAID: tuple[tuple[Message, float], ...] = (
    (node(), 0.0),
    (accepted(request(resources=EVEN)), 0.0),
    (accepted(request("silent"), uid=2), 1.0),
    (DECIDED, 1.0),
    (resumed(1), 10.0),
    (progress(1, done=500, total=1000, speed=10.0), 60.0),
    (FINISHED, 110.0),
)
STORY = [
    (message, 1_000_000.0 + at_s, number) for number, (message, at_s) in enumerate(SAID, start=1)
]
"""A job of 1,000 examples at 10 examples/s, and an accepted job without further messages."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (
        ("jobs.csv", JOBS),
        ("surfaces.csv", SURFACES),
        ("cluster.yaml", CLUSTER),
        ("loss.csv", LOSS),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


def simulate(folder: Path, *more: object) -> int:
    files = (
        "--jobs",
        folder / "jobs.csv",
        "--surfaces",
        folder / "surfaces.csv",
        "--cluster",
        folder / "cluster.yaml",
    )
    return weir(["simulate", *map(str, files), *map(str, more)])


def told(folder: Path, *more: object) -> dict[str, Any]:
    assert simulate(folder, "--json", folder / "out.json", *more) == 0
    read: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return read


def test_each_policy_has_its_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = told(
        folder, "--policies", "static,config-manager", "--restart-seconds", "5", "--noise", "0.03"
    )
    assert list(figures) == ["static", "config-manager"]
    assert all(set(of) >= FIGURES and "timeline" not in of for of in figures.values())
    assert figures["static"]["completed"] == figures["config-manager"]["completed"] == 6
    assert figures["static"]["resizes"] == 0 < figures["config-manager"]["resizes"]
    assert figures["config-manager"]["makespan_s"] < figures["static"]["makespan_s"]
    shown = capsys.readouterr().out
    assert (
        "POLICY" in shown and "config-manager" in shown and "6 of 6" in shown and "…" not in shown
    )


def test_the_longest_wait_is_shown_and_reservations_can_be_disabled(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = JOBS.splitlines()[0]
    small = [f"small-{number},{5 * number},net,3000,64,1,1,1" for number in range(60)]
    large = ["large,12,net,1000,64,1,5,5,5"]
    rows = [f"{row},1" for row in small] + large
    (folder / "jobs.csv").write_text("\n".join([f"{header},min_workers", *rows]) + "\n")
    (folder / "cluster.yaml").write_text("nodes:\n  - {count: 1, cpu: 6, memory_gib: 16}\n")
    asked = ("--policies", "static", "--restart-seconds", "1", "--reserve-after")
    waits = {after: told(folder, *asked, after)["static"]["wait_max_s"] for after in (0, 60)}
    assert waits[60] < waits[0]
    assert "MAX WAIT s" in capsys.readouterr().out


def test_the_timeline_has_every_jobs_allocation(folder: Path) -> None:
    timeline = told(folder, "--policies", "config-manager", "--timeline")["config-manager"][
        "timeline"
    ]
    assert list(timeline) == [f"job-{number}" for number in range(6)]
    assert all(steps[-1][1:] == [0, 0, 0] and steps[0][1] == 1 for steps in timeline.values())


def test_the_same_seed_gives_the_same_file(folder: Path) -> None:
    def figures(seed: int) -> dict[str, Any]:
        read = told(
            folder, "--policies", "config-manager", "--noise", "0.1", "--timeline", "--seed", seed
        )
        return {
            name: value
            for name, value in read["config-manager"].items()
            if not name.startswith("decision_ms")
        }

    assert figures(3) == figures(3) != figures(4)


def test_loss_files_are_read(folder: Path) -> None:
    assert (
        told(folder, "--loss", folder / "loss.csv", "--policies", "static")["static"]["completed"]
        == 6
    )


def test_a_plot_is_drawn(folder: Path) -> None:
    assert (
        simulate(folder, "--policies", "static,config-manager", "--picture", folder / "out.png")
        == 0
    )
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG") and (
        folder / "out.png"
    ).stat().st_size > 20_000


def test_a_plot_has_job_names_axis_labels_and_a_legend() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    span, sizes = Span(start=1, min=1, max=4), [(60.0, 1, 1, 32), (90.0, 1, 3, 32)]
    works = [
        Work(job=name, model="net", samples=9, batch=span, ps=span, workers=span)
        for name in ("digits", "waves")
    ]
    records = tuple(
        JobRecord(work=work, finished_s=200.0, outcome="succeeded", sizes=sizes) for work in works
    )
    many = tuple(
        JobRecord(work=replace(works[0], job=f"job-{number}"), sizes=sizes) for number in range(100)
    )
    runs = [
        Run(policy="weir", records=each, held=(), decision_ms=(), ended_s=200.0)
        for each in (records, many)
    ]

    figure = runs_module.plot_simulated_runs(runs)
    jobs, used, times, crowd, *_, last = figure.axes
    pyplot.close(figure)

    assert [tick.get_text() for tick in jobs.get_yticklabels()] == ["digits", "waves"]
    assert (
        10 <= len(crowd.get_yticks()) <= runs_module.NAMES_MOST
        and crowd.get_yticklabels()[0].get_text() == "job-0"
    )
    meanings = [text.get_text() for text in figure.legends[0].get_texts()]
    assert meanings == ["waits", "1 ps or worker", "4 ps and workers"]
    assert used.get_ylabel() and times.get_ylabel() == "share of the jobs that ended"
    assert last.get_xlabel() == "seconds since the job's own submission"


def test_every_error_of_every_file_is_listed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "jobs.csv").write_text(JOBS.replace("20000", "few").replace("25000", "-1"))
    (folder / "surfaces.csv").write_text(SURFACES.replace("100.0", "0"))
    (folder / "cluster.yaml").write_text(CLUSTER.replace("count: 3", "count: none"))
    assert simulate(folder, "--loss", folder / "none.csv") == 2
    reasons = capsys.readouterr().err.splitlines()
    assert [line.removeprefix(f"  {folder}/") for line in reasons] == [
        "weir simulate: these files cannot be used:",
        "surfaces.csv: line 2, column 5 (samples_per_second): 0 is not above 0",
        "surfaces.csv: line 6, column 5 (samples_per_second): 0 is not above 0",
        "none.csv: No such file or directory",
        "jobs.csv: line 2, column 4 (samples): 'few' is not a number",
        "jobs.csv: line 3, column 4 (samples): -1 is not above 0",
        "cluster.yaml: line 2, column 13: nodes[0].count: Expected `int`, got 'none'",
        "`weir simulate --help-files` shows their format",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("--policies", "best"),
        ("--noise", "-1"),
        ("--restart-seconds", "soon"),
        ("--report-seconds", "0"),
        ("--reserve-after", "-1"),
    ],
)
def test_wrong_options_end_with_2(
    folder: Path, words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(folder, *words) == 2
    assert words[0] in capsys.readouterr().err


def test_a_timeline_needs_an_output_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(folder, "--timeline") == 2
    assert "give --json OUT" in capsys.readouterr().err


def test_an_unwritable_file_is_an_error_without_a_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(folder, "--json", folder / "no" / "out.json") == 1
    assert "cannot write" in capsys.readouterr().err


# ---------------------------------------------------------------- replay of a log


def test_a_replay_is_shown_beside_the_recorded_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "log").write_bytes(b"\n".join(line(*one) for one in STORY))
    words = [
        "simulate",
        "--from-log",
        folder / "log",
        "--policies",
        "static",
        "--json",
        folder / "out.json",
    ]
    assert weir([*map(str, words)]) == 0
    figures = json.loads((folder / "out.json").read_text())
    assert list(figures) == ["recorded", "static"]
    assert figures["recorded"]["makespan_s"] == 110.0 and figures["static"][
        "makespan_s"
    ] == pytest.approx(101.0)
    assert figures["recorded"]["decision_ms_p50"] is None
    told = capsys.readouterr()
    assert "left out, without any report: silent" in told.err and "recorded" in told.out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "--jobs and --surfaces and --cluster must be given, or --from-log"),
        (["--from-log", "log", "--jobs", "jobs.csv"], "--jobs cannot be given with --from-log"),
        (["--from-log", "nowhere"], "nowhere: No such file or directory"),
    ],
)
def test_two_sources_of_jobs_are_wrong_use(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert weir(["simulate", *words]) == 2
    assert why in capsys.readouterr().err
