"""The findings about a program beside its job: memory of parameter servers, number of batches.

With S(n) the bytes on the fullest of n ps, largest variable first to the emptiest ps
(`scaling.py`), each with its share of the optimizer's slots, a ps needs at least `PS_GIB` + S(n),
and another `NEXT_PS_GIB` + S(n) while the next generation is prepared beside it. When it starts it
may need `INITIALISER_COPIES` of the largest variable besides. The chief builds the model once by
itself, and to evaluate it holds the weights twice.
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
from services.trainer.worker import ps_memory
from services.trainer.worker.ps_memory import MARK_BYTES, NEXT_PS_GIB, PS_GIB
from shared.messages import DEFAULT_CONSISTENCY, GIB, JobRequested, RoleResources
from shared.text import format_count

CHIEF_GIB = 0.6
WORKER_GIB = 0.5
"""Memory of a task before it holds anything, with TensorFlow 2.21. Measured resident memory:
0.37 for a worker and 0.47 for a chief if eight tasks share their pages; 0.65 for a chief without
sharing.
"""
INITIALISER_COPIES = 2
"""A Keras initialiser makes its values in three operations, whose results stay on the ps
(measured).
"""
SMALL_DELTA = 0.05
"""Of the tables on a ps. With memory for fewer changed rows, training often stands still."""
SAME_WITHIN = 1.05
"""Loads of the fullest ps within this factor count as equal."""


def job_findings(here: Observations, job: JobRequested) -> Iterator[Finding]:
    tasks = job.resources or RoleResources()
    if here.files:
        yield from _file_findings(here.files, job.workers.max)
    elif here.examples:
        yield from _batch_findings(here.examples, job)
    if here.variables:
        yield from _ps_findings(here.variables, here.slots, job, tasks.ps.memory_gib)
        yield from _chief_findings(here, tasks.chief.memory_gib)
    if here.loaded_gib and tasks.worker.memory_gib:
        yield from _worker_findings(here.loaded_gib, tasks.worker.memory_gib)


def _file_findings(files: int, workers: int) -> Iterator[Finding]:
    if workers > files:
        what = f"workers.max is {workers}, and files() returns {format_count(files, 'file')}"
        remedy = "several files for each worker: a worker without a file waits"
        yield advice_finding(what, remedy)


def _batch_findings(examples: int, job: JobRequested) -> Iterator[Finding]:
    if job.batch.max > examples:
        epoch = f"an epoch has {format_count(examples, 'example')}"
        remedy = f"batch.max of at most {examples}: no batch goes beyond an epoch"
        yield advice_finding(f"batch may grow to {job.batch.max}, and {epoch}", remedy)
    if (job.consistency or DEFAULT_CONSISTENCY) != "async":
        if job.workers.max > job.batch.start:
            update = f"an update has {format_count(job.batch.start, 'example')}"
            remedy = f"workers.max of at most {job.batch.start}: a worker without an example waits"
            yield advice_finding(f"{update}, and workers.max is {job.workers.max}", remedy)
        return
    batches = ceil(examples / min(job.batch.start, examples))
    if job.workers.max > batches:
        epoch = f"an epoch has {format_count(batches, 'batch')} of {job.batch.start}"
        remedy = (
            f"workers.max of at most {batches}, or a smaller batch: a worker without a batch waits"
        )
        yield advice_finding(f"{epoch}, and workers.max is {job.workers.max}", remedy)


# ---------------------------------------------------------------- parameter servers


def fullest_ps_bytes(variables: Sequence[VariableInfo], slots: int, ps: int) -> float:
    """Return the bytes on the fullest of `ps` parameter servers, with the optimizer's slots and the
    marks of tables.
    """
    sizes = [v.bytes for v in variables if not v.divided]
    tables = sum([v.bytes for v in variables if v.divided])
    marks = sum([MARK_BYTES * v.shape[0] for v in variables if v.divided])
    held = ps_memory.fullest_ps_bytes(sizes, tables, ps)
    return held * (1 + slots / max(tables + sum(sizes), 1)) + marks / ps


def _largest_whole(variables: Sequence[VariableInfo]) -> VariableInfo | None:
    """Return the largest variable that is on one ps; None: all are divided."""
    whole = [v for v in variables if not v.divided]
    return max(whole, key=lambda v: v.bytes, default=None)


def useful_ps(variables: Sequence[VariableInfo], slots: int, most: int) -> int:
    """Return the smallest number of ps whose fullest ps is no fuller than with `most` ps."""
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
) -> Iterator[Finding]:
    useful = useful_ps(variables, slots, job.ps.max)
    largest = _largest_whole(variables)
    if useful < job.ps.max and largest is not None:
        what = (
            f"ps.max is {job.ps.max}, and more than {useful} do not reduce the load of the"
            " fullest ps"
        )
        why = f"{largest.name} has {format_bytes(largest.bytes)}, and lies on one ps"
        yield advice_finding(what, f"ps.max of {useful}: {why}")
    if memory_gib:
        yield _ps_memory_finding(variables, slots, job, memory_gib)


def _ps_memory_finding(
    variables: Sequence[VariableInfo],
    slots: int,
    job: JobRequested,
    memory_gib: float,
) -> Finding:
    """Compare the memory of a ps with its share, and with that of the next generation beside it."""
    held = fullest_ps_bytes(variables, slots, job.ps.min) / GIB
    share = (
        f"of {job.ps.min} ps the fullest holds {held:.2f} GiB, besides TensorFlow's {PS_GIB:g} GiB"
    )
    if PS_GIB + held > memory_gib:
        return _ps_too_small(variables, slots, job, memory_gib, share)
    largest = _largest_whole(variables)
    copied = largest.bytes if largest is not None else 0
    start = PS_GIB + held + INITIALISER_COPIES * copied / GIB
    if start > memory_gib:
        remedy = f"{start:.2f} GiB, or create initial values in one tf.function"
        short = f"its {memory_gib:g} GiB may be too little at the start"
        return advice_finding(f"{share}: {short}, because initialisers make copies", remedy)
    both = PS_GIB + NEXT_PS_GIB + 2 * held
    if both > memory_gib:
        remedy = f"{both:.2f} GiB; with less, every change of size restarts the job"
        return advice_finding(f"{share}: {_doubled_memory('no room', memory_gib)}", remedy)
    room = _doubled_memory("room", memory_gib)
    if any(v.divided for v in variables):
        delta = _most_delta_bytes(variables, slots, job.ps.min, memory_gib)
        room += f", and {format_bytes(delta)} are left for the changed rows of tables in a save"
        if delta < SMALL_DELTA * held * GIB:
            copied_gib = _copied_bytes(variables, slots, job.ps.min) / GIB
            least = both + 4 * SMALL_DELTA * held + 2 * copied_gib
            why = "if more rows change, training stands still while a checkpoint is written"
            return advice_finding(f"{share}: {room}", f"{least:.2f} GiB or more: {why}")
    return fine_finding(f"{share}: {room}")


def _most_delta_bytes(
    variables: Sequence[VariableInfo], slots: int, ps: int, memory_gib: float
) -> float:
    """Return the most bytes of changed rows that the fullest of `ps` parameter servers can copy for
    each save (`CheckpointSaver`). Two generations leave some memory. The first save can have half of
    it, less the copy of the variables that are not divided. TensorFlow keeps that memory, so each
    later save can have half as much. Without room for the copy of the other variables, training
    stands still and it takes no memory. If more rows change, all of them are written while training
    stands still.
    """
    copied = _copied_bytes(variables, slots, ps)
    left = (memory_gib - PS_GIB - NEXT_PS_GIB) * GIB - 2 * fullest_ps_bytes(variables, slots, ps)
    first = left / 2 - copied if 2 * copied <= left else left / 2
    return first / 2


def _copied_bytes(variables: Sequence[VariableInfo], slots: int, ps: int) -> float:
    """Return the bytes of variables on the fullest ps that are copied whole for each save."""
    whole = [v for v in variables if not v.divided]
    whole_share = sum([v.bytes for v in whole]) / max(sum([v.bytes for v in variables]), 1)
    return fullest_ps_bytes(whole, round(slots * whole_share), ps)


def _doubled_memory(room: str, memory_gib: float) -> str:
    """Describe the memory for a change of size, which is prepared in the same pods."""
    return f"its {memory_gib:g} GiB have {room} for twice that, which a change of size needs"


def _ps_too_small(
    variables: Sequence[VariableInfo], slots: int, job: JobRequested, memory_gib: float, share: str
) -> Finding:
    largest = _largest_whole(variables)
    total = max(sum(v.bytes for v in variables), 1)
    alone_gib = 0.0
    if largest is not None:
        its_slots = round(slots * largest.bytes / total)
        alone_gib = PS_GIB + fullest_ps_bytes([largest], its_slots, 1) / GIB
    if largest is not None and alone_gib > memory_gib:
        what = f"{largest.name} alone needs {alone_gib:.2f} GiB on a ps, which has {memory_gib:g}"
        instead = f"several smaller tables in place of {largest.name}"
        return wrong_finding(what, f"more memory for ps, or {instead}: it is not divided")
    needed_gib = PS_GIB + fullest_ps_bytes(variables, slots, job.ps.min) / GIB
    remedy = f"{needed_gib:.2f} GiB for ps"
    for ps in range(job.ps.min, job.ps.max + 1):
        if PS_GIB + fullest_ps_bytes(variables, slots, ps) / GIB <= memory_gib:
            remedy += f", or ps.min of {ps}"
            break
    return wrong_finding(f"{share}: more than its {memory_gib:g} GiB", remedy)


# ---------------------------------------------------------------- chief and workers


def _chief_findings(here: Observations, memory_gib: float) -> Iterator[Finding]:
    held = sum([v.bytes for v in here.variables or () if not v.divided]) / GIB
    needs = CHIEF_GIB + held * (2 if here.evaluated else 1)
    if memory_gib and needs > memory_gib:
        why = "it builds the model once more to learn its sizes"
        if here.evaluated:
            why += ", and to evaluate it"
        what = f"the chief needs {needs:.2f} GiB and has {memory_gib:g}: {why}"
        yield wrong_finding(what, "more memory for the chief")


def _worker_findings(loaded_gib: float, memory_gib: float) -> Iterator[Finding]:
    needs = WORKER_GIB + loaded_gib
    import_ = f"the program's import takes {loaded_gib:.2f} GiB"
    if needs > memory_gib:
        what = f"a worker needs {needs:.2f} GiB and has {memory_gib:g}: {import_}"
        yield wrong_finding(what, "more memory for workers, or data that is read as it is needed")
    elif needs + loaded_gib > memory_gib:
        short = _doubled_memory("no room", memory_gib).removeprefix("its ")
        enough = f"{needs + loaded_gib:.2f} GiB for workers"
        remedy = f"{enough}; with less, every change of size restarts the job"
        yield advice_finding(f"{import_}: a worker's {short}", remedy)
