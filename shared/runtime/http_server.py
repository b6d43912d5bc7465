"""The HTTP server of a service: metrics, liveness and readiness. Trainers have none.

GET /metrics    the metrics, for Prometheus (prometheus_client writes the text)
GET /healthz    200 while the event loop runs. Nothing else is checked, so that no outage elsewhere
                ends the service
GET /readyz     200 if the service works, or stands by; else 503 and the conditions that are not met
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import accumulate

import psutil
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shared.runtime.metrics import Family, Health, Histogram, Measure

CPU = Family(
    name="process_cpu_seconds_total", kind="counter", help="CPU time that the process has used."
)
MEMORY = Family(
    name="process_resident_memory_bytes", kind="gauge", help="Resident memory of the process."
)
BEGUN = Family(
    name="process_start_time_seconds",
    kind="gauge",
    help="Start of the process, in seconds since 1970.",
)
READY = Family(
    name="weir_ready",
    kind="gauge",
    help="1 if the service works or stands by, else 0.",
)


async def serve_health(health: Health, port: int) -> web.AppRunner:
    """Serve on all interfaces. The caller ends it by `cleanup`. Raises `OSError` if the port is
    taken.
    """
    registry = CollectorRegistry()
    registry.register(HealthCollector(health))

    async def metrics(request: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        return web.Response(body=generate_latest(registry), headers=headers)

    async def alive(request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def ready(request: web.Request) -> web.Response:
        if unmet := health.unmet():
            return web.Response(status=503, text=f"not ready: waiting for {', '.join(unmet)}\n")
        return web.Response(text="ready\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner


class HealthCollector(Collector):
    """Collects the metrics of one service; each service has a registry of its own."""

    def __init__(self, health: Health) -> None:
        self.health = health

    def collect(self) -> Iterator[Metric]:
        is_ready = float(not self.health.unmet())
        measures = [
            *self.health.measures(),
            *process_measures(),
            Measure(READY, {(): is_ready}),
        ]
        return map(prometheus_metric, measures)


def process_measures() -> Iterable[Measure]:
    """Return the metrics of the process, under the names that every exporter uses."""
    process = psutil.Process()
    used = process.cpu_times()
    return (
        Measure(CPU, {(): used.user + used.system}),
        Measure(MEMORY, {(): process.memory_info().rss}),
        Measure(BEGUN, {(): min(process.create_time(), time.time())}),
    )


# ---------------------------------------------------------------- conversion


def format_metrics(measures: Iterable[Measure]) -> str:
    """Return measures in Prometheus' text format, version 0.0.4."""
    registry = CollectorRegistry()
    registry.register(_FixedCollector(measures))
    return generate_latest(registry).decode()


class _FixedCollector(Collector):
    def __init__(self, measures: Iterable[Measure]) -> None:
        self.measures = measures

    def collect(self) -> Iterator[Metric]:
        return map(prometheus_metric, self.measures)


def prometheus_metric(measure: Measure) -> Metric:
    """Convert a measure. The library wants the name of a counter without `_total`."""
    family = measure.family
    name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
    metric = Metric(name, family.help, family.kind)
    for values, number in sorted(measure.series.items()):
        labels = dict(zip(family.labels, values, strict=True))
        if isinstance(number, Histogram):
            _add_histogram(metric, family, labels, number)
        else:
            metric.add_sample(family.name, labels, float(number))
    return metric


def _add_histogram(
    metric: Metric, family: Family, labels: dict[str, str], histogram: Histogram
) -> None:
    """Add the buckets, each with the observations at most its bound, then the sum and the count."""
    bounds = [*(str(float(bound)) for bound in family.bounds), "+Inf"]
    counts = list(accumulate(histogram.counts))
    for bound, count in zip(bounds, counts, strict=True):
        metric.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{family.name}_sum", labels, histogram.sum)
    metric.add_sample(f"{family.name}_count", labels, counts[-1])
