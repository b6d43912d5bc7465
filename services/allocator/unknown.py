"""Jobs with a policy that is not known here.

A program that works on a copy of the state (a person's command, not the allocator) may lack
policies that the cluster has enrolled. `decide` asks the cluster's policy in place of such a one,
and that has to be said.
"""

from __future__ import annotations

from services.allocator.policies.registry import POLICIES
from services.allocator.state import State

REMEDY = "it is told with WEIR_ALLOCATOR_POLICIES={}, from the folder of its module"


def unknown_policies(state: State, otherwise: str) -> str:
    """Return the policies that are not known, with a job of each and the remedy; empty: all are
    known.

    `otherwise`: the consequence, for the text.
    """
    job_of_policy = _jobs_of_unknown_policies(state)
    if not job_of_policy:
        return ""
    unknown = sorted(job_of_policy)
    jobs = ", ".join([job_of_policy[policy].replace(".", "/") for policy in unknown])
    policies = ", ".join(unknown)
    remedy = REMEDY.format(",".join(unknown))
    return f"policy {policies} (of {jobs}) cannot be asked here, so {otherwise}; {remedy}"


def _jobs_of_unknown_policies(state: State) -> dict[str, str]:
    """Return one job of each policy that is not known."""
    job_of_policy = {}
    for key, job in sorted(state.jobs.items()):
        policy = job.request.policy
        if policy and policy not in POLICIES:
            job_of_policy[policy] = key
    return job_of_policy
