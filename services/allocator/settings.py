"""The settings of the allocator: every number that a decision depends on, with its unit. A timer of
0 acts at once.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from services.allocator.pod_policy import WITHOUT_FILE, PodPolicy
from services.allocator.policies.contract import PAUSE_S, Quotas
from shared.messages import DEFAULT_CONSISTENCY, Consistency, Namespace, Positive, Priority
from shared.runtime import config

SHIPPED_IMAGE = "weir-trainer"


class Limit(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The largest values that a request of one namespace may have; absent: the same as
    everywhere.
    """

    priority: Priority | None = None
    ps: Positive | None = None
    workers: Positive | None = None
    batch: Positive | None = None


Limits = dict[Namespace, Limit]


class Rules(config.Common, frozen=True, kw_only=True):
    FILLED_IN: ClassVar[frozenset[str]] = frozenset({"pod_rules"})

    policy: str = "weir"
    """The policy of jobs that name none. `module:function` is a custom policy
    (`custom_policies.py`).
    """
    consistency: Consistency = DEFAULT_CONSISTENCY
    """The consistency of jobs that name none."""
    policies: tuple[str, ...] = ()
    """Custom policies that requests may name."""
    window_s: float = 2.0
    """Seconds. A change must stay wanted for so long (stabilisation)."""
    max_delay_s: float = 30.0
    """Seconds. When some change has been wanted for so long, the window ends, even if the wanted
    size still moves. Growth without room for all of it then takes the room that there is.
    """
    release_s: float = 5.0
    """Seconds. A change waits for so long for capacity that is being released, until the usual
    duration is known; 0: never.
    """
    release_max_s: float = 30.0
    """Seconds. The longest wait for capacity that is being released."""
    cooldown_s: float = 10.0
    """Seconds. No other change for so long after training resumed."""
    backoff_s: float = 5.0
    """Seconds. Wait after an abandoned generation; doubles with each in a row."""
    backoff_max_s: float = 300.0
    repeat_s: float = 45.0
    """Seconds. A decision is repeated if the launcher does not act on it for so long; twice as long
    with each repetition.
    """
    repeat_max: int = 6
    """The number of repetitions with a doubled wait; later ones are `backoff_max_s` or more apart.
    0: no decision is repeated, and missing actions are not noticed.
    """
    max_start_failures: int = 5
    """A job that never ran fails after so many abandoned generations in a row. A job that ran once
    and stands still fails after so many with all tasks ready.
    """
    max_failures: int = 3
    """A job fails after so many generations with a task that failed by its own fault, or after so
    many with a task that was killed for an unknown cause, while the job gets no further. Lost nodes
    and outages of the bus do not count.
    """
    failure_window_s: Annotated[float, Meta(gt=0)] = 3600.0
    """Seconds. A generation that failed by its own fault counts against `max_failures` for so long.
    A job that fails less often may run for ever.
    """
    reserve_after_s: float = 900.0
    """Seconds. When a job has waited for so long, the capacity of its smallest size is reserved for
    it. Jobs give way to a higher priority at once. 0: nothing is ever reserved, and no job gives
    way.
    """
    finish_s: float = 10.0
    """Seconds. A chief that has completed is replaced after so long, if the job has not ended."""
    settle_s: float = 1.0
    """Seconds. A job that lost a task shrinks only after so long, because the capacity of the lost
    pod may become free a little later.
    """
    starved_s: float = 30.0
    """Seconds. A task that gets far less CPU than its node has promised moves after so long, if
    that pays.
    """
    shun_s: float = 3600.0
    """Seconds. After a starving task of a job was moved away from a node, the node gets no task of
    the job for so long.
    """
    silent_s: float = 3600.0
    """Seconds. A job that has not reported its speed since its last change may be changed again
    after so long.
    """
    pause_default_s: float = PAUSE_S
    payback_factor: float = 1.0
    """A resize must save more than this factor times its pause."""
    oom_memory_factor: float = 1.5
    """The factor for the memory of a role's tasks, applied each time that one of them runs out of
    memory.
    """
    images: tuple[str, ...] = (SHIPPED_IMAGE,)
    """Images that a request may name: all below a prefix that ends with `/`, or one with any tag;
    empty: any. Default: only the shipped one, because the code of an image can read its job's
    credentials for the bus. The image of a request that names none is the launcher's setting.
    """
    host_paths: tuple[str, ...] = ()
    """Folders of a node that a request may mount, and all below them; empty: none. Pods with one do
    not pass `restricted`.
    """
    pod_policy: str = ""
    """The file with the owner's policy for pods: secrets, service accounts, node pools and the
    like, by namespace (`deploy/README.md`). Empty: none; then a request may have any claim, and
    none of the rest.
    """
    pod_rules: PodPolicy = WITHOUT_FILE
    """The content of that file. The service reads it at its start."""
    grace_max_s: float = 600.0
    """Seconds. The longest `grace_s` of a request. A task that ignores SIGTERM keeps its place on a
    node for so long.
    """
    max_priority: Priority = 1_000_000_000
    """The highest priority that a request may have, e.g. the value of a Kubernetes PriorityClass;
    the default is the highest that such a class may have. Lower ones may be negative.
    """
    limits: Limits = {}
    """The highest priority and the largest numbers of ps and workers of one job, and of examples in
    a batch, by namespace, e.g. `{"team-a": {"priority": 10, "ps": 4, "workers": 32, "batch":
    4096}}`. An absent one is the same as everywhere.
    """
    strict: bool = False
    """True: a failure of a policy ends the service, instead of setting aside the jobs that cause
    it. For tests.
    """
    open_jobs: Annotated[int, Meta(ge=0)] = 300
    """The number of jobs of one namespace that may be open, waiting jobs included; a further
    request is rejected. 0: any number.
    """
    checkpoint_claim: str = ""
    """The claim for checkpoints, as in the launcher's setting of this name. Tasks go only to nodes
    that can use it. Empty: none.
    """
    quotas: Quotas = {}
    """The largest amounts that all jobs of a namespace may hold together, e.g. `{"team-a": {"cpu":
    8, "memory_gib": 32, "gpu": 1}}`; an absent one has no limit.
    """
