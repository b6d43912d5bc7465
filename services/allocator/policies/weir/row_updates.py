"""Update the rows of jobs: a row is made again when its job, its program's model or the cluster
changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from msgspec.structs import replace

from services.allocator.failures import compute_each
from services.allocator.models.programs import Programs, update_programs
from services.allocator.policies.weir.rows import JobRow, rows_of
from services.allocator.tables import Tables


def update_rows(
    before: Tables, tables: Tables, changed: Sequence[str], gone: Collection[str]
) -> Tables:
    """Return the tables with the programs and rows of this policy's jobs as they are now.

    `changed`: its jobs that came or changed; `gone`: jobs that are no longer its own. `before`: the
    tables of the last update.
    """
    is_first = not before.jobs
    same_cluster = (before.total, before.largest) == (tables.total, tables.largest)
    if same_cluster and not (changed or gone or is_first):
        return tables
    programs, refitted = update_programs(
        tables.programs, tables.jobs, tables.ranks, changed, gone, is_first
    )
    stale = set(changed)
    for key, name in programs.of_job.items():
        if not same_cluster or name in refitted:
            stale.add(key)
    ready = [key for key in sorted(stale) if programs.of_job[key] in programs.fits]
    make_rows = partial(_rows_of_keys, programs=programs, tables=tables)
    rows = dict(zip(ready, compute_each(make_rows, ready), strict=True))
    # The policy fails with a job that has no row, and with no other job.
    jobs = dict(tables.jobs)
    for key in stale:
        jobs[key] = replace(jobs[key], model=rows.get(key))
    return replace(tables, jobs=jobs, programs=programs)


def _rows_of_keys(keys: Sequence[str], programs: Programs, tables: Tables) -> list[JobRow]:
    """Return the rows of these jobs, by the models of their programs."""
    jobs = [tables.jobs[key] for key in keys]
    fits = [programs.fits[programs.of_job[key]] for key in keys]
    return rows_of(jobs, fits, tables.total, tables.largest)
