"""FlowCon (ICPP 2019): limits on cores by growth efficiency."""

from services.allocator.policies.flowcon.policy import flowcon

__all__ = ["flowcon"]
