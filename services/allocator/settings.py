"""The allocator's rules: every number that a decision depends on, with its unit. A timer of 0 acts
at once.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from services.allocator.policies.contract import PAUSE_S, Quotas
from shared.messages import Namespace, Positive, Priority
from shared.runtime import config

SHIPPED_IMAGE = "weir-trainer"


class Limit(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The most that a request of one namespace may ask for; absent: the same as everywhere."""

    priority: Priority | None = None
    ps: Positive | None = None
    workers: Positive | None = None
    batch: Positive | None = None


Limits = dict[Namespace, Limit]


class Rules(config.Common, frozen=True, kw_only=True):
    policy: str = "weir"
    """For jobs that name none. `module:function` is one of your own (`custom_policies.py`)."""
    policies: tuple[str, ...] = ()
    """More of your own, which requests may name."""
    window_s: float = 2.0
    """A change must stay wanted for so long (stabilisation)."""
    max_delay_s: float = 30.0
    """Some change was wanted for so long: the window ends, however much the wish itself still
    moves; and growth for which there is no room as a whole takes the room that there is.
    """
    release_s: float = 5.0
    """Capacity that is being released is waited for so long, until it is known how long that takes
    here; 0: never.
    """
    release_max_s: float = 30.0
    """The longest wait for capacity that is being released, however long that takes."""
    cooldown_s: float = 10.0
    """No change of mind for so long after training resumed."""
    backoff_s: float = 5.0
    """Wait after an abandoned generation; doubles with each in a row."""
    backoff_max_s: float = 300.0
    repeat_s: float = 45.0
    """Seconds after which a decision is repeated if nobody acts on it; twice as long with each
    repetition.
    """
    repeat_max: int = 6
    """So many repetitions come each after twice as long; later ones `backoff_max_s` or more apart.
    0: none at all, and nobody watches for decisions that are not acted on.
    """
    max_start_failures: int = 5
    """A job that never ran fails with so many generations abandoned in a row; one that ran once,
    and stands still, with so many in which all tasks stood ready.
    """
    max_failures: int = 3
    """A job fails with so many generations in which a task failed by its own fault, and with so
    many in which one was killed, nobody says why, while the job gets no further. Lost nodes and
    outages of the bus count nowhere.
    """
    failure_window_s: Annotated[float, Meta(gt=0)] = 3600.0
    """Seconds. For so long a generation that failed by its own fault counts against `max_failures`;
    a job that fails less often may run for ever.
    """
    reserve_after_s: float = 900.0
    """Seconds. When a job has waited for so long, the capacity that its smallest size needs is
    reserved for it; others give way to a higher priority at once. 0: nothing is ever reserved, and
    nobody gives way.
    """
    finish_s: float = 10.0
    """A chief that ended well is replaced, if the job is not over so long after."""
    settle_s: float = 1.0
    """A job that lost a task shrinks only after so long: the lost pod's own room may be seen free a
    little later.
    """
    starved_s: float = 30.0
    """A task that gets far less CPU than its node has promised moves after so long, if it pays."""
    shun_s: float = 3600.0
    """A node on which a task of a job starved, and from which it was moved away, gets no other task
    of the job for so long.
    """
    silent_s: float = 3600.0
    """A job that was changed, and has not said since how fast it is, may be changed again after so
    long.
    """
    pause_default_s: float = PAUSE_S
    payback_factor: float = 1.0
    """A resize must save more than so many times its pause."""
    oom_memory_factor: float = 1.5
    """Tasks of a role get so much more memory after each of them that ran out of it."""
    images: tuple[str, ...] = (SHIPPED_IMAGE,)
    """Images that a request may name: all below a prefix that ends with `/`, or one with any tag;
    empty: any. Default: only the shipped one, because the code of an image can read its job's
    credentials for the bus. The image of a request that names none is the launcher's setting.
    """
    host_paths: tuple[str, ...] = ()
    """Folders of a node that a request may mount, and all below them; empty: none. Pods with one do
    not pass `restricted`.
    """
    grace_max_s: float = 600.0
    """The longest `grace_s` of a request: for so long a task that ignores SIGTERM keeps its place
    on a node.
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
    """A failure of a policy ends the service, instead of setting aside the jobs that cause it. For
    tests.
    """
    open_jobs: Annotated[int, Meta(ge=0)] = 300
    """Jobs of one namespace that may be open, those that wait counted; a further request is
    rejected. 0: any number.
    """
    checkpoint_claim: str = ""
    """The claim in which tasks find their checkpoints, as in the launcher's setting of this name:
    tasks go only to nodes on which it can be used. Empty: none.
    """
    quotas: Quotas = {}
    """The most that each namespace's jobs may hold together, e.g. `{"team-a": {"cpu": 8,
    "memory_gib": 32, "gpu": 1}}`; an absent one has no limit.
    """
