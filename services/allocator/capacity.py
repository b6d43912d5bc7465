"""What is free to be given.

Law: each decided task is counted exactly once. Until its pod is listed among a node's `own` it is reserved here; from
then on the node's own `free` is less by it. A task whose revision was abandoned or superseded, or whose pod has ended,
is reserved no longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from services.allocator.job import Job
from services.allocator.kept import Kept
from services.allocator.placement import Node, less
from services.allocator.state import State
from shared.messages import AllocationDecided, CapacityChanged, TaskPlan

HARD = ("NoSchedule", "NoExecute")
Pods = frozenset[tuple[str, str]]
"""(namespace, name)"""


def free_nodes(state: State) -> list[Node]:
    """Every node with what is neither used nor promised."""
    listed = frozenset[tuple[str, str]]().union(*map(_listed, state.nodes.values()))
    nodes = {name: _node(seen) for name, seen in state.nodes.items()}
    for job in state.jobs.values():
        for task in reserved(job, listed):
            if task.node in nodes:
                nodes[task.node] = _give(nodes[task.node], job.key, task)
    return list(nodes.values())


def reserved(job: Job, listed: Set[tuple[str, str]]) -> Iterator[TaskPlan]:
    """Tasks that are wanted, that have not ended, and whose pod no node lists yet."""
    decided = [decision for decision in (job.runs, job.flies) if decision and not _pods(decision) <= listed]
    wanted = {task.serial: task for decision in decided for task in decision.tasks}
    for task in wanted.values():
        if job.exit_of(task) is None and (job.request.namespace, job.pod(task)) not in listed:
            yield task


def _plain_node(seen: CapacityChanged) -> Node:
    return Node(
        name=seen.node,
        free=seen.free,
        allocatable=seen.allocatable,
        open=seen.ready and seen.schedulable and not any(t.effect in HARD for t in seen.taints),
        hosts=frozenset(f"{own.namespace}.{own.job}" for own in seen.own),
    )


def _own_pods(seen: CapacityChanged) -> Pods:
    return frozenset((own.namespace, own.pod) for own in seen.own)


def _decided_pods(decision: AllocationDecided) -> Pods:
    return frozenset((decision.namespace, f"{decision.job}-{task.role}-{task.serial}") for task in decision.tasks)


_node, _listed, _pods = Kept(_plain_node), Kept(_own_pods), Kept(_decided_pods)


def _give(node: Node, job: str, task: TaskPlan) -> Node:
    return Node(node.name, less(node.free, task.resources), node.allocatable, node.open, node.hosts | {job})
