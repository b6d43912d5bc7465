"""What a part of a service lacks, and what it has measured."""

from __future__ import annotations

from shared.runtime.health import Vitals
from shared.runtime.metrics import Family, Measure

HEAT = Family(name="weir_heat", kind="gauge", help="How hot the oven is.")


def test_who_needs_nothing_lacks_nothing() -> None:
    assert Vitals().lacks() == []


def test_every_condition_is_asked_each_time_and_the_last_of_a_name_counts() -> None:
    vitals, hot = Vitals(), list[str]()
    vitals.need("heat", lambda: bool(hot))
    vitals.need("dough", lambda: False)
    assert vitals.lacks() == ["heat", "dough"]

    hot.append("very")
    assert vitals.lacks() == ["dough"]
    vitals.need("dough", lambda: True)
    assert vitals.lacks() == []


def test_every_source_is_asked_each_time() -> None:
    vitals, heat = Vitals(), [1.0]
    vitals.tell("oven", lambda: [Measure(HEAT, {(): heat[0]})])
    heat[0] = 2.0
    assert vitals.measures() == [Measure(HEAT, {(): 2.0})]
