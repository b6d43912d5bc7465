"""Derived data of every job and node: made when a fact arrives, read by every pass.

The tables belong to the state. The fold marks the jobs and nodes that a fact has changed, and
`table_updates.py` makes their entries again before the next pass. The tables follow from the facts
alone: a state without tables gives the same decisions, after making them all.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from services.allocator.models.programs import Programs
from services.allocator.placement.best_fit_index import NO_NODES, NodeIndex
from services.allocator.policies.contract import (
    FinishedJob,
    JobList,
    JobSnapshot,
    Node,
    ProgramHistory,
    Quota,
)
from shared.messages import Resources, TaskPlan

Amounts = tuple[float, float, float]
"""Cores, GiB and devices."""


class Marks(msgspec.Struct, frozen=True):
    """The jobs and nodes with a fact since the tables were made."""

    jobs: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    """Jobs with pods on these nodes, before or after."""
    closed: bool = False
    """True if a job ended."""


NO_MARKS = Marks()


class Tables(msgspec.Struct, frozen=True, kw_only=True):
    """Entries by job or by node.

    `policy`, `oom_memory_factor`, `quotas`: the settings that `jobs` depend on. `promised`: by job,
    the decided tasks that their node does not list yet as they were decided. `total`: the sum of
    the free and the held amounts on nodes that take tasks, to two digits. `largest`: the largest
    open node, empty. Policy `weir` prices sizes by these two.
    """

    policy: str
    oom_memory_factor: float
    quotas: dict[str, Quota] = {}
    index: NodeIndex = NO_NODES
    """The index of all nodes; those that take tasks are in the order of a best fit."""
    free: dict[str, Amounts] = {}
    """By node that takes tasks: its free amounts."""
    promised: dict[str, tuple[TaskPlan, ...]] = {}
    past: dict[str, tuple[FinishedJob, ...]] = {}
    """By job that is over: its records for the history of its program."""
    histories: dict[str, ProgramHistory] = {}
    jobs: dict[str, JobSnapshot] = {}
    """The jobs as policies see them, with the models of their policies."""
    ranks: dict[str, tuple[int, int]] = {}
    """By open job, in the order of passes: by falling priority, then by submission."""
    needs_attention: frozenset[str] = frozenset()
    """Jobs that may need something else than the size that their policy wants."""
    policies: dict[str, str] = {}
    """The policy of each job, in the order of passes, without the jobs that their users
    suspended.
    """
    by_policy: dict[str, JobList] = {}
    """The jobs of `policies`, by their policy."""
    held: dict[str, Amounts] = {}
    """By job: the amounts that its tasks hold on nodes that take tasks, without promised amounts,
    because those are still free.
    """
    total: Resources = Resources()
    largest: Resources = Resources()
    programs: Programs = Programs()

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes as policies see them, by name."""
        return self.index.nodes
