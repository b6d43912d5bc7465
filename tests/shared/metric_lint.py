"""A lint of metrics: the rules of `promtool check metrics`, Prometheus' naming page, and ours.

The parser of Prometheus' own client checks the format. This lint finds what that parser accepts,
but Prometheus would refuse or people would misunderstand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

PREFIXES = ("weir_", "process_")
NAME, LABEL = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*"), re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
NOT_BASE = {
    "ms",
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "minutes",
    "hours",
    "days",
    "kilobytes",
    "megabytes",
}
NOT_BASE |= {"gigabytes", "gib", "mib", "kib", "millicores", "percent", "bits"}
BASE = ("seconds", "bytes", "cores")
KINDS = {"counter", "gauge", "histogram"}
RESERVED = {"job", "instance", "le", "quantile", "pod", "namespace", "node", "uid"}
"""Labels that a scrape sets, that belong to histograms, or that have unlimited values."""
MOST_SERIES = 60
"""Maximum number of a family's series, without buckets."""
PARTS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}


def problems(text: str) -> list[str]:
    """Return everything that is wrong with an exported text."""
    families = list(text_string_to_metric_families(text))
    found = list(_of_text(text))
    for family in families:
        found += [
            f"{family.name}: {problem}" for problem in (*_of_name(family), *_of_series(family))
        ]
    return found


def _of_text(text: str) -> Iterator[str]:
    lines = text.removesuffix("\n").split("\n")
    if not text.endswith("\n"):
        yield "the last line does not end"
    for word in ("HELP", "TYPE"):
        for name, times in Counter(
            line.split()[2] for line in lines if line.startswith(f"# {word} ")
        ).items():
            if times > 1:
                yield f"{name}: {times} lines of {word}"
    for name, kind in (line.split()[2:] for line in lines if line.startswith("# TYPE ")):
        if (kind == "counter") != name.endswith("_total"):
            yield f"{name}: a counter ends with _total, and nothing else does"
    helps = [line.split()[2] for line in lines if line.startswith("# HELP ")]
    types = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    if helps != types:
        yield "not every family has its HELP and its TYPE"
    for series, times in Counter(
        line.rpartition(" ")[0] for line in lines if not line.startswith("#")
    ).items():
        if times > 1:
            yield f"{series} is told {times} times"


def _of_name(family: Metric) -> Iterator[str]:
    words = family.name.split("_")
    if not NAME.fullmatch(family.name) or not family.name.startswith(PREFIXES):
        yield "its name is not ours"
    if wrong := NOT_BASE & set(words):
        yield f"{wrong} is no base unit"
    if (
        set(words) & KINDS
        or words[-1] in ("total", "count", "sum", "bucket", "info")
        or ":" in family.name
    ):
        yield "its name says what only its type may"
    if {word for word in BASE if word in words[:-1]}:
        yield "its unit is not at the end"
    if family.type not in KINDS:
        yield f"its type is {family.type}"
    if not family.documentation.endswith(".") or len(family.documentation) < 20:
        yield "its help is no sentence"


def _of_series(family: Metric) -> Iterator[str]:
    wanted = {f"{family.name}{part}" for part in PARTS.get(family.type, ())}
    if others := {sample.name for sample in family.samples} - wanted:
        yield f"{others} is not of its type"
    names = {frozenset(sample.labels) - {"le"} for sample in family.samples}
    if len(names) > 1:
        yield "its series have not the same labels"
    for label in set().union(*names):
        if not LABEL.fullmatch(label) or label in RESERVED:
            yield f"label {label}"
    series = {
        tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        for sample in family.samples
    }
    if len(series) > MOST_SERIES:
        yield f"{len(series)} series"
    if family.type == "histogram":
        for one in series:
            yield from _of_histogram(family, dict(one))


def _of_histogram(family: Metric, labels: dict[str, str]) -> Iterator[str]:
    mine = [s for s in family.samples if {k: v for k, v in s.labels.items() if k != "le"} == labels]
    buckets = [(float(s.labels["le"]), s.value) for s in mine if s.name.endswith("_bucket")]
    whole = [s.value for s in mine if s.name.endswith("_count")]
    if buckets != sorted(buckets) or [count for _, count in buckets] != sorted(
        count for _, count in buckets
    ):
        yield "its buckets do not rise"
    if not buckets or buckets[-1][0] != float("inf") or [buckets[-1][1]] != whole:
        yield "its last bucket does not hold all"
    if family.name.split("_")[-1] not in BASE:
        yield "it has no unit"
