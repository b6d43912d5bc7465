"""The policies, by the names under which jobs and settings choose them. Read first: `contract.py`."""

from __future__ import annotations

from services.allocator.policies.config_manager import config_manager
from services.allocator.policies.contract import Policy
from services.allocator.policies.dike.policy import dike
from services.allocator.policies.dlrover.heuristic import dlrover_heuristic
from services.allocator.policies.dlrover.policy import dlrover
from services.allocator.policies.elastic_batch.policy import elastic_batch
from services.allocator.policies.flowcon.policy import flowcon
from services.allocator.policies.optimus.policy import optimus
from services.allocator.policies.static import static
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
