"""What a part of a service lacks, and what it has measured."""

from __future__ import annotations

from shared.runtime.health import Health
from shared.runtime.metrics import Family, Measure

HEAT = Family(name="weir_heat", kind="gauge", help="How hot the oven is.")


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
    vitals.add_source("oven", lambda: [Measure(HEAT, {(): heat[0]})])
    heat[0] = 2.0
    assert vitals.measures() == [Measure(HEAT, {(): 2.0})]
