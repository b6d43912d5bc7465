"""The main story on a given Kubernetes: jobs grow and shrink, a node is drained, tasks are resized.

The tests run in the order of the file: the job `first` is used by the first two. Other users' pods
leave `MOST` cores free on one node and nothing on the others, so that the story is the same on a
cluster of any size.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shared.kube.objects import whole_units
from tests.cluster import strangers
from tests.cluster.cluster import Body, Cluster, Job
from tests.cluster.handover import handover_faults

FIRST = {"chief": 0.3, "ps": 0.2, "worker": 0.4}  # cores of one task
FLOOR, MOST = 0.9, 1.3  # cores of the first job with one worker, and with two
URGENT = {"chief": 0.1, "ps": 0.1, "worker": 0.2}  # in all as much as one worker of the first job
FLUID = {
    "chief": 0.1,
    "ps": 0.1,
    "worker": 0.2,
}  # two jobs of this size leave half a core to be shared
MEMORY = {"chief": 1.5, "ps": 1.0, "worker": 1.0}  # GiB of one task
ROOM_GIB = 7.0  # for two jobs with one worker each, or for the first job alone with two
FOREVER = 100_000  # epochs: the job trains until it is cancelled
SEEN_S, STARTS_S, CHANGES_S = 120.0, 300.0, 240.0  # timeouts; an image may have to be pulled
PAUSE_S = 10.0  # limit for a hand-over, which takes about 1 s; a restart takes until new pods train
ROUNDING = 0.01  # cores
MADE = "pods,services,networkpolicies,secrets"


def asked(job: str, cpu: Mapping[str, float], workers: int = 1, **fields: Any) -> Body:
    """Return a job file with one ps and at least one worker; it trains until it is cancelled."""
    size = {role: {"cpu": cores, "memory_gib": MEMORY[role]} for role, cores in cpu.items()}
    span = {"start": 1, "min": 1, "max": workers}
    return {
        "job": job,
        "epochs": FOREVER,
        "batch": 128,
        "ps": 1,
        "workers": span,
        "resources": size,
        **fields,
    }


def sizes(cluster: Cluster, job: Job, generation: int) -> Counter[str]:
    return Counter(task["role"] for task in tasks(cluster, job, generation))


def tasks(cluster: Cluster, job: Job, generation: int) -> list[Body]:
    """Return the tasks of a generation, as they were last decided."""
    told = [e.message for e in cluster.events(job) if e.fact == "allocation.decided"]
    return [
        dict(t) for t in next(m for m in reversed(told) if m["generation"] == generation)["tasks"]
    ]


def trains(cluster: Cluster, job: Job, after: int = 0, timeout_s: float = CHANGES_S) -> int:
    """Wait until a generation newer than `after` trains; return its number."""
    resumed = cluster.until(job, "training.resumed", timeout_s, lambda m: m["generation"] > after)
    return int(resumed["generation"])


def checkpoints_are_everywhere(cluster: Cluster) -> bool:
    """Return whether several nodes can write the checkpoints.

    Without a claim, they are in a folder of the only machine.
    """
    claim = ("get", "pvc", "weir-checkpoints", "-n", cluster.namespace, "--ignore-not-found")
    modes = cluster.kubectl(*claim, "-o", "jsonpath={.spec.accessModes}")
    return not modes or "ReadWriteMany" in modes


@pytest.fixture(scope="module")
def home(cluster: Cluster) -> str:
    """Return the node with free capacity.

    Other users' pods occupy the rest of it, and all other nodes.
    """
    known = set(cluster.kubectl("get", "nodes", "-o", "name").replace("node/", "").split())
    seen = cluster.until_nodes(SEEN_S, lambda seen: known <= seen.keys())
    nodes, memory = strangers.free(seen), strangers.free(seen, "memory_gib")
    chosen = max(
        (n for n in nodes if memory[n] >= ROOM_GIB), key=lambda name: nodes[name], default=""
    )
    assert nodes.get(chosen, 0.0) >= MOST, (
        f"no node has {MOST} cores and {ROOM_GIB} GiB free: {nodes}, {memory}"
    )
    left = {name: MOST if name == chosen else 0.0 for name in nodes}
    for number, (name, cpu) in enumerate(nodes.items()):
        if cpu - left[name] > ROUNDING:
            cluster.come(f"stranger-{number}", name, cpu - left[name])
    cluster.until_nodes(
        SEEN_S, lambda seen: all(f <= left[n] + ROUNDING for n, f in strangers.free(seen).items())
    )
    return chosen


@pytest.fixture(scope="module")
def first(cluster: Cluster, home: str, digits: Path) -> Job:
    """Submit a job that starts at its gang floor, because another pod occupies the rest."""
    cluster.come("last", home, MOST - FLOOR)
    cluster.until_nodes(
        SEEN_S, lambda seen: strangers.free(seen).get(home, MOST) <= FLOOR + ROUNDING
    )
    return cluster.submit(digits, **asked("cluster-first", FIRST, workers=2))


def test_a_job_grows_when_another_pod_leaves(cluster: Cluster, first: Job) -> None:
    small = trains(cluster, first, timeout_s=STARTS_S)
    assert sizes(cluster, first, small) == {"chief": 1, "ps": 1, "worker": 1}
    cluster.leave("last")
    assert sizes(cluster, first, trains(cluster, first, after=small))["worker"] == 2


def test_a_job_shrinks_for_one_of_higher_priority_that_does_not_fit(
    cluster: Cluster, first: Job, digits: Path
) -> None:
    large = cluster.events(first)[-1].message["generation"]
    urgent = cluster.submit(digits, **asked("cluster-urgent", URGENT, priority=10))
    assert sizes(cluster, first, trains(cluster, first, after=large))["worker"] == 1
    trains(cluster, urgent, timeout_s=STARTS_S)
    cluster.cancel(urgent.name)
    cluster.cancel(first.name)


@pytest.mark.usefixtures("home")
def test_a_task_is_resized_in_place_and_continues(cluster: Cluster, digits: Path) -> None:
    jobs = [
        cluster.submit(digits, **asked(f"cluster-fluid-{n}", FLUID, policy="flowcon"))
        for n in (1, 2)
    ]
    for job in jobs:
        trains(cluster, job, timeout_s=STARTS_S)
    updated = cluster.until(jobs[0], "task.updated", CHANGES_S)
    pod = json.loads(
        cluster.kubectl("get", "pod", updated["pod"], "-n", cluster.namespace, "-o", "json")
    )
    (container,) = pod["status"]["containerStatuses"]
    made = json.loads(pod["metadata"]["annotations"]["weir.dev/resources"])
    assert (pod["metadata"]["uid"], container["restartCount"]) == (updated["pod_uid"], 0)
    assert whole_units("cpu", container["resources"]["requests"]["cpu"]) != round(
        made["cpu"] * 1000
    )
    for job in jobs:
        cluster.cancel(job.name)


def has_room_elsewhere(cluster: Cluster, home: str) -> bool:
    """Return whether a job with the size of the floor can move to another node.

    If the cluster may have one, delete the other users' pods to make room.
    """
    if (
        not checkpoints_are_everywhere(cluster)
        or len(cluster.kubectl("get", "nodes", "-o", "name").split()) < 2
    ):
        return False
    cluster.leave()
    nodes = strangers.free(
        cluster.until_nodes(SEEN_S, lambda seen: strangers.free(seen).get(home, 0.0) >= MOST)
    )
    return sum(cpu >= FLOOR for cpu in nodes.values()) >= 2


def test_training_continues_when_a_node_is_drained(
    cluster: Cluster, home: str, digits: Path
) -> None:
    """Training moves to another node without a restart.

    Without capacity elsewhere, it resumes from its checkpoint after the node is uncordoned.
    """
    elsewhere = has_room_elsewhere(cluster, home)
    job = cluster.submit(digits, **asked("cluster-moves", FIRST, checkpoint={"every_s": 5}))
    saved = cluster.until(job, "training.saved", STARTS_S)
    node = next(
        task["node"]
        for task in tasks(cluster, job, saved["generation"])
        if task["role"] == "worker"
    )
    cluster.drain(node, job)
    if not elsewhere:
        cluster.until(
            job, "task.exited", CHANGES_S, lambda m: m["generation"] == saved["generation"]
        )
        cluster.open_again()
    resumed = cluster.until(
        job, "training.resumed", CHANGES_S, lambda m: m["generation"] > saved["generation"]
    )
    assert resumed["samples"] >= saved["samples"]
    if elsewhere:
        assert handover_faults(cluster.events(job), saved["generation"], PAUSE_S) == []
        assert node not in {task["node"] for task in tasks(cluster, job, resumed["generation"])}
    cluster.cancel(job.name)


def test_a_cancelled_job_leaves_no_objects(cluster: Cluster, digits: Path) -> None:
    job = cluster.submit(digits, **asked("cluster-brief", FLUID))
    trains(cluster, job, timeout_s=STARTS_S)
    selected = (MADE, "-n", cluster.namespace, "-l", "app.kubernetes.io/managed-by=weir")
    assert f"service/{job.name}" in cluster.kubectl("get", *selected, "-o", "name")
    cluster.cancel_all()
    cluster.kubectl("wait", "--for=delete", *selected, "--timeout=120s")
    assert cluster.kubectl("get", *selected, "-o", "name") == ""
