"""A node as the kubelet reports it: what it has, how it is, and the proof that it lives."""

import platform
import sys

from services.local.node_spec import NodeSpec
from services.local.objects.bodies import Body, with_condition
from services.local.objects.quantities import cpu_text
from shared.kube.objects import GPU

PODS_PER_NODE = 110
VERSION = "v1.36.0"
QUIET = {
    "MemoryPressure": "KubeletHasSufficientMemory",
    "DiskPressure": "KubeletHasNoDiskPressure",
    "PIDPressure": "KubeletHasSufficientPID",
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def capacity_of(node: NodeSpec) -> Body:
    gpu = {GPU: str(node.gpu)} if node.gpu else {}
    memory = f"{int(node.memory_gib * 2**20)}Ki"
    return {
        "cpu": cpu_text(round(node.cpu * 1000)),
        "memory": memory,
        "pods": str(PODS_PER_NODE),
        **gpu,
    }


def info() -> Body:
    return {
        "architecture": architecture(),
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


def architecture() -> str:
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def labels_for(name: str) -> dict[str, str]:
    plain = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": architecture(),
    }
    return {**plain, "weir.dev/local": "true"}


def ready(node: Body, now: str) -> Body:
    """Every condition as good news, with a fresh heartbeat."""
    for kind, reason in QUIET.items():
        node = with_condition(node, now, kind, "False", reason)
    node = with_condition(
        node, now, "Ready", "True", "KubeletReady", "kubelet is posting ready status"
    )
    beating = [{**c, "lastHeartbeatTime": now} for c in node["status"]["conditions"]]
    return {**node, "status": {**node["status"], "conditions": beating}}


def shutting_down(node: Body, now: str) -> Body:
    """As a real kubelet says it whose machine is shut down in order: nothing is to be bound there
    any more.
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
        "nodeInfo": info(),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
    }


def lease_spec(name: str, now: str, duration_s: int) -> Body:
    return {"holderIdentity": name, "leaseDurationSeconds": duration_s, "renewTime": now}
