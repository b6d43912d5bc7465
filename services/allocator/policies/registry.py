"""The policies, by the names under which jobs and settings choose them. Read first:
`contract.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from services.allocator.policies.config_manager import config_manager, static
from services.allocator.policies.contract import JobSnapshot, Policy
from services.allocator.policies.dike import DikeModel, dike
from services.allocator.policies.dike import fit_dike_jobs as fit_dike
from services.allocator.policies.dlrover.heuristic import dlrover_heuristic
from services.allocator.policies.dlrover.model import DlroverModel
from services.allocator.policies.dlrover.model import fit_dlrover_jobs as fit_dlrover
from services.allocator.policies.dlrover.policy import dlrover
from services.allocator.policies.elastic_batch.policy import ScaleModel, elastic_batch
from services.allocator.policies.elastic_batch.policy import fit_scale_models as fit_elastic_batch
from services.allocator.policies.flowcon.policy import flowcon
from services.allocator.policies.optimus.fits import ProbeOrder
from services.allocator.policies.optimus.fits import fit_probe_orders as fit_optimus
from services.allocator.policies.optimus.policy import optimus
from services.allocator.policies.weir.market import arrays_of
from services.allocator.policies.weir.policy import weir

POLICIES: dict[str, Policy] = {
    "static": static,
    "weir": weir,
    "config-manager": config_manager,
    "dike": dike,
    "dlrover": dlrover,
    "dlrover-heuristic": dlrover_heuristic,
    "elastic-batch": elastic_batch,
    "flowcon": flowcon,
    "optimus": optimus,
}

Fitter = Callable[[Sequence[JobSnapshot]], list[Any]]
"""Fit models to jobs, all in one pass: one frozen struct for each job, a function of that job
alone.
"""
FITTERS: dict[str, Fitter] = {
    "dike": fit_dike,
    "elastic-batch": fit_elastic_batch,
    "dlrover": fit_dlrover,
    "optimus": fit_optimus,
}
"""By policy: the function that fits its models. The allocator keeps each job's model in its state,
and fits again when the job's facts change.
"""
MODELS: dict[str, type[Any]] = {
    "dike": DikeModel,
    "dlrover": DlroverModel,
    "elastic-batch": ScaleModel,
    "optimus": ProbeOrder,
}
"""By policy: the type of its models, so that they can be stored."""

ARRAYS: dict[str, Callable[[Sequence[JobSnapshot]], Any]] = {"weir": arrays_of}
"""By policy: a function that makes arrays of all its jobs, and depends on these jobs alone. The
allocator keeps them in its state, and makes them again when the facts of one of these jobs change.
The policy finds them in the `JobList` that it is given.
"""
