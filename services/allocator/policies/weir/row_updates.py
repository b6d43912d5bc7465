"""Update the rows of jobs: a row is made again when its job, its program's model or the cluster
changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

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
    rows = _rows_each(ready, programs, tables)
    jobs = dict(tables.jobs)
    for key in stale:
        jobs[key] = replace(jobs[key], model=rows.get(key))
    return replace(tables, jobs=jobs, programs=programs)


def _rows_each(keys: Sequence[str], programs: Programs, tables: Tables) -> Mapping[str, JobRow]:
    """Make rows together, or each alone if that fails. The policy fails with a job without one."""
    jobs = [tables.jobs[key] for key in keys]
    fits = [programs.fits[programs.of_job[key]] for key in keys]
    try:
        rows = rows_of(jobs, fits, tables.total, tables.largest)
    except Exception:
        if len(keys) == 1:
            return {}
        apart: dict[str, JobRow] = {}
        for key in keys:
            apart.update(_rows_each([key], programs, tables))
        return apart
    return dict(zip(keys, rows, strict=True))
