"""The findings about a program beside its job: memory of parameter servers, number of batches.

With S(n) the bytes on the fullest of n ps, largest variable first to the emptiest ps
(`scaling.py`), each with its share of the optimizer's slots, a ps needs at least `PS_GIB` + S(n),
and another S(n) while the next generation is prepared beside it. When it starts it may need
`INITIALISER_COPIES` of the largest variable besides. The chief builds the model once by itself, and
to evaluate it holds the weights twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from services.trainer.doctor.findings import (
    Finding,
    advice_finding,
    fine_finding,
    format_bytes,
    wrong_finding,
)
from services.trainer.doctor.observations import Observations, VariableInfo
from services.trainer.worker.scaling import largest_first
from shared.messages import JobRequested, RoleResources
from shared.text import format_count

GIB = 1 << 30
PS_GIB = 0.3
CHIEF_GIB = 0.6
WORKER_GIB = 0.5
"""What a task takes before it holds anything, with TensorFlow 2.21. Measured were, of resident
memory, 0.16 for a ps, 0.37 for a worker and 0.47 for a chief where eight tasks shared their pages,
and 0.37 and 0.65 where nobody did.
"""
INITIALISER_COPIES = 2
"""A Keras initialiser makes the first values in three operations, and their results stay with the
ps (measured).
"""
SAME_WITHIN = 1.05
"""A fullest ps that is smaller by less than this factor is no smaller."""


def job_findings(here: Observations, job: JobRequested, rows_example: str) -> Iterator[Finding]:
    tasks = job.resources or RoleResources()
    if here.examples:
        yield from _batch_findings(here.examples, job)
    if here.variables:
        yield from _ps_findings(here.variables, here.slots, job, tasks.ps.memory_gib, rows_example)
        yield from _chief_findings(here, tasks.chief.memory_gib)
    if here.loaded_gib and tasks.worker.memory_gib:
        yield from _worker_findings(here.loaded_gib, tasks.worker.memory_gib)


def _batch_findings(examples: int, job: JobRequested) -> Iterator[Finding]:
    if job.batch.max > examples:
        what = f"batch may grow to {job.batch.max}, and an epoch has {format_count(examples, 'example')}"
        yield advice_finding(
            what, f"batch.max of at most {examples}: no batch goes beyond an epoch"
        )
    most = ceil(examples / min(job.batch.start, examples))
    if job.workers.max > most:
        what = f"an epoch has {format_count(most, 'batch')} of {job.batch.start}, and workers.max is {job.workers.max}"
        yield advice_finding(
            what,
            f"workers.max of at most {most}, or a smaller batch: a worker without a batch waits",
        )


# ---------------------------------------------------------------- parameter servers


def fullest_ps_bytes(variables: Sequence[VariableInfo], slots: int, ps: int) -> float:
    """Return the bytes on the ps that holds most, with the optimizer's slots."""
    sizes, held = [v.bytes for v in variables], [0] * ps
    for count, which in zip(sizes, largest_first(sizes, ps), strict=True):
        held[which] += count
    return max(held) * (1 + slots / max(sum(sizes), 1))


def useful_ps(variables: Sequence[VariableInfo], slots: int, most: int) -> int:
    """Return the smallest number of ps whose fullest is as small as with `most`."""
    least = fullest_ps_bytes(variables, slots, most)
    return next(
        ps
        for ps in range(1, most + 1)
        if fullest_ps_bytes(variables, slots, ps) <= SAME_WITHIN * least
    )


def _ps_findings(
    variables: Sequence[VariableInfo],
    slots: int,
    job: JobRequested,
    memory_gib: float,
    rows_example: str,
) -> Iterator[Finding]:
    useful = useful_ps(variables, slots, job.ps.max)
    if useful < job.ps.max:
        largest = max(variables, key=lambda v: v.bytes)
        what = f"ps.max is {job.ps.max}, and more than {useful} do not reduce the load of the fullest ps"
        why = f"a variable is never divided, and {largest.name} has {format_bytes(largest.bytes)}"
        yield advice_finding(what, f"ps.max of {useful}: {why}")
    if memory_gib:
        yield _ps_memory_finding(variables, slots, job, memory_gib, rows_example)


def _ps_memory_finding(
    variables: Sequence[VariableInfo],
    slots: int,
    job: JobRequested,
    memory_gib: float,
    rows_example: str,
) -> Finding:
    """Compare the memory of a ps with its share, and with that of the next generation beside it."""
    held = fullest_ps_bytes(variables, slots, job.ps.min) / GIB
    share = (
        f"of {job.ps.min} ps the fullest holds {held:.2f} GiB, besides TensorFlow's {PS_GIB:g} GiB"
    )
    if PS_GIB + held > memory_gib:
        return _ps_too_small(variables, slots, job, memory_gib, share)
    start = PS_GIB + held + INITIALISER_COPIES * max(v.bytes for v in variables) / GIB
    if start > memory_gib:
        remedy = (
            f"{start:.2f} GiB, or create initial values in one tf.function, as in {rows_example}"
        )
        return advice_finding(
            f"{share}: its {memory_gib:g} GiB may be too little at the start, because initialisers make copies",
            remedy,
        )
    if PS_GIB + 2 * held > memory_gib:
        remedy = f"{PS_GIB + 2 * held:.2f} GiB; with less, every change of size restarts the job"
        return advice_finding(f"{share}: {_doubled_memory('no room', memory_gib)}", remedy)
    return fine_finding(f"{share}: {_doubled_memory('room', memory_gib)}")


def _doubled_memory(room: str, memory_gib: float) -> str:
    """Describe the memory for a change of size, which is prepared in the same pods."""
    return f"its {memory_gib:g} GiB have {room} for twice that, which a change of size needs"


def _ps_too_small(
    variables: Sequence[VariableInfo], slots: int, job: JobRequested, memory_gib: float, share: str
) -> Finding:
    largest = max(variables, key=lambda v: v.bytes)
    alone = (
        fullest_ps_bytes(
            [largest], round(slots * largest.bytes / max(sum(v.bytes for v in variables), 1)), 1
        )
        / GIB
    )
    if PS_GIB + alone > memory_gib:
        what = (
            f"{largest.name} alone needs {PS_GIB + alone:.2f} GiB on a ps, which has {memory_gib:g}"
        )
        return wrong_finding(
            what,
            f"more memory for ps, or several smaller tables in place of {largest.name}: a table is never divided",
        )
    fits = (
        n
        for n in range(job.ps.min, job.ps.max + 1)
        if PS_GIB + fullest_ps_bytes(variables, slots, n) / GIB <= memory_gib
    )
    needed = next(fits, None)
    remedy = f"{PS_GIB + fullest_ps_bytes(variables, slots, job.ps.min) / GIB:.2f} GiB for ps"
    return wrong_finding(
        f"{share}: more than its {memory_gib:g} GiB",
        f"{remedy}, or ps.min of {needed}" if needed else remedy,
    )


# ---------------------------------------------------------------- chief and workers


def _chief_findings(here: Observations, memory_gib: float) -> Iterator[Finding]:
    held = sum(v.bytes for v in here.variables or ()) / GIB
    needs = CHIEF_GIB + held * (2 if here.evaluated else 1)
    if memory_gib and needs > memory_gib:
        why = "it builds the model once more to learn its sizes" + (
            ", and to evaluate it" if here.evaluated else ""
        )
        yield wrong_finding(
            f"the chief needs {needs:.2f} GiB and has {memory_gib:g}: {why}",
            "more memory for the chief",
        )


def _worker_findings(loaded_gib: float, memory_gib: float) -> Iterator[Finding]:
    needs, import_ = WORKER_GIB + loaded_gib, f"the program's import takes {loaded_gib:.2f} GiB"
    if needs > memory_gib:
        what = f"a worker needs {needs:.2f} GiB and has {memory_gib:g}: {import_}"
        yield wrong_finding(what, "more memory for workers, or data that is read as it is needed")
    elif needs + loaded_gib > memory_gib:
        remedy = f"{needs + loaded_gib:.2f} GiB for workers; with less, every change of size restarts the job"
        yield advice_finding(
            f"{import_}: a worker's {_doubled_memory('no room', memory_gib).removeprefix('its ')}",
            remedy,
        )
