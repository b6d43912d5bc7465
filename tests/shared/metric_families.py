"""All metrics of Weir's services, found in the source, so that no test leaves one out."""

from __future__ import annotations

import importlib
from functools import cache

from services.allocator.metrics import Meters as AllocatorMeters
from services.allocator.state.state import State
from services.launcher.metrics import LauncherMetrics as LauncherMeters
from services.launcher.view import View
from services.monitor.capacity import capacity_measures
from shared.bus.dead_letters import DeadLetterCount
from shared.runtime.metrics import BusTraffic, Family, Measure
from tests.architecture.source import modules

DECLARED = "shared.runtime.metrics.Family"


@cache
def families() -> dict[str, Family]:
    """Return the families by name, after a check that no two have the same."""
    declaring = [
        module.name
        for module in modules("services", "shared")
        if "Family" in module.text
        and (DECLARED in module.imports or f"{module.name}.Family" == DECLARED)
    ]
    values = [value for name in declaring for value in vars(importlib.import_module(name)).values()]
    found = list({id(value): value for value in values if isinstance(value, Family)}.values())
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def at_first() -> list[Measure]:
    """Return what services export before any event, for an empty cluster."""
    return [
        *capacity_measures([]),
        *AllocatorMeters().measures(State(), 0.0),
        *LauncherMeters().measures(View()),
        *BusTraffic().measures(True, 0, 0),
        *DeadLetterCount(0).measures(),
    ]


@cache
def values() -> dict[tuple[str, str], set[str]]:
    """Return the label values of those measures, by family and label."""
    found: dict[tuple[str, str], set[str]] = {}
    for measure in at_first():
        for labels in measure.series:
            for label, value in zip(measure.family.labels, labels, strict=True):
                found.setdefault((measure.family.name, label), set()).add(value)
    return found
