"""The fitted models of a state as bytes, for its snapshot: a restart does not fit them again. Pure.

Numbers of one version mean nothing to another one, so each version reads its own models only, and
makes what it cannot read anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from services.allocator.models.speed import Fit
from services.allocator.policies.registry import MODELS
from services.allocator.policies.weir.hull import Config
from services.allocator.policies.weir.rows import JobRow, Numbers
from services.allocator.tables import Programs, Tables
from shared.messages import Resources
from shared.version import VERSION

LAYOUT = " ".join([VERSION, *Numbers._fields, *Config._fields])
"""What the numbers of a model mean: those of another layout are not read."""
NO_FIT = Fit("synchronous", (1.0, 1.0, 1.0, 1.0), 0.0, 0, b"")
"""In place of its program's in a stored row."""


class StoredModels(msgspec.Struct, frozen=True, kw_only=True):
    """`total`, `largest`: the cluster for which rows were made. `others`: by policy and job."""

    layout: str
    policy: str
    oom_memory_factor: float
    total: Resources
    largest: Resources
    programs: Programs
    rows: dict[str, JobRow]
    others: dict[str, dict[str, bytes]]


def encode_models(tables: Tables) -> bytes:
    """Return the models of all jobs as bytes."""
    rows: dict[str, JobRow] = {}
    others: dict[str, dict[str, bytes]] = {}
    for key, job in tables.jobs.items():
        if isinstance(job.model, JobRow):
            rows[key] = replace(job.model, fitted=NO_FIT)
            continue
        for name, kind in MODELS.items():
            if type(job.model) is kind:
                others.setdefault(name, {})[key] = msgspec.msgpack.encode(job.model)
    stored = StoredModels(
        layout=LAYOUT,
        policy=tables.policy,
        oom_memory_factor=tables.oom_memory_factor,
        total=tables.total,
        largest=tables.largest,
        programs=tables.programs,
        rows=rows,
        others=others,
    )
    return msgspec.msgpack.encode(stored)


def decode_models(stored: bytes) -> StoredModels | None:
    """Return what `encode_models` wrote; None if this version has not written it."""
    try:
        found = msgspec.msgpack.decode(stored, type=StoredModels)
    except msgspec.DecodeError:
        return None
    return found if found.layout == LAYOUT else None


def models_by_job(stored: StoredModels) -> dict[str, Any]:
    """Return each job's model as its policy expects it."""
    found: dict[str, Any] = {}
    for key, row in stored.rows.items():
        fitted = stored.programs.fits.get(row.program)
        if fitted is not None:
            found[key] = replace(row, fitted=fitted)
    for name, models in stored.others.items():
        found.update(_decode_each(name, models))
    return found


def _decode_each(policy: str, models: Mapping[str, bytes]) -> dict[str, Any]:
    kind = MODELS.get(policy)
    if kind is None:
        return {}
    return {key: msgspec.msgpack.decode(model, type=kind) for key, model in models.items()}
