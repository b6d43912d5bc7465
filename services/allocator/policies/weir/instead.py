"""Who gives up tasks of one role could have given up the other's: as many as free as much of what is scarce."""

from __future__ import annotations

import math

from services.allocator.placing.amounts import ROUNDING, amounts
from services.allocator.policies.contract import Size
from services.allocator.policies.weir.hull import Config
from services.allocator.policies.weir.stand import Stand, config_of


def instead(s: Stand, config: Config) -> Config | None:
    """What a job would be that kept all of one role and gave up the other; None where a smaller size has fewer of both
    or more of one, or where the other role has not so many to give.
    """
    had, least, sizes = s.job.size or config.size, s.job.least, s.job.sizes
    ps, workers = had.ps - config.ps, had.workers - config.workers
    if min(ps, workers) != 0 or ps == workers:
        return None
    given, others = (sizes.worker, sizes.ps) if workers else (sizes.ps, sizes.worker)
    freed, each = (ps + workers) * amounts(given)[config.scarce], amounts(others)[config.scarce]
    count = math.ceil(freed / each - ROUNDING) if each > 0 else 0
    other = Size(had.ps - count, had.workers) if workers else Size(had.ps, had.workers - count)
    able = count > 0 and other.ps >= least.ps and other.workers >= least.workers
    return config_of(s, other, config.batch) if able else None
