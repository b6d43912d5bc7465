"""The CSV files that anybody can hand in: speeds, loss curves, jobs. Every reason against a file is told at once.

surfaces   model, ps, workers, global_batch, samples_per_second;  or `gpus` in place of ps and workers (ps = 0)
loss       model, samples, loss
jobs       see `JOBS`; empty or absent optional cells take the defaults named in `_work`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from services.allocator.simulator.losses import Curve
from services.allocator.simulator.scenario import Work
from services.allocator.simulator.surfaces import Measured, Surface
from services.allocator.simulator.tables import Bad, Column, Reason, Row, Table, amount, label, number, table, whole
from shared.messages import Span

SERVED = (Column("ps", whole(0)), Column("workers", whole(1)))
ALONE = (Column("gpus", whole(1)),)
SPEEDS = (
    Column("model", str),
    Column("global_batch", whole(1)),
    Column("samples_per_second", number(0.0, above=True)),
    Column("mode", str, optional=True),
)
LOSSES = (Column("model", str), Column("samples", number(0.0)), Column("loss", number(float("-inf"))))
JOBS = (
    Column("job", str),
    Column("submitted_s", number(0.0)),
    Column("model", str),
    Column("samples", amount),
    Column("global_batch", whole(1)),
    *(Column(name, whole(0), optional=True) for name in ("ps", "min_ps", "max_ps")),
    *(Column(name, whole(1), optional=True) for name in ("workers", "min_workers", "max_workers")),
    *(Column(name, whole(1), optional=True) for name in ("batch_min", "batch_max", "device_batch_max")),
    *(Column(name, number(0.0), optional=True) for name in ("ps_cpu", "worker_cpu")),
    Column("worker_gpu", whole(0), optional=True),
    Column("priority", whole(-1_000_000), optional=True, default=0),
    Column("namespace", label, optional=True, default="default"),
)
Speeds = Mapping[str, Surface]


# ---------------------------------------------------------------- speeds and losses


def surfaces(text: str) -> dict[str, Surface]:
    """Each model's true speeds; raises `Bad`."""
    read = table(text, (*_form(text), *SPEEDS))
    _raise(read, _two_modes(read))
    points: dict[str, list[Measured]] = {}
    for row in read.rows:
        points.setdefault(row.cells["model"], []).append(_measured(row.cells))
    return {model: Surface(known) for model, known in points.items()}


def _form(text: str) -> tuple[Column, ...]:
    header = [cell.strip(' "') for cell in text.removeprefix("\ufeff").lstrip().partition("\n")[0].split(",")]
    return ALONE if "gpus" in header and "workers" not in header else SERVED


def _measured(cells: Mapping[str, Any]) -> Measured:
    ps, workers = (0, cells["gpus"]) if "gpus" in cells else (cells["ps"], cells["workers"])
    return Measured(ps, workers, cells["global_batch"], cells["samples_per_second"])


def _two_modes(read: Table) -> Iterator[Reason]:
    modes: dict[str, str | None] = {}
    for row in read.rows:
        model, mode = row.cells["model"], row.cells["mode"]
        if modes.setdefault(model, mode) != mode:
            yield read.against(row, "mode", f"{model} is there as {modes[model]!r} already: one mode a model")


def losses(text: str) -> dict[str, Curve]:
    """Each model's loss curve; raises `Bad`."""
    read = table(text, LOSSES)
    _raise(read, ())
    points: dict[str, list[tuple[float, float]]] = {}
    for row in read.rows:
        points.setdefault(row.cells["model"], []).append((row.cells["samples"], row.cells["loss"]))
    return {model: Curve(known) for model, known in points.items()}


# ---------------------------------------------------------------- jobs


def jobs(text: str, measured: Speeds | None) -> tuple[Work, ...]:
    """In the order of submission; raises `Bad`. `measured` None: speeds that could not be read; models go unchecked."""
    read = table(text, JOBS)
    works = [_work(row.cells, (measured or {}).get(row.cells["model"])) for row in read.rows]
    checked = zip(read.rows, works, strict=True)
    _raise(read, [*_named_twice(read), *(why for row, work in checked for why in _wrong(read, row, work, measured))])
    return tuple(sorted(works, key=lambda work: work.submitted_s))


def _work(cells: Mapping[str, Any], surface: Surface | None) -> Work:
    """Defaults: 1 ps if the model was measured with ps, 1 worker; from 1 up to the largest number measured, if that
    is not less than the start; a fixed batch; a core a task, or without ps a device a worker.
    """
    given = {name: value for name, value in cells.items() if value is not None}
    ps = given.get("ps", 1 if surface is None or surface.served is not None else 0)
    workers, batch = given.get("workers", 1), cells["global_batch"]
    most_ps = max(ps, surface.most_ps if surface and ps else 0)
    most_workers = max(workers, surface.most_workers if surface else 0)
    return Work(
        job=cells["job"],
        model=cells["model"],
        samples=cells["samples"],
        submitted_s=cells["submitted_s"],
        batch=_span(given, batch, ("batch_min", batch), ("batch_max", batch)),
        ps=_span(given, ps, ("min_ps", min(1, ps)), ("max_ps", most_ps)),
        workers=_span(given, workers, ("min_workers", 1), ("max_workers", most_workers)),
        device_batch_max=cells["device_batch_max"],
        ps_cpu=given.get("ps_cpu", 1.0),
        worker_cpu=given.get("worker_cpu", 1.0 if ps else 0.0),
        worker_gpu=given.get("worker_gpu", 0 if ps else 1),
        priority=cells["priority"],
        namespace=cells["namespace"],
    )


def _span(given: Mapping[str, int], start: int, least: tuple[str, int], most: tuple[str, int]) -> Span:
    return Span(start=start, min=given.get(*least), max=given.get(*most))


def _wrong(read: Table, row: Row, work: Work, measured: Speeds | None) -> Iterator[Reason]:
    for name, span in (("global_batch", work.batch), ("ps", work.ps), ("workers", work.workers)):
        if not span.min <= span.start <= span.max:
            yield read.against(row, name, f"min {span.min} <= {span.start} <= max {span.max} does not hold")
    if work.ps.min == 0 < work.ps.max:
        yield read.against(row, "ps", f"0 ps means none throughout, but up to {work.ps.max} are allowed")
    if measured is None:
        return
    surface = measured.get(work.model)
    if surface is None:
        yield read.against(row, "model", f"the speeds of {work.model!r} were not measured")
    elif surface.speed(work.ps.start, work.workers.start, work.batch.start) == 0:
        form = "with" if work.ps.start else "without"
        yield read.against(row, "ps", f"{work.model!r} was not measured {form} ps")


def _named_twice(read: Table) -> Iterator[Reason]:
    times = Counter(row.cells["job"] for row in read.rows)
    for row in read.rows:
        if times[row.cells["job"]] > 1:
            yield read.against(row, "job", f"{row.cells['job']!r} is there {times[row.cells['job']]} times")


def _raise(read: Table, more: Iterator[Reason] | list[Reason] | tuple[Reason, ...]) -> None:
    reasons = [*read.reasons, *more]
    if reasons:
        raise Bad(reasons)
