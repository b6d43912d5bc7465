"""metrics.k8s.io, so that `kubectl top` works; and the counters that a benchmark divides."""

from aiohttp import web

from services.local.api.reading import answer
from services.local.kubelet.usage import Sample, Usage
from services.local.kubelet.world import World
from services.local.objects.bodies import Body, labels, stamp, status
from services.local.objects.kinds import NODE, POD
from services.local.objects.quantities import amounts
from services.local.objects.refusals import no_such_path, not_found
from services.local.objects.selection import label_selector

VERSION = "metrics.k8s.io/v1beta1"


def used(sample: Sample) -> Body:
    return {"cpu": f"{round(sample.cores * 1e9)}n", "memory": f"{sample.memory // 1024}Ki"}


def measured(kind: str, meta: Body, sample: Sample) -> Body:
    when = stamp(sample.at_s)
    return {
        "kind": kind,
        "apiVersion": VERSION,
        "metadata": {**meta, "creationTimestamp": when},
        "timestamp": when,
        "window": f"{sample.window_s:.3f}s",
    }


def node_metrics(name: str, sample: Sample, node: Body) -> Body:
    return {
        **measured("NodeMetrics", {"name": name, "labels": labels(node)}, sample),
        "usage": used(sample),
    }


def pod_metrics(place: tuple[str, str], sample: Sample, pod: Body) -> Body:
    """Measured by the pod: its first container stands for all."""
    meta = {"namespace": place[0], "name": place[1], "labels": labels(pod)}
    container = {"name": pod["spec"]["containers"][0]["name"], "usage": used(sample)}
    return {**measured("PodMetrics", meta, sample), "containers": [container]}


class Metrics:
    def __init__(self, world: World, usage: Usage) -> None:
        self.world, self.usage = world, usage

    def serve(self, request: web.Request) -> web.Response:
        steps = request.path.strip("/").split("/")[3:]
        namespace, rest = (
            (steps[1], steps[2:]) if steps[:1] == ["namespaces"] and len(steps) > 2 else ("", steps)
        )
        if rest[:1] not in (["nodes"], ["pods"]) or len(rest) > 2:
            raise no_such_path()
        found = self.nodes() if rest[0] == "nodes" else self.pods(namespace)
        if len(rest) == 1:
            return self.listed(rest[0], found, request.query.get("labelSelector", ""))
        named = [m for m in found if m["metadata"]["name"] == rest[1]]
        return answer(named[0] if named else missing(rest))

    def listed(self, plural: str, found: list[Body], selector: str) -> web.Response:
        match = label_selector(selector)
        kind = "NodeMetricsList" if plural == "nodes" else "PodMetricsList"
        return answer(
            {
                "kind": kind,
                "apiVersion": VERSION,
                "metadata": {},
                "items": [m for m in found if match(m)],
            }
        )

    def nodes(self) -> list[Body]:
        known = [
            (name, sample, self.world.store.find(NODE, "", name))
            for name, sample in self.usage.nodes.items()
        ]
        return [
            node_metrics(name, sample, node) for name, sample, node in known if node is not None
        ]

    def pods(self, namespace: str) -> list[Body]:
        known = [
            (place, sample, self.world.store.find(POD, *place))
            for place, sample in self.usage.pods.items()
        ]
        return [
            pod_metrics(place, s, pod)
            for place, s, pod in known
            if pod is not None and namespace in ("", place[0])
        ]

    def cpu_seconds(self, request: web.Request) -> web.Response:
        measured = self.usage.cpu_seconds()
        nodes = {
            name: {"allocatable": self.allocatable(name), "seconds": s}
            for name, s in measured["nodes"].items()
        }
        return answer(
            {"enforced": self.world.cgroups.enforced, "nodes": nodes, "pods": measured["pods"]}
        )

    def allocatable(self, name: str) -> float:
        node = self.world.store.find(NODE, "", name) or {}
        return amounts(status(node).get("allocatable")).get("cpu", 0) / 1000


def missing(rest: list[str]) -> Body:
    raise not_found(rest[0], rest[1], "metrics.k8s.io")
