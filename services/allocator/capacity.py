"""What is free to be given.

Law: each decided task is counted exactly once. Until its pod is listed among a node's `own` it is reserved here; from
then on the node's own `free` is less by it. A task whose revision was abandoned or superseded, or whose pod has ended,
is reserved no longer.
"""

from __future__ import annotations

from collections.abc import Iterator

from services.allocator.job import Job
from services.allocator.placement import Node, less
from services.allocator.state import State
from shared.messages import CapacityChanged, TaskPlan

HARD = ("NoSchedule", "NoExecute")


def free_nodes(state: State) -> list[Node]:
    """Every node with what is neither used nor promised."""
    listed = {(own.namespace, own.pod) for node in state.nodes.values() for own in node.own}
    nodes = {name: _node(seen) for name, seen in state.nodes.items()}
    for job in state.jobs.values():
        for task in reserved(job, listed):
            if task.node in nodes:
                nodes[task.node] = _give(nodes[task.node], job.key, task)
    return list(nodes.values())


def reserved(job: Job, listed: set[tuple[str, str]]) -> Iterator[TaskPlan]:
    """Tasks that are wanted, that have not ended, and whose pod no node lists yet."""
    wanted = {task.serial: task for decision in (job.runs, job.flies) if decision for task in decision.tasks}
    for task in wanted.values():
        if job.exit_of(task) is None and (job.request.namespace, job.pod(task)) not in listed:
            yield task


def _node(seen: CapacityChanged) -> Node:
    return Node(
        name=seen.node,
        free=seen.free,
        allocatable=seen.allocatable,
        open=seen.ready and seen.schedulable and not any(t.effect in HARD for t in seen.taints),
        hosts=frozenset(f"{own.namespace}.{own.job}" for own in seen.own),
    )


def _give(node: Node, job: str, task: TaskPlan) -> Node:
    return Node(node.name, less(node.free, task.resources), node.allocatable, node.open, node.hosts | {job})
