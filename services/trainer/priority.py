"""CPU weight of a child: low while it prepares beside the running generation, full once it trains.

Niceness belongs to a thread and is inherited by the threads it starts, so it is lowered before
TensorFlow starts any, and raised again for each. Raising needs a privilege that a restricted
container lacks; there the weight stays full.
"""

from __future__ import annotations

import os
import resource

CAP_SYS_NICE = 23


def may_raise() -> bool:
    """Whether this process may take back its full weight later."""
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0]
    if limit == resource.RLIM_INFINITY or limit >= 20:
        return True
    with open("/proc/self/status") as status:
        held = next(text.split()[1] for text in status if text.startswith("CapEff"))
    return bool(int(held, 16) >> CAP_SYS_NICE & 1)


def lower(nice: int) -> None:
    """Run at this niceness from now on."""
    if nice:
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def raise_again() -> None:
    """Give every thread of this process its full weight."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.setpriority(os.PRIO_PROCESS, int(thread), 0)
        except (ProcessLookupError, PermissionError):
            continue
