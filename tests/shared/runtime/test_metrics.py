"""Tests of the format of metrics for Prometheus, and of the lint.

Also tests of the conditions that a service does not meet, and of its measurements.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from shared.runtime.http_server import format_metrics
from shared.runtime.metrics import Family, Health, Measure, Meter
from tests.shared.metric_lint import MOST_SERIES, problems

WAIT = Family(
    name="weir_oven_wait_seconds",
    kind="histogram",
    help="How long bread waited.",
    labels=("oven",),
    bounds=(1, 2.5),
)
LOAVES = Family(
    name="weir_loaves_total", kind="counter", help="Loaves that were baked.", labels=("kind",)
)
HEAT = Family(name="weir_heat_seconds", kind="gauge", help="How long the oven has been hot.")
RISING = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=6, unique=True).map(sorted)


def test_counters_and_gauges_are_formatted() -> None:
    loaves = Meter(LOAVES)
    for kind in ("rye", "rye", "spelt"):
        loaves.count(kind)

    assert format_metrics([loaves.measure(), Measure(HEAT, {(): 1.5})]) == (
        "# HELP weir_loaves_total Loaves that were baked.\n"
        "# TYPE weir_loaves_total counter\n"
        'weir_loaves_total{kind="rye"} 2.0\n'
        'weir_loaves_total{kind="spelt"} 1.0\n'
        "# HELP weir_heat_seconds How long the oven has been hot.\n"
        "# TYPE weir_heat_seconds gauge\n"
        "weir_heat_seconds 1.5\n"
    )


def test_a_value_equal_to_a_bound_is_in_its_bucket() -> None:
    wait = Meter(WAIT)
    for value in (1, 1.1, 2.5, 7):
        wait.observe(value, "left")

    assert format_metrics([wait.measure()]).splitlines()[2:] == [
        'weir_oven_wait_seconds_bucket{le="1.0",oven="left"} 1.0',
        'weir_oven_wait_seconds_bucket{le="2.5",oven="left"} 3.0',
        'weir_oven_wait_seconds_bucket{le="+Inf",oven="left"} 4.0',
        'weir_oven_wait_seconds_sum{oven="left"} 11.6',
        'weir_oven_wait_seconds_count{oven="left"} 4.0',
    ]


@given(RISING, st.lists(st.floats(-1e9, 1e9), max_size=20), st.text())
def test_the_prometheus_parser_reads_the_metrics(
    bounds: list[float], values: list[float], oven: str
) -> None:
    wait = Meter(
        Family(
            name=WAIT.name,
            kind="histogram",
            help=WAIT.help,
            labels=WAIT.labels,
            bounds=tuple(bounds),
        )
    )
    for value in values:
        wait.observe(value, oven)
    (family,) = text_string_to_metric_families(format_metrics([wait.measure()]))

    told = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    assert {sample.labels["oven"] for sample in family.samples} <= {oven}
    assert told.get(f"{WAIT.name}_count", 0) == len(values)
    assert math.isclose(told.get(f"{WAIT.name}_sum", 0), sum(values), abs_tol=1e-3)
    for bound in bounds if values else []:
        assert told[f"{bound}"] == sum(value <= bound for value in values)


def test_metrics_without_observations_pass_the_lint() -> None:
    assert problems(format_metrics([Meter(LOAVES).measure(), Meter(WAIT).measure()])) == []


def one(
    name: str,
    kind: str = "gauge",
    labels: tuple[str, ...] = (),
    sentence: str = "Some number of the oven.",
) -> str:
    family = Family(name=name, kind=kind, help=sentence, labels=labels)  # type: ignore[arg-type]
    return format_metrics([Measure(family, {("x",) * len(labels): 1.0})])


@pytest.mark.parametrize(
    "text",
    [
        one("oven_heat"),
        one("weir_Heat"),
        one("weir_wait_ms"),
        one("weir_wait_minutes"),
        one("weir_seconds_waited"),
        one("weir_loaves", "counter"),
        one("weir_loaves_total"),
        one("weir_loaves_gauge"),
        one("weir_loaves", labels=("job",)),
        one("weir_loaves", labels=("pod",)),
        one("weir_loaves", labels=("Kind",)),
        one("weir_loaves", sentence="Loaves."),
        one("weir_loaves", sentence="Loaves that somebody has baked"),
        one("weir_loaves") + one("weir_loaves"),
        one("weir_loaves").replace("# TYPE weir_loaves gauge\n", ""),
        one("weir_loaves").rstrip("\n"),
        one("weir_loaves") + "weir_loaves 2.0\n",
        format_metrics([Measure(LOAVES, {(str(n),): 1.0 for n in range(MOST_SERIES + 1)})]),
        one("weir_wait", "histogram").replace(
            "weir_wait 1.0", 'weir_wait_bucket{le="1"} 2\nweir_wait_count 2'
        ),
    ],
)
def test_the_lint_finds_each_violation(text: str) -> None:
    assert problems(text)


TEMPERATURE = Family(name="weir_heat", kind="gauge", help="How hot the oven is.")


def test_without_conditions_none_is_unmet() -> None:
    assert Health().unmet() == []


def test_conditions_are_evaluated_each_time_and_the_last_of_a_name_counts() -> None:
    vitals, hot = Health(), list[str]()
    vitals.require("heat", lambda: bool(hot))
    vitals.require("dough", lambda: False)
    assert vitals.unmet() == ["heat", "dough"]

    hot.append("very")
    assert vitals.unmet() == ["dough"]
    vitals.require("dough", lambda: True)
    assert vitals.unmet() == []


def test_every_metric_source_is_read_each_time() -> None:
    vitals, heat = Health(), [1.0]
    vitals.add_source("oven", lambda: [Measure(TEMPERATURE, {(): heat[0]})])
    heat[0] = 2.0
    assert vitals.measures() == [Measure(TEMPERATURE, {(): 2.0})]
