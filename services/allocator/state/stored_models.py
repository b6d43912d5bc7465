"""The fitted models of a state as bytes in its snapshot, so that a restart does not fit them again.

The numbers of one version have no meaning for another one. Each version reads only its own models,
and fits again all that it cannot read.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.models.programs import Programs
from services.allocator.models.speed import Fit
from services.allocator.policies.contract import JobSnapshot
from services.allocator.policies.registry import MODELS
from services.allocator.policies.weir.job_rows import JobRow, Numbers
from services.allocator.policies.weir.staircase import Config
from services.allocator.state.tables import Tables
from shared.messages import Resources
from shared.version import VERSION

LAYOUT = " ".join([VERSION, *Numbers._fields, *Config._fields, *map(str, MODELS.values())])
"""The meaning of a model's numbers. Models of another layout are not read."""
NO_FIT = Fit("synchronous", (1.0, 1.0, 1.0, 1.0), 0.0, 0, b"")
"""In a stored row, in place of its program's fit."""


class StoredModels(msgspec.Struct, frozen=True, kw_only=True):
    """`total`, `largest`: the cluster that rows were made for. `others`: by policy and job.
    `fitted_to`: by job, `_digest` of the job that its model was fitted to.
    """

    layout: str
    policy: str
    oom_memory_factor: float
    total: Resources
    largest: Resources
    programs: Programs
    rows: dict[str, JobRow]
    others: dict[str, dict[str, bytes]]
    fitted_to: dict[str, bytes]


def encode_models(tables: Tables) -> bytes:
    """Return the models of all jobs as bytes."""
    rows: dict[str, JobRow] = {}
    others: dict[str, dict[str, bytes]] = {}
    fitted_to: dict[str, bytes] = {}
    for key, job in tables.jobs.items():
        if job.model is None:
            continue
        fitted_to[key] = _digest(job)
        if isinstance(job.model, JobRow):
            rows[key] = replace(job.model, fitted=NO_FIT)
            continue
        for name, kind in MODELS.items():
            if type(job.model) is kind:
                models = others.setdefault(name, {})
                models[key] = msgspec.msgpack.encode(job.model)

    stored = StoredModels(
        layout=LAYOUT,
        policy=tables.policy,
        oom_memory_factor=tables.oom_memory_factor,
        total=tables.total,
        largest=tables.largest,
        programs=tables.programs,
        rows=rows,
        others=others,
        fitted_to=fitted_to,
    )
    return msgspec.msgpack.encode(stored)


def decode_models(stored: bytes) -> StoredModels | None:
    """Return the models that `encode_models` encoded; None if another version wrote them."""
    try:
        found = msgspec.msgpack.decode(stored, type=StoredModels)
    except msgspec.DecodeError:
        return None
    if found.layout != LAYOUT:
        return None
    return found


def stored_model(stored: StoredModels, policy: str, job: JobSnapshot) -> Any:
    """Return the stored model of a job as its policy expects it; None: there is none, or the job
    has changed since the model was fitted.
    """
    key = job.key
    fitted_to = stored.fitted_to.get(key)
    if fitted_to is None or fitted_to != _digest(job):
        return None
    if policy == "weir" and key in stored.rows:
        return _stored_row(stored, stored.rows[key])
    models = stored.others.get(policy, {})
    if key not in models:
        return None
    return msgspec.msgpack.decode(models[key], type=MODELS[policy])


def _stored_row(stored: StoredModels, row: JobRow) -> JobRow | None:
    """Return the row with the fit of its program; None if that is not stored."""
    fit = stored.programs.fits.get(row.program)
    if fit is None:
        return None
    return replace(row, fitted=fit)


def _digest(job: JobSnapshot) -> bytes:
    """Return a digest of everything that a model may depend on: the job, its settings, and its
    history.
    """
    facts = msgspec.msgpack.encode(replace(job, model=None), order="deterministic")
    return blake2b(facts, digest_size=16).digest()
