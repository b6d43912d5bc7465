"""The dashboard: every panel asks for what there is, says what it shows, in which unit, and lies
beside the others.
"""

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
"""Colours that people with any kind of colour vision tell apart, and a grey."""
UNITS = {"s", "bytes", "percentunit", "short", "suffix: cores"}
WIDTH = 24


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


@pytest.mark.parametrize("panel", PANELS, ids=TITLES)
def test_what_a_panel_asks_for_is_told_and_asked_rightly(panel: dict[str, Any]) -> None:
    assert [
        p for one in expressions(panel) for p in promql.problems(one, families(), values())
    ] == []


@pytest.mark.parametrize("panel", PANELS, ids=TITLES)
def test_a_panel_says_what_it_shows_and_in_which_unit(panel: dict[str, Any]) -> None:
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
def test_colours_are_told_apart_by_everybody_and_are_not_all_that_tells_lines_apart(
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
def test_a_colour_is_given_to_no_label_that_there_is_not(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        label = re.fullmatch(r"\{\{(\w+)\}\}", target["legendFormat"])
        (name, *_) = promql.names(target["expr"])
        known = values().get((name, label[1])) if label else None
        if known:
            assert {o["matcher"]["options"] for o in panel["fieldConfig"]["overrides"]} == known


def test_panels_lie_beside_each_other_and_none_over_another() -> None:
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


def test_every_number_is_on_it_or_is_of_no_use_there() -> None:
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
    }


def test_its_source_is_chosen_by_who_looks() -> None:
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


def test_grafana_s_sidecar_finds_it() -> None:
    found = named("production+dashboard", "ConfigMap", "weir-dashboard")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["weir.json"]) == BOARD
