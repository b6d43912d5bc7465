"""Tests of the dashboard: valid queries, descriptions, units, and panels that do not overlap."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.deploy import promql
from tests.deploy.rendered import DEPLOY, named
from tests.shared.metric_families import families, values

BOARD = json.loads((DEPLOY / "components/dashboard/weir.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
TITLES = [str(panel["title"]) for panel in PANELS]
OKABE_ITO = {"#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999"}
"""Colours that people with any kind of colour vision can distinguish, and a grey."""
UNITS = {"s", "bytes", "percentunit", "short", "suffix: cores"}
WIDTH = 24


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


@pytest.mark.parametrize("panel", PANELS, ids=TITLES)
def test_every_query_of_a_panel_uses_metrics_and_labels_that_exist(panel: dict[str, Any]) -> None:
    assert [
        p for one in expressions(panel) for p in promql.problems(one, families(), values())
    ] == []


@pytest.mark.parametrize("panel", PANELS, ids=TITLES)
def test_every_panel_has_a_description_and_a_unit(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    assert panel["description"].endswith(".") and defaults["unit"] in UNITS
    if panel["type"] == "timeseries":
        assert defaults["custom"]["axisLabel"] and defaults["min"] == 0
        assert all(target["legendFormat"] for target in panel["targets"])
    seconds = any(
        "_seconds" in name
        for one in expressions(panel)
        for name in promql.names(one)
        if "cpu" not in name
    )
    assert (defaults["unit"] == "s") == (seconds and "held back" not in str(panel["targets"]))


@pytest.mark.parametrize("panel", [p for p in PANELS if p["type"] == "timeseries"], ids=str)
def test_colours_are_distinguishable_for_colour_blind_readers_and_lines_also_differ_in_style(
    panel: dict[str, Any],
) -> None:
    overrides = panel["fieldConfig"]["overrides"]
    colours = [
        prop["value"]["fixedColor"]
        for o in overrides
        for prop in o["properties"]
        if prop["id"] == "color"
    ]
    fixed = {o["matcher"]["options"] for o in overrides}
    plain = {
        target["legendFormat"] for target in panel["targets"] if "{{" not in target["legendFormat"]
    }

    assert set(colours) <= OKABE_ITO and len(set(colours)) == len(colours)
    assert plain <= fixed, "a line without a colour of its own"


@pytest.mark.parametrize("panel", PANELS, ids=TITLES)
def test_colours_are_assigned_only_to_labels_that_exist(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        label = re.fullmatch(r"\{\{(\w+)\}\}", target["legendFormat"])
        (name, *_) = promql.names(target["expr"])
        known = values().get((name, label[1])) if label else None
        if known:
            assert {o["matcher"]["options"] for o in panel["fieldConfig"]["overrides"]} == known


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= WIDTH
        for cell in (
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ):
            assert cell not in taken, (panel["title"], taken[cell])
            taken[cell] = panel["title"]
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_every_metric_is_on_the_dashboard_or_listed_as_left_out() -> None:
    shown = {
        re.sub("_(bucket|sum|count)$", "", n)
        for p in PANELS
        for e in expressions(p)
        for n in promql.names(e)
    }

    assert set(families()) - shown == {
        "process_start_time_seconds",
        "weir_bus_connected",
        "weir_bus_dead_letters_total",
        "weir_bus_messages_newer_total",
        "weir_training_gradients_dropped_total",
        "weir_training_staleness_updates",
    }


def test_the_data_source_is_a_variable_of_the_dashboard() -> None:
    (chosen,) = BOARD["templating"]["list"]
    assert (chosen["name"], chosen["type"], chosen["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    sources = [panel["datasource"] for panel in PANELS] + [
        t["datasource"] for panel in PANELS for t in panel["targets"]
    ]
    assert {source["uid"] for source in sources} == {"${datasource}"}


def test_the_grafana_sidecar_finds_the_dashboard() -> None:
    found = named("production+dashboard", "ConfigMap", "weir-dashboard")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["weir.json"]) == BOARD
