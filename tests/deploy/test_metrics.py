"""Tests of scraping: services listen on the ports that the manifests name; names of metrics."""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import jsonschema
import pytest

from shared.runtime import http_server
from shared.runtime.config import Common, load_settings
from shared.runtime.http_server import format_metrics
from shared.runtime.metrics import Health, Histogram, Measure
from shared.runtime.process import free_port
from tests.deploy import custom_resources
from tests.deploy.rendered import DEPLOY, RENDERINGS, environ, named, of, templates
from tests.shared.metric_families import at_first, families
from tests.shared.metric_lint import problems

ASKED = {"weir-monitor", "weir-allocator", "weir-launcher", "weir-setup"}
SCRAPED = [name for name in RENDERINGS if "service-monitors" in name]
GUARDED = [name for name in RENDERINGS if "production" in name or "network-policies" in name]
FAMILIES = list(families().values())


def container(name: str, pod: str) -> dict[str, Any]:
    (one,) = templates(name)[pod]["spec"]["containers"]
    return dict(one)


def port_of(name: str, pod: str) -> int:
    (number,) = (
        port["containerPort"] for port in container(name, pod)["ports"] if port["name"] == "metrics"
    )
    return int(number)


@pytest.mark.parametrize("name", RENDERINGS)
def test_scrape_targets_are_the_ports_of_the_services_and_no_others(name: str) -> None:
    for pod in ASKED:
        given = {k: v for k, v in environ(name, pod).items() if k == "WEIR_METRICS_PORT"}
        assert (
            load_settings(Common, pod.removeprefix("weir-"), given).metrics_port
            == port_of(name, pod)
            > 1023
        )
        for probe in ("livenessProbe", "readinessProbe"):
            assert container(name, pod)[probe]["httpGet"]["port"] == "metrics"
    assert {pod for pod in templates(name) if "WEIR_METRICS_PORT" in environ(name, pod)} == ASKED


@pytest.mark.parametrize("pod", sorted(ASKED))
async def test_every_scraped_port_serves_metrics(pod: str) -> None:
    asked = {
        container("dev", pod)[f"{kind}Probe"]["httpGet"]["path"]
        for kind in ("liveness", "readiness")
    }
    (end,) = named(SCRAPED[0], "ServiceMonitor", "weir")["spec"]["endpoints"]
    port = free_port()
    listening = await http_server.serve_health(Health(), port)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        answers = [await session.get(path) for path in (*asked, end["path"])]
        assert [answer.status for answer in answers] == [200] * 3
        assert (await session.get("/")).status == 404
    await listening.cleanup()


@pytest.mark.parametrize("name", SCRAPED)
def test_prometheus_discovers_the_services_and_no_other_pod(name: str) -> None:
    monitors = of(name, "ServiceMonitor")
    assert len(monitors) == 1
    wanted = monitors[0]["spec"]["selector"]["matchLabels"].items()
    (service,) = (
        body for body in of(name, "Service") if wanted <= body["metadata"]["labels"].items()
    )
    (port,) = service["spec"]["ports"]
    assert [end["port"] for end in monitors[0]["spec"]["endpoints"]] == [port["name"]]
    assert port["targetPort"] == "metrics" and service["spec"]["publishNotReadyAddresses"]
    chosen = service["spec"]["selector"].items()
    pods = {
        pod
        for pod, template in templates(name).items()
        if chosen <= template["metadata"]["labels"].items()
    }
    assert pods == ASKED and {port_of(name, pod) for pod in pods} == {port["port"]}


@pytest.mark.parametrize("name", GUARDED)
def test_the_network_policy_for_scraping_opens_only_the_metrics_port(name: str) -> None:
    policy = named(name, "NetworkPolicy", "weir-metrics")["spec"]
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": "metrics"}]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"weir.dev/scrapes": "true"}}}]
    assert (
        "kubectl label namespace monitoring weir.dev/scrapes=true"
        in (DEPLOY / "README.md").read_text()
    )
    chosen = policy["podSelector"]["matchLabels"].items()
    assert {
        pod for pod, t in templates(name).items() if chosen <= t["metadata"]["labels"].items()
    } == ASKED


@pytest.mark.parametrize("name", GUARDED)
def test_the_network_policy_for_scraping_opens_the_monitoring_port_of_nats(name: str) -> None:
    rules = named(name, "NetworkPolicy", "weir-nats")["spec"]["ingress"]
    (rule,) = (rule for rule in rules if rule["ports"] == [{"port": "monitor"}])
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"weir.dev/scrapes": "true"}}}]
    (port,) = (
        p["containerPort"] for p in container(name, "weir-nats")["ports"] if p["name"] == "monitor"
    )
    assert f"http: {port} " in named(name, "ConfigMap", "weir-nats")["data"]["nats.conf"]


@pytest.mark.parametrize(
    "change", [{"endpoint": []}, {"endpoints": []}, {"endpoints": [{"prot": "metrics"}]}]
)
def test_a_misspelt_field_of_a_service_monitor_is_an_error(change: dict[str, Any]) -> None:
    body = named(SCRAPED[0], "ServiceMonitor", "weir")
    with pytest.raises(jsonschema.ValidationError):
        custom_resources.validate({**body, "spec": {**body["spec"], **change}})


def test_every_metric_in_the_documentation_is_exported() -> None:
    told = {family.name for family in FAMILIES}
    page = (DEPLOY / "README.md").read_text()
    named_here = {name.removesuffix("_bucket") for name in re.findall(r"\bweir_[a-z_]+[a-z]", page)}
    assert len(named_here) >= 6 and named_here <= told


def test_every_metric_of_every_service_follows_the_naming_rules() -> None:
    empty = [
        Histogram((0,) * (len(family.bounds) + 1)) if family.bounds else 1.0 for family in FAMILIES
    ]
    told = [
        Measure(f, {("x",) * len(f.labels): value})
        for f, value in zip(FAMILIES, empty, strict=True)
    ]

    assert len(FAMILIES) > 30 and problems(format_metrics(told)) == []


def test_metrics_before_the_first_event_follow_the_naming_rules() -> None:
    assert problems(format_metrics(at_first())) == []
