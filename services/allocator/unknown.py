"""Jobs whose policy is not known here. Who asks about a copy of the state (a person's command, not the allocator) may
lack what the cluster has enrolled; `decide` asks the cluster's policy in place of such a one, and that has to be said.
"""

from __future__ import annotations

from services.allocator.policies.registry import POLICIES
from services.allocator.state import State

REMEDY = "it is told with WEIR_ALLOCATOR_POLICIES={}, from the folder of its module"


def unknown_policies(state: State, otherwise: str) -> str:
    """Empty where all are known; else which are not, of which jobs, what is done `otherwise`, and the remedy."""
    names = {job.request.policy: key for key, job in sorted(state.jobs.items())}
    unknown = sorted(name for name in names if name and name not in POLICIES)
    whose = ", ".join(names[name].replace(".", "/") for name in unknown)
    remedy = REMEDY.format(",".join(unknown))
    return f"policy {', '.join(unknown)} (of {whose}) cannot be asked here, so {otherwise}; {remedy}" if unknown else ""
