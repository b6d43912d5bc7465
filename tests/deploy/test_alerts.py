"""Tests of the alerts: their queries are valid, they have a remedy, and they fire."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.__main__ import COMMANDS
from shared.runtime.metrics import Family
from tests.deploy import alert_stories, custom_resources, promql
from tests.deploy.rendered import DEPLOY
from tests.shared.metric_families import families, values

FILE = DEPLOY / "components/alerts/rules.yaml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text())["spec"]["groups"] for rule in group["rules"]
]
NAMES = [str(rule["alert"]) for rule in RULES]
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool here (Debian has it in `prometheus`)"
)
TOLD = {
    "weir_training_pause_phase_seconds": (
        "which part of a pause is long, once the alert on pauses says that they are"
    ),
    "weir_training_change_seconds": (
        "how long images take is the cluster's own affair; stuck pods have an alert"
    ),
    "weir_training_prepare_seconds": "the generation before trains on meanwhile",
    "weir_training_save_seconds": "training goes on meanwhile; what cannot be saved has an alert",
    "weir_training_staleness_updates": "how much is too much depends on the program",
    "weir_training_gradients_dropped_total": "the job asked for it; each example is still applied",
    "weir_training_cpu_cores": "how much is used is a matter of taste",
    "weir_capacity_memory_bytes": "as of cores",
    "weir_capacity_devices": "as of cores",
    "weir_bus_messages_published_total": "silence is right where nothing happens",
    "weir_bus_messages_heard_total": "silence is right where nothing happens",
    "weir_bus_messages_newer_total": (
        "expected while versions are rolled one by one; the log names each kind"
    ),
    "weir_bus_dead_letters_total": "weir_dead_letters_total counts them too, and those of trainers",
    "weir_bus_reconnects_total": "each is over when it is counted; an outage has an alert",
    "weir_kubernetes_requests_total": "what comes of refusals is told as time that was waited",
    "process_cpu_seconds_total": "what comes of too little is told as time to decide and to react",
    "process_resident_memory_bytes": "Kubernetes' own alerts tell of memory",
    "weir_snapshot_bytes": "a snapshot that is too large is one that cannot be stored",
    "process_start_time_seconds": "restarts show as changes of leaders",
}
"""Metrics without an alert, each with the reason."""


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_every_query_of_an_alert_uses_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    assert promql.problems(rule["expr"], families(), values()) == []


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_every_alert_has_a_summary_and_a_remedy(rule: dict[str, Any]) -> None:
    summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
    assert re.fullmatch(r"Weir[A-Z][A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert summary.endswith(".") or (summary.endswith(").") and len(summary) < 130)
    assert description.endswith(".") and description != summary
    assert {word for word in re.findall(r"`weir ([a-z-]+)", description)} <= set(COMMANDS)


def test_alert_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 20


def test_every_metric_has_an_alert_or_a_reason_for_having_none() -> None:
    asked = {name for rule in RULES for name in promql.names(rule["expr"])}
    asked = {re.sub("_(bucket|sum|count)$", "", name) for name in asked}

    assert (set(families()) - asked) == set(TOLD)


def test_labels_in_an_alert_text_are_in_the_result_of_its_query() -> None:
    """`{{ $labels.stream }}` needs `sum by (stream)`; a plain `sum` has no labels."""
    for rule in RULES:
        said = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        kept = re.match(
            r"\s*(?:histogram_quantile\([\d.]+, )?sum(?: by \(([\w, ]+)\))?", rule["expr"]
        )
        if kept:
            assert said <= set((kept[1] or "").split(", ")), rule["alert"]


@pytest.mark.parametrize(
    "change", [{"for": "a while"}, {"exprs": "up"}, {"labels": {"severity": 1}}]
)
def test_a_misspelt_field_of_a_rule_is_an_error(change: dict[str, Any]) -> None:
    body = yaml.safe_load(FILE.read_text())
    custom_resources.validate(body)
    body["spec"]["groups"][0]["rules"][0] |= change
    with pytest.raises(custom_resources.SchemaError):
        custom_resources.validate(body)


HEAT = Family(
    name="weir_heat_seconds",
    kind="histogram",
    help="How long it was hot.",
    labels=("oven",),
    bounds=(1,),
)
LOAVES = Family(
    name="weir_loaves_total", kind="counter", help="Loaves that were baked.", labels=("kind",)
)
OVENS = Family(name="weir_ovens", kind="gauge", help="Ovens that there are.", labels=("state",))


@pytest.mark.parametrize(
    "expression",
    [
        "weir_ovens >",
        "weir_stoves",
        'weir_ovens{colour="red"}',
        'weir_ovens{state="lukewarm"}',
        'weir_ovens{state=~"hot|lukewarm"}',
        'weir_ovens{job="weir-baker"}',
        "rate(weir_ovens[5m])",
        "weir_loaves_total > 5",
        "sum by (flour) (rate(weir_loaves_total[5m]))",
        "rate(weir_heat_seconds[5m])",
        "rate(weir_heat_seconds_bucket[5m])",
        "histogram_quantile(0.9, sum(rate(weir_heat_seconds_bucket[5m])))",
        "histogram_quantile(0.9, sum by (oven) (rate(weir_heat_seconds_bucket[5m])))",
    ],
)
def test_a_query_without_a_result_is_an_error(expression: str) -> None:
    known = {family.name: family for family in (HEAT, LOAVES, OVENS)}
    assert promql.problems(expression, known, {("weir_ovens", "state"): {"hot", "cold"}})


@needs_promtool
def test_promtool_accepts_the_rules_and_its_unit_tests_pass(tmp_path: Path) -> None:
    """The unit tests say which alerts fire on which values; without a problem none fires."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(yaml.safe_load(FILE.read_text())["spec"]))
    (tmp_path / "stories.yaml").write_text(yaml.safe_dump(alert_stories.stories("rules.yaml")))
    for words in (["check", "rules", "rules.yaml"], ["test", "rules", "stories.yaml"]):
        done = subprocess.run(
            [str(PROMTOOL), *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_promtool_unit_test() -> None:
    assert set(alert_stories.BAD) == set(NAMES)
