"""The kubelet: main loop over its pods, status of its nodes, usage, and logs of past pods.

For each change of a pod the main loop asks `pod_status.pod_action` and performs the action.

Law: at most `PODS` log folders of ended pods and `BYTES` of logs are kept. The oldest are deleted
first. The logs of a running pod are never deleted.
"""

from __future__ import annotations

import asyncio
import platform
import shutil
import sys
from collections.abc import Container
from pathlib import Path

import msgspec
import structlog

from services.local.cluster_spec import NodeSpec
from services.local.events import WARNING, record_event
from services.local.kubelet import pod_status
from services.local.kubelet.container import KubeletContext
from services.local.kubelet.pod_status import PodAction
from services.local.kubelet.pod_worker import COMPONENT, PodWorker
from services.local.objects.bodies import (
    Body,
    conditions_of,
    meta,
    name_of,
    namespace_of,
    node_of,
    uid_of,
    with_condition,
    with_status,
)
from services.local.objects.kinds import NODE, POD
from services.local.objects.resources import cpu_text
from services.local.store import DELETED
from shared.kube.objects import GPU

log = structlog.get_logger()


class Kubelet:
    def __init__(self, context: KubeletContext, nodes: set[str]) -> None:
        self.context, self.nodes = context, nodes
        self.position = context.store.revision
        self.workers: dict[str, PodWorker] = {}  # by uid
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.deferred: set[str] = set()  # uids of pods that wait to be resized

    async def run(self) -> None:
        cache = self.context.store.watch_cache(POD)
        while True:
            news = cache.news
            latest = self.context.store.revision
            for change in cache.after(self.position):
                pod = change.after.body
                if node_of(pod) in self.nodes:
                    self.sync_pod(pod, change.verb == DELETED)
            self.position = latest
            await news.wait()

    def sync_pod(self, pod: Body, gone: bool) -> None:
        """Perform the action for a pod. `gone`: it is deleted."""
        latest = pod if gone else self.context.store.latest(POD, pod)
        if latest is None:
            return  # its end is a later change
        worker = self.workers.get(uid_of(pod))
        granted = worker.granted_resources if worker else {}
        action = pod_status.pod_action(latest, gone, worker is not None, granted)
        if action is PodAction.START:
            self.start_pod(latest)
        elif action is PodAction.STOP:
            self.stop_pod(latest)
        elif action is PodAction.KILL:
            self.kill_pod(latest)
        elif action is PodAction.RESIZE:
            self.resize_pod(latest)
        elif action is PodAction.TAKE_AWAY:
            self.context.store.finish_pod(POD, latest)

    def start_pod(self, pod: Body) -> None:
        if why := pod_status.admission_failure(pod, self.free_for(pod)):
            self.reject_pod(pod, why)
            return
        worker = PodWorker(self.context, pod)
        task = asyncio.create_task(worker.run_to_end())
        task.add_done_callback(lambda done: self.on_pod_worker_end(pod, done))
        self.workers[uid_of(pod)] = worker
        self.tasks[uid_of(pod)] = task

    def reject_pod(self, pod: Body, why: str) -> None:
        message = f"Node didn't have enough resource: {why.removeprefix('OutOf')}"
        if why == pod_status.NO_SIDECARS:
            message = "Sidecar containers are not run here"
        record_event(self.context.store, pod, COMPONENT, WARNING, why, message)
        now_s = self.context.store.clock()
        rejected = pod_status.rejected_pod(pod, why, f"Pod was rejected: {message}", now_s)
        self.context.store.update(POD, rejected)

    def on_pod_worker_end(self, pod: Body, task: asyncio.Task[None]) -> None:
        self.workers.pop(uid_of(pod), None)
        self.tasks.pop(uid_of(pod), None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("PodLifeBroke", pod=name_of(pod), exc_info=error)
        prune_pod_logs(self.context.logs, self.workers)

    def stop_pod(self, pod: Body) -> None:
        self.workers[uid_of(pod)].stop(float(meta(pod).get("deletionGracePeriodSeconds") or 0))

    def kill_pod(self, pod: Body) -> None:
        self.workers[uid_of(pod)].kill()

    def free_for(self, pod: Body) -> dict[str, int]:
        node = self.context.store.find(NODE, "", node_of(pod)) or {}
        return pod_status.free_for(pod, node, self.context.store.bodies(POD))

    # ---- resizing in place

    def resize_pod(self, pod: Body) -> None:
        store = self.context.store
        node = store.find(NODE, "", node_of(pod)) or {}
        why = pod_status.resize_failure(pod, node, self.free_for(pod))
        if not why:
            self.deferred.discard(uid_of(pod))
            self.workers[uid_of(pod)].resize(pod)
            return
        self.deferred.add(uid_of(pod))
        message = "Node didn't have enough resource"
        store.update(
            POD, with_condition(pod, store.now(), "PodResizePending", "True", why, message)
        )

    def retry_deferred(self) -> None:
        for uid in list(self.deferred):
            worker = self.workers.get(uid)
            current = worker.current() if worker else None
            self.deferred.discard(uid)
            if current is not None:
                self.sync_pod(current, gone=False)

    # ---- the end of the cluster

    async def stop_all(self) -> None:
        tasks = list(self.tasks.values())
        for worker in list(self.workers.values()):
            worker.shut_down(self.context.settings.shutdown_s)
        if tasks:
            await asyncio.wait(tasks, timeout=self.context.settings.shutdown_s + 1)


PODS_PER_NODE = 110
VERSION = "v1.36.0"
QUIET = {
    "MemoryPressure": "KubeletHasSufficientMemory",
    "DiskPressure": "KubeletHasNoDiskPressure",
    "PIDPressure": "KubeletHasSufficientPID",
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def capacity_of(node: NodeSpec) -> Body:
    capacity = {
        "cpu": cpu_text(round(node.cpu * 1000)),
        "memory": f"{int(node.memory_gib * 2**20)}Ki",
        "pods": str(PODS_PER_NODE),
    }
    if node.gpu:
        capacity[GPU] = str(node.gpu)
    return capacity


def system_info() -> Body:
    return {
        "architecture": machine_architecture(),
        "operatingSystem": "linux",
        "kernelVersion": platform.release(),
        "osImage": "one machine, pods as processes",
        "kubeletVersion": VERSION,
        "kubeProxyVersion": VERSION,
        "containerRuntimeVersion": f"process://{sys.version_info.major}.{sys.version_info.minor}",
        "machineID": "",
        "systemUUID": "",
        "bootID": "",
    }


def machine_architecture() -> str:
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def labels_for(name: str) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine_architecture(),
        "weir.dev/local": "true",
    }


def ready_node(node: Body, now: str) -> Body:
    """Return the node with the conditions of a healthy node, and a new heartbeat."""
    for kind, reason in QUIET.items():
        node = with_condition(node, now, kind, "False", reason)
    message = "kubelet is posting ready status"
    node = with_condition(node, now, "Ready", "True", "KubeletReady", message)
    conditions = [{**each, "lastHeartbeatTime": now} for each in conditions_of(node)]
    return with_status(node, conditions=conditions)


def closing_node(node: Body, now: str) -> Body:
    """Return the node as a real kubelet reports it at the shutdown of its machine: nothing is
    placed there.
    """
    return with_condition(node, now, "Ready", "False", "KubeletNotReady", "node is shutting down")


def status_of(node: NodeSpec, name: str) -> Body:
    addresses = [
        {"type": "InternalIP", "address": "127.0.0.1"},
        {"type": "Hostname", "address": name},
    ]
    capacity = capacity_of(node)
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": addresses,
        "nodeInfo": system_info(),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
    }


def lease_spec(name: str, now: str, duration_s: int) -> Body:
    return {"holderIdentity": name, "leaseDurationSeconds": duration_s, "renewTime": now}


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    seconds: float  # of cpu, since the pod or node began
    cores: float = 0.0  # of cpu, over the window
    window_s: float = 0.0
    memory: int = 0  # bytes


def next_sample(last: Sample | None, at_s: float, seconds: float, memory: int) -> Sample:
    window = at_s - last.at_s if last else 0.0
    cores = (seconds - last.seconds) / window if last and window > 0 else 0.0
    return Sample(at_s=at_s, seconds=seconds, cores=max(cores, 0.0), window_s=window, memory=memory)


class Usage:
    def __init__(self, context: KubeletContext, kubelet: Kubelet) -> None:
        self.context, self.kubelet = context, kubelet
        self.pods: dict[tuple[str, str], Sample] = {}
        self.nodes: dict[str, Sample] = {}

    def measure_usage(self) -> None:
        """Measure all running pods and all nodes."""
        now_s, groups = self.context.store.clock(), self.context.cgroups
        pods: dict[tuple[str, str], Sample] = {}
        memory = dict.fromkeys(self.kubelet.nodes, 0)
        for pod in self.running_pods():
            key, used = pod_key(pod), self.memory_bytes(pod)
            pods[key] = next_sample(self.pods.get(key), now_s, self.pod_seconds(pod), used)
            memory[node_of(pod)] += used
        self.pods = pods
        nodes = {}
        for name in sorted(self.kubelet.nodes):
            last, seconds = self.nodes.get(name), groups.node_seconds(name)
            nodes[name] = next_sample(last, now_s, seconds, memory[name])
        self.nodes = nodes

    def running_pods(self) -> list[Body]:
        return [worker.pod for worker in self.kubelet.workers.values() if worker.is_open]

    def pod_seconds(self, pod: Body) -> float:
        return self.context.cgroups.pod_seconds(node_of(pod), uid_of(pod))

    def memory_bytes(self, pod: Body) -> int:
        return self.context.cgroups.memory_bytes(node_of(pod), uid_of(pod))

    def cpu_seconds(self) -> Body:
        """Measure the CPU seconds of pods and nodes now, for benchmarks."""
        pods = {"/".join(pod_key(pod)): self.pod_seconds(pod) for pod in self.running_pods()}
        nodes = {
            name: self.context.cgroups.node_seconds(name) for name in sorted(self.kubelet.nodes)
        }
        return {"nodes": nodes, "pods": pods}


def pod_key(pod: Body) -> tuple[str, str]:
    return namespace_of(pod), name_of(pod)


PODS, BYTES = 100, 256 << 20


def prune_pod_logs(
    folder: Path, living: Container[str], most: int = PODS, most_bytes: int = BYTES
) -> None:
    """Delete the oldest logs of ended pods. `living`: the uids of running pods; the name of a pod's
    folder ends with its uid.
    """
    ended = [each for each in _folders(folder) if each.name.rpartition("_")[2] not in living]
    newest = sorted(ended, key=_written_s, reverse=True)
    left = most_bytes
    for number, each in enumerate(newest):
        left -= sum(file.stat().st_size for file in each.iterdir())
        if number >= most or left < 0:
            shutil.rmtree(each, ignore_errors=True)


def _folders(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []


def _written_s(folder: Path) -> float:
    return max((file.stat().st_mtime for file in folder.iterdir()), default=0.0)
