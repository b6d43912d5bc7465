"""How much is used: cpu seconds since the beginning, and the speed of use between the last two
looks.
"""

import msgspec

from services.local.kubelet.kubelet import Kubelet
from services.local.kubelet.world import World
from services.local.objects.bodies import Body, name_of, namespace_of, node_of, uid_of


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
    def __init__(self, world: World, kubelet: Kubelet) -> None:
        self.world, self.kubelet = world, kubelet
        self.pods: dict[tuple[str, str], Sample] = {}
        self.nodes: dict[str, Sample] = {}

    def look(self) -> None:
        now, groups = self.world.store.clock(), self.world.cgroups
        pods = self.living()
        self.pods = {
            place(pod): next_sample(
                self.pods.get(place(pod)), now, self.pod_seconds(pod), self.memory(pod)
            )
            for pod in pods
        }
        memory = {
            name: sum(self.pods[place(p)].memory for p in pods if node_of(p) == name)
            for name in self.kubelet.nodes
        }
        self.nodes = {
            name: next_sample(self.nodes.get(name), now, groups.node_seconds(name), memory[name])
            for name in sorted(self.kubelet.nodes)
        }

    def living(self) -> list[Body]:
        return [life.pod for life in self.kubelet.lives.values() if life.is_open]

    def pod_seconds(self, pod: Body) -> float:
        return self.world.cgroups.pod_seconds(node_of(pod), uid_of(pod))

    def memory(self, pod: Body) -> int:
        return self.world.cgroups.memory_bytes(node_of(pod), uid_of(pod))

    def cpu_seconds(self) -> Body:
        """Read anew, for whoever measures."""
        pods = {"/".join(place(pod)): self.pod_seconds(pod) for pod in self.living()}
        nodes = {name: self.world.cgroups.node_seconds(name) for name in sorted(self.kubelet.nodes)}
        return {"nodes": nodes, "pods": pods}


def place(pod: Body) -> tuple[str, str]:
    return namespace_of(pod), name_of(pod)
