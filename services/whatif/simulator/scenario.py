"""The scenario: the input of a simulation. Jobs, machines, and the true speeds and losses.

Units: seconds, cores, GiB, devices, samples; a batch is the global one (of all workers together),
as in the surfaces. The CSV of jobs has no columns for memory and the chief, so tasks request no
memory and a chief requests nothing. A job from a recorded log has its own request.

`Surface` is the true speed of a model, between the points at which it was measured:

    v(batch, ps, workers)  [samples/s];  without ps: v(batch, workers)

Each axis is taken as its logarithm, and so is v; the axes are read in the order above. Between two
measured numbers log v is linear. Outside the measured range:

    above the largest    the last slope where v falls, flat where it rises: a size that was not
                         measured never gains
    below the smallest   in proportion: half the workers, half the speed; half the batch, the same
                         seconds a step

so v never exceeds the largest measured one. Measured twice, a point counts with its geometric mean.

`Curve` is the true loss of a model by samples, between the points of a measured curve.

`read_cluster` reads the cluster file: machines, and tenants that come and go. Every error in it is
listed at once. PyYAML reads it; its node tree has the line of each entry, so no further library is
needed.

    nodes:
      - {name: small, count: 2, cpu: 2, memory_gib: 4}         # small-1, small-2
      - {name: big, cpu: 4, memory_gib: 8, gpu: 1}             # big
    tenants:
      - {node: small-1, cpu: 1.5, from_s: 30, to_s: 90}        # pods of others
    quotas:                                            # of a namespace in all; absent: no limit
      team-a: {cpu: 4, memory_gib: 8, gpu: 1}

It is the one of `weir up`; names may be left out (`node`, or `node-a`, `node-b`, ... for several
kinds).
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, log
from statistics import fmean
from string import ascii_lowercase
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta
from msgspec.structs import replace

from services.allocator.admission.validation import field_reasons, quota_reasons
from services.allocator.policies.contract import Quotas
from shared import documents
from shared.documents import FileError, InvalidFile
from shared.messages import JobRequested, Program, Resources, RoleResources, Span, Taint

Least1 = Annotated[int, Meta(ge=1)]
Least0 = Annotated[float, Meta(ge=0)]
Devices = Annotated[int, Meta(ge=0)]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One job: its request and its amount of work. `ps` = 0: all-reduce, without ps."""

    job: str
    model: str
    samples: int
    """The number of samples in all epochs together."""
    epochs: int = 1
    submitted_s: float = 0.0
    batch: Span
    ps: Span
    workers: Span
    device_batch_max: int | None = None
    ps_cpu: float = 1.0
    worker_cpu: float = 1.0
    worker_gpu: int = 0
    priority: int = 0
    namespace: str = "default"
    gradient_noise: float | None = None
    """The gradient noise that the job reports, in samples; None: none. Samples count alike in the
    simulation, whatever they are worth.
    """
    asked: JobRequested | None = None
    """The real request, if it is known."""

    def request(self) -> JobRequested:
        """Return the request of the job as a user would have sent it, without a policy.

        Jobs of one model run one program; its digest is derived from the model's name.
        """
        if self.asked:
            return replace(self.asked, job=self.job, policy=None)
        digest = hashlib.sha256(self.model.encode()).hexdigest()
        return JobRequested(
            job=self.job,
            namespace=self.namespace,
            program=Program(name=f"{self.model}.py", digest=f"sha256-{digest}"),
            epochs=self.epochs,
            batch=self.batch,
            ps=self.ps,
            workers=self.workers,
            resources=self.resources(),
            device_batch_max=self.device_batch_max,
            priority=self.priority,
        )

    def resources(self) -> RoleResources:
        """Return the resources of one task of each role."""
        if self.asked:
            return self.asked.resources or RoleResources()
        return RoleResources(
            chief=Resources(),
            ps=Resources(cpu=self.ps_cpu),
            worker=Resources(cpu=self.worker_cpu, gpu=self.worker_gpu),
        )


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node, or `count` equal nodes: `big`, or `small-1`, `small-2`, as in the cluster file of
    `weir up`.
    """

    count: Least1 = 1
    cpu: Least0 = 1.0
    memory_gib: Least0 = 4.0
    gpu: Devices = 0
    name: str = ""
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()

    def names(self) -> list[str]:
        """Return the names of the nodes."""
        if self.count == 1:
            return [self.name]
        return [f"{self.name}-{number}" for number in range(1, self.count + 1)]


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pods of others on one node for some time (`to_s` absent: for ever). They have precedence over
    our pods.
    """

    node: str
    cpu: Least0
    from_s: Least0 = 0.0
    to_s: Least0 | None = None


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[Machine, ...]
    tenants: tuple[Tenant, ...] = ()
    quotas: Quotas = {}

    def resources_by_node(self) -> dict[str, Resources]:
        """Return the resources of each node."""
        found = {}
        for machine in self.nodes:
            has = Resources(
                cpu=machine.cpu,
                memory_gib=machine.memory_gib,
                gpu=machine.gpu,
            )
            for name in machine.names():
                found[name] = has
        return found

    def machines_by_node(self) -> dict[str, Machine]:
        """Return the machine of each node."""
        return {name: machine for machine in self.nodes for name in machine.names()}


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A world in which policies are compared."""

    jobs: tuple[Work, ...]
    cluster: Cluster
    surfaces: Mapping[str, Surface]
    """True speeds by model."""
    losses: Mapping[str, Curve] = {}
    """Loss by samples applied, by model; a model without a curve reports no loss."""
    restart_s: float = 30.0
    """The time without training at each change of tasks, and before the first step, in s."""
    noise: float = 0.0
    """Standard deviation of the logarithm of a job's speed from one report to the next."""
    report_s: float = 30.0
    """Every job that trains reports at each multiple of this time (s)."""


Row = tuple[tuple[float, ...], float]
"""A point: the logarithms of its coordinates, and of its speed."""


class Measured(msgspec.Struct, frozen=True):
    """One measured speed."""

    ps: int
    """0: all-reduce over devices, without ps."""
    workers: int
    batch: int
    """The global batch."""
    samples_per_second: float


class Axis(msgspec.Struct, frozen=True):
    """The measured numbers on one axis."""

    at: tuple[float, ...]
    """Their logarithms in ascending order."""
    then: tuple[Axis | float, ...]
    """For each of them log v, or the next axis."""


class Surface:
    """One model's true speeds."""

    def __init__(self, points: Iterable[Measured]) -> None:
        self.most_ps = 0
        self.most_workers = 0
        served: list[Row] = []
        alone: list[Row] = []
        for point in points:
            self.most_ps = max(self.most_ps, point.ps)
            self.most_workers = max(self.most_workers, point.workers)
            if point.ps:
                served.append(_log_point(point, point.batch, point.ps, point.workers))
            else:
                alone.append(_log_point(point, point.batch, point.workers))
        self.served = _make_axis(served)
        self.alone = _make_axis(alone)

    def speed(self, ps: int, workers: int, batch: float) -> float:
        """Return the speed in samples a second.

        The speed is 0 without workers, and if the model was not measured in this form (with ps, or
        without).
        """
        if workers <= 0 or batch <= 0:
            return 0.0

        at: tuple[float, ...]
        if ps:
            axis = self.served
            at = (log(batch), log(ps), log(workers))
        else:
            axis = self.alone
            at = (log(batch), log(workers))
        if axis is None:
            return 0.0
        return exp(_interpolate(axis, at))


# ---------------------------------------------------------------- axes


def _log_point(point: Measured, *at: int) -> Row:
    """Return a point of a surface; `at`: its coordinates."""
    place = tuple(map(log, at))
    return place, log(point.samples_per_second)


def _make_axis(rows: Sequence[Row]) -> Axis | float | None:
    """Return the first axis of the points, with the further axes in it; log v if there is no axis
    left.

    Return None without points.
    """
    if not rows:
        return None
    first_at, _ = rows[0]
    if not first_at:
        return fmean(value for _, value in rows)

    grouped = _grouped_rows(rows)
    numbers = sorted(grouped)
    thens = []
    for x in numbers:
        then = _make_axis(grouped[x])
        if then is not None:
            thens.append(then)
    return Axis(tuple(numbers), tuple(thens))


def _grouped_rows(rows: Sequence[Row]) -> dict[float, list[Row]]:
    """Return the points by their number on the first axis, without that number."""
    grouped: dict[float, list[Row]] = {}
    for at, value in rows:
        group = grouped.setdefault(at[0], [])
        group.append((at[1:], value))
    return grouped


def _interpolate(axis: Axis | float, at: tuple[float, ...]) -> float:
    """Return log v at a point."""
    if isinstance(axis, float):
        return axis
    x = at[0]
    rest = at[1:]
    above = bisect_right(axis.at, x)
    if above == 0:
        return _interpolate(axis.then[0], rest) + x - axis.at[0]
    if above == len(axis.at):
        return _extrapolate(axis, x, rest)

    below = above - 1
    from_value = _interpolate(axis.then[below], rest)
    slope = _slope_between(axis, above, rest)
    return from_value + slope * (x - axis.at[below])


def _extrapolate(axis: Axis, x: float, rest: tuple[float, ...]) -> float:
    """Return log v above the largest number of an axis."""
    last = len(axis.at) - 1
    falling = 0.0
    if last:
        falling = min(0.0, _slope_between(axis, last, rest))
    largest = _interpolate(axis.then[last], rest)
    return largest + falling * (x - axis.at[last])


def _slope_between(axis: Axis, above: int, rest: tuple[float, ...]) -> float:
    """Return d log v / d x between a measured number of an axis and the one before it."""
    below = above - 1
    to_value = _interpolate(axis.then[above], rest)
    from_value = _interpolate(axis.then[below], rest)
    return (to_value - from_value) / (axis.at[above] - axis.at[below])


Point = tuple[float, float]
"""A number of samples, and the loss after them."""


class Curve:
    """A loss curve: linear between the points, constant outside them."""

    def __init__(self, points: Iterable[Point]) -> None:
        """Raise `ValueError` if there are no points."""
        self.points = sorted(points)
        if not self.points:
            raise ValueError("a loss curve needs a point")

    def at(self, samples: float) -> float:
        """Return the loss after so many samples."""
        behind = bisect_right(self.points, samples, key=lambda point: point[0])
        if behind == 0:
            return self.points[0][1]
        if behind == len(self.points):
            return self.points[-1][1]
        from_x, from_y = self.points[behind - 1]
        to_x, to_y = self.points[behind]
        rise = to_y - from_y
        return from_y + rise * (samples - from_x) / (to_x - from_x)


KINDS: dict[str, type[msgspec.Struct]] = {"nodes": Machine, "tenants": Tenant}


def read_cluster(text: str) -> Cluster:
    """Return the cluster of a file; raise `InvalidFile`."""
    document, tree = _read_cluster_file(text)
    quotas = document.get("quotas") or {}
    said = list(_against_shape(document))
    said += quota_reasons(quotas, "quotas")
    for field, kind in KINDS.items():
        said += _against_entries(document, field, kind)
    if said:
        raise _invalid_file(tree, said)

    spec = _cluster_of_document(document)
    said = [*_against_names(spec), *_against_tenants(spec)]
    if said:
        raise _invalid_file(tree, said)
    return spec


def _read_cluster_file(text: str) -> tuple[dict[str, Any], yaml.Node]:
    """Return the document, and its node tree, which has the position of each node in the text."""
    try:
        document = documents.load_yaml(text)
        tree = documents.compose_yaml(text)
    except yaml.MarkedYAMLError as error:
        raise InvalidFile([_no_yaml(error)]) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidFile([FileError(1, f": not valid YAML: {error}")]) from error

    if not isinstance(document, dict) or tree is None:
        raise InvalidFile(
            [FileError(1, ": a cluster file is a mapping with `nodes` and perhaps `tenants`")]
        )
    return document, tree


def _no_yaml(error: yaml.MarkedYAMLError) -> FileError:
    """Return the error with its position in the text; the first line if it has none."""
    line = 1
    column = 1
    mark = error.problem_mark
    if mark:
        line = mark.line + 1
        column = mark.column + 1
    return FileError(line, f", column {column}: not valid YAML: {error.problem}")


def _cluster_of_document(document: dict[str, Any]) -> Cluster:
    """Return the cluster of a document that has no errors in its fields."""
    nodes = msgspec.convert(document["nodes"], tuple[Machine, ...])
    tenants = document.get("tenants") or []
    quotas = document.get("quotas") or {}
    return Cluster(
        nodes=tuple(_with_names(nodes)),
        tenants=msgspec.convert(tenants, tuple[Tenant, ...]),
        quotas=msgspec.convert(quotas, Quotas),
    )


def _with_names(nodes: tuple[Machine, ...]) -> Iterator[Machine]:
    """Yield the nodes. Those without a name get `node`, or `node-a`, `node-b`, and so on."""
    for number, machine in enumerate(nodes):
        if machine.name:
            yield machine
        elif len(nodes) == 1:
            yield replace(machine, name="node")
        else:
            letter = str(number)
            if number < len(ascii_lowercase):
                letter = ascii_lowercase[number]
            yield replace(machine, name=f"node-{letter}")


# ---------------------------------------------------------------- errors: a path, and the fault


def _against_shape(document: dict[str, Any]) -> Iterator[str]:
    """Yield an error for each unknown section, and one if there are no nodes."""
    known = (*KINDS, "quotas")
    for key in document:
        if key not in known:
            yield f"{key}: no such section; use {', '.join(known)}"
    if not document.get("nodes"):
        yield "nodes: at least one is required"


def _against_entries(
    document: dict[str, Any], field: str, kind: type[msgspec.Struct]
) -> Iterator[str]:
    """Yield the errors in each entry of a list."""
    entries = document.get(field) or []
    if not isinstance(entries, list):
        yield f"{field}: is not a list"
        return

    for number, entry in enumerate(entries):
        where = f"{field}[{number}]"
        if isinstance(entry, dict):
            yield from field_reasons(kind, entry, f"{where}.")
        else:
            yield f"{where}: is not a mapping"


def _against_names(spec: Cluster) -> Iterator[str]:
    """Yield an error for each name that more than one node has."""
    times: Counter[str] = Counter()
    for machine in spec.nodes:
        times.update(machine.names())

    for number, machine in enumerate(spec.nodes):
        for name in machine.names():
            if times[name] > 1:
                yield f"nodes[{number}].name: {name!r} occurs {times[name]} times"


def _against_tenants(spec: Cluster) -> Iterator[str]:
    """Yield an error for each tenant with an unknown node, too many cores, or an end that is not
    after its start.
    """
    has = spec.resources_by_node()
    for number, tenant in enumerate(spec.tenants):
        where = f"tenants[{number}]"
        node = has.get(tenant.node)
        if node is None:
            yield f"{where}.node: there is no node {tenant.node!r}"
        elif tenant.cpu > node.cpu:
            yield f"{where}.cpu: {tenant.node!r} has {node.cpu:g} cores"
        if tenant.to_s is not None and tenant.to_s <= tenant.from_s:
            yield f"{where}.to_s: must be later than from_s"


# ---------------------------------------------------------------- the position of a path in the
# text


def _invalid_file(tree: yaml.Node, reasons: Iterable[str]) -> InvalidFile:
    """Return the exception with all errors, each with its position in the text."""
    placed = []
    for why in reasons:
        where, _, _ = why.partition(":")
        path = re.findall(r"[\w-]+", where)
        line, column = _mark(tree, path)
        placed.append(FileError(line, f", column {column}: {why}"))
    return InvalidFile(placed)


def _mark(tree: yaml.Node, path: Iterable[str]) -> tuple[int, int]:
    """Return line and column, from one, of the longest part of the path that exists."""
    for step in path:
        below = _below(tree, step)
        if below is None:
            break
        tree = below
    mark = tree.start_mark
    return mark.line + 1, mark.column + 1


def _below(tree: yaml.Node, step: str) -> yaml.Node | None:
    """Return the element of a list by its index, or the value of a mapping by its key."""
    if isinstance(tree, yaml.SequenceNode) and step.isdigit():
        number = int(step)
        if number < len(tree.value):
            return tree.value[number]  # type: ignore[no-any-return]
    if isinstance(tree, yaml.MappingNode):
        for key, value in tree.value:
            if key.value == step:
                return value  # type: ignore[no-any-return]
    return None
