"""Checks of PromQL expressions against the metrics that the services export.

A parser of the language reads an expression. The rules are those of `promtool` and of Prometheus'
page on practices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser as language

from shared.runtime.metrics import Family

SCRAPED = {"job", "pod", "instance", "namespace"}
"""Labels that Prometheus sets at a scrape."""
SERVICES = {"weir-monitor", "weir-allocator", "weir-launcher"}
RISES = {"rate", "increase"}
PARTS = ("_bucket", "_sum", "_count")
Values = Mapping[tuple[str, str], set[str]]
"""By family and label: the values that are exported before anything has happened."""


def problems(text: str, families: Mapping[str, Family], values: Values) -> list[str]:
    """Return all problems of one expression. `$__rate_interval` is a variable of Grafana."""
    try:
        parsed = language.parse(text.replace("$__rate_interval", "5m"))
    except ValueError as error:
        return [f"{text}: {error}"]
    found = [*_of(parsed, families, values, ())]
    return [f"{text}: {problem}" for problem in found]


def names(text: str) -> set[str]:
    """Return the names of all series in an expression."""
    found = _selectors(language.parse(text.replace("$__rate_interval", "5m")))
    return {str(selector.name) for selector in found}


def _selectors(node: Any) -> Iterator[Any]:
    if isinstance(node, language.VectorSelector):
        yield node
    for part in _parts(node):
        yield from _selectors(part)


def _parts(node: Any) -> list[Any]:
    if isinstance(node, language.MatrixSelector):
        return [node.vector_selector]
    if isinstance(node, language.Call):
        return list(node.args)
    both = [getattr(node, side, None) for side in ("expr", "lhs", "rhs")]
    return [part for part in both if isinstance(part, language.Expr)]


def _of(
    node: Any, families: Mapping[str, Family], values: Values, around: tuple[str, ...]
) -> Iterator[str]:
    """Yield the problems of one part. `around`: the functions whose arguments contain the part."""
    if isinstance(node, language.VectorSelector):
        yield from _of_selector(node, families, values, around)
    if isinstance(node, language.AggregateExpr):
        yield from _of_labels(node, families)
    if isinstance(node, language.Call):
        around = (*around, node.func.name)
        if node.func.name == "histogram_quantile" and not _keeps_bounds(node.args[1]):
            yield "a quantile of what is not summed by le"
    for part in _parts(node):
        yield from _of(part, families, values, around)


def _of_selector(
    node: Any, families: Mapping[str, Family], values: Values, around: tuple[str, ...]
) -> Iterator[str]:
    name, rises = str(node.name), bool(RISES & set(around))
    family = _family(name, families)
    if name == "up":
        family = Family(name="up", kind="gauge", help="Prometheus' own.")
    if family is None:
        yield f"{name} is told by nobody"
        return
    if rises != (family.kind != "gauge"):
        yield (
            f"{name} is a {family.kind}, {'whose rise is' if rises else 'and its rise is not'}"
            " asked for"
        )
    if name.endswith("_bucket") and "histogram_quantile" not in around:
        yield f"{name} outside of a quantile"
    for matcher in node.matchers.matchers:
        yield from _of_matcher(family, matcher, values)


def _of_matcher(family: Family, matcher: Any, values: Values) -> Iterator[str]:
    if matcher.name not in {*family.labels, *SCRAPED}:
        yield f"{family.name} has no label {matcher.name}"
    known = SERVICES if matcher.name == "job" else values.get((family.name, matcher.name), set())
    wanted = matcher.value.strip("()").split("|")
    if (
        known
        and "*" not in matcher.value
        and not {_whole(value, known) for value in wanted} <= known
    ):
        yield f"{matcher.name} of {family.name} is none of {sorted(known)}: {matcher.value}"


def _whole(value: str, known: set[str]) -> str:
    """Return the whole value that one alternative of a pattern stands for.

    `weir-(monitor|allocator)` is split at `|`, so only the first alternative has the prefix.
    """
    value = value.rpartition("(")[2]
    return next((one for one in known if one == value or one == f"weir-{value}"), value)


def _of_labels(node: Any, families: Mapping[str, Family]) -> Iterator[str]:
    wanted = set(node.modifier.labels) if node.modifier else set()
    for selector in _selectors(node.expr):
        family = _family(str(selector.name), families)
        has = {
            *(family.labels if family else ()),
            *SCRAPED,
            *(["le"] if str(selector.name).endswith("_bucket") else []),
        }
        if wanted - has:
            yield f"{selector.name} has no labels {sorted(wanted - has)} to go by"


def _family(name: str, families: Mapping[str, Family]) -> Family | None:
    """Return the family of a series, or None. Series of a histogram have a suffix (`_bucket`)."""
    whole = next((name.removesuffix(part) for part in PARTS if name.endswith(part)), name)
    found = families.get(whole) or families.get(name)
    return found if found is None or (found.kind == "histogram") == (whole != name) else None


def _keeps_bounds(node: Any) -> bool:
    return (
        isinstance(node, language.AggregateExpr)
        and bool(node.modifier)
        and "le" in node.modifier.labels
    )
