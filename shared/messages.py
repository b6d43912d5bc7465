"""Every message, in the order in which they occur.

Law: a message is a frozen struct, declared once, read by a typed decoder. Its tag (`fact`) is its
subject without the leading `weir.` and the names at the end. A decision carries the whole desired
state and a generation, never a difference: late or repeated messages are harmless, and the next one
makes up for a lost one. New fields get defaults; tags never change.

Units: `*_s` seconds (times: seconds since 1970, UTC), `cpu` cores, `memory_gib` GiB, `samples`
examples.

Every number has bounds, which are part of its type and are checked on arrival: a message beyond
them becomes a dead letter. Within them no decision overflows. The sender of a fact cuts its values
to the bounds (`shared/bounds.py`). Only `metrics`, which are shown and not used, may be any number
of JSON. In the same way every text and every list that a job sends has a maximum length, because
the services keep them in memory and a program may write anything.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

Role = Literal["chief", "ps", "worker"]
HandOver = Literal["make-before-break", "restart"]
Outcome = Literal["succeeded", "failed", "cancelled"]
CpuLimits = Literal["hard", "soft"]

DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?\Z"
SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z"
LABEL_KEY = (
    r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z"
)
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z"
ENV_NAME = r"^[_A-Za-z][_A-Za-z0-9]*\Z"
DATA_KEY = r"^[-._A-Za-z0-9]+\Z"
JobName = Annotated[str, Meta(pattern=DNS_LABEL, max_length=40)]
Namespace = Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)]
PARAM_NAME = r"^[A-Za-z_][A-Za-z0-9_]*\Z"
Digest = Annotated[str, Meta(pattern=r"^sha256-[0-9a-f]{64}\Z")]
GIB = 1 << 30  # bytes of a GiB, in which messages give memory
LARGEST_PROGRAM = 16 << 20  # bytes
LARGEST = (1 << 53) - 1  # every whole number up to it is exact as a float, too
LONGEST_S = 366 * 86_400.0  # a year; longer durations are cut to this
FASTEST = 1e12  # examples a second
MOST_AMOUNT = 1e6  # cores, GiB or devices of one task or node
MOST_OF_SPAN = 1_000_000  # tasks of a role, or examples of one worker's batch
MOST_TABLE_ROUNDS = 100  # in a message
MOST_MEASURED = 1e39  # beyond the largest number in single precision
Whole = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST)]
NotNegative = Annotated[int, Meta(ge=0, le=LARGEST)]
Epochs = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Bound = Annotated[int, Meta(ge=1, le=MOST_OF_SPAN)]
Devices = Annotated[int, Meta(ge=0, le=1_000_000)]
Priority = Annotated[
    int, Meta(ge=-2_147_483_648, le=2_147_483_647)
]  # as of a Kubernetes PriorityClass
Port = Annotated[int, Meta(ge=0, le=65_535)]
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]
Moment = Annotated[float, Meta(ge=-1e11, le=1e11)]
Speed = Annotated[float, Meta(ge=0, le=FASTEST)]
Cores = Annotated[float, Meta(ge=0, le=MOST_AMOUNT)]
Measured = Annotated[float, Meta(ge=-MOST_MEASURED, le=MOST_MEASURED)]
Share = Annotated[float, Meta(ge=0, le=1)]
Total = Annotated[float, Meta(ge=0, le=1e15)]  # cores, GiB, devices or pods of a whole namespace
Name = Annotated[
    str, Meta(max_length=253)
]  # of a pod, node or host, or a uid: the longest that Kubernetes allows
Path = Annotated[str, Meta(max_length=4_096)]
Sentence = Annotated[str, Meta(max_length=1_024)]  # a reason, a remedy or a digest
Text = Annotated[str, Meta(max_length=4_096)]
Cause = Annotated[str, Meta(max_length=32_768)]  # with tracebacks
MetricName = Annotated[str, Meta(max_length=200)]
Metrics = Annotated[dict[MetricName, float], Meta(max_length=256)]
ParamName = Annotated[str, Meta(pattern=PARAM_NAME, max_length=64)]


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A piece of a message."""


# ---------------------------------------------------------------- requests of persons


class Resources(Part, frozen=True, kw_only=True):
    """Resources of one task or node: cores, GiB, devices."""

    cpu: Cores = 0.0
    memory_gib: Cores = 0.0
    gpu: Devices = 0


class RoleResources(Part, frozen=True, kw_only=True):
    """Requests of one task of each role; they are its limits too, unless the job's CPU limits are
    soft. An absent value, or 0, means Weir's default.
    """

    chief: Resources = Resources(cpu=0.25, memory_gib=1.0)
    ps: Resources = Resources(cpu=0.25, memory_gib=1.0)
    worker: Resources = Resources(cpu=0.5, memory_gib=1.0)


class Span(Part, frozen=True, kw_only=True):
    """A number that may grow and shrink: its first value, and its bounds (inclusive)."""

    start: Bound
    min: Bound
    max: Bound


class Program(Part, frozen=True, kw_only=True):
    """A training program: the name of its file or folder, and the digest under which the object
    store keeps it.

    `entry`: the stored object is an archive (`services/trainer/program_archive.py`), and this is
    the path of the file in it that has the functions; empty: the object is that file.
    """

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    digest: Digest
    entry: Annotated[str, Meta(max_length=500)] = ""


class CheckpointRule(Part, frozen=True, kw_only=True):
    """The place of checkpoints, their interval, and the number that is kept.

    `path`: a folder in the namespace's part of the cluster's checkpoint folder, or an object
    store's URL; absent: the namespace's part itself. Each job gets a folder of its own below it
    (`JobAccepted.checkpoint_folder`). `continue_from`: the folder of a finished job of the same
    namespace; training begins with its last checkpoint. `every_s`: interval of checkpoints besides
    those of each hand-over; absent: chosen from the cost of a save and the rate of failures
    (`services/trainer/checkpoint_policy.py`).
    """

    path: str | None = None
    continue_from: str | None = None
    every_s: Annotated[float, Meta(ge=1, le=LONGEST_S)] | None = None
    keep: Annotated[int, Meta(ge=1, le=1_000_000)] = 2


ObjectName = Annotated[str, Meta(pattern=SUBDOMAIN, max_length=253)]  # of a Secret and the like
DataKey = Annotated[str, Meta(pattern=DATA_KEY, max_length=253)]  # of a Secret or ConfigMap
LabelKey = Annotated[str, Meta(pattern=LABEL_KEY, max_length=317)]
LabelValue = Annotated[str, Meta(pattern=LABEL_VALUE)]
EnvName = Annotated[str, Meta(pattern=ENV_NAME, max_length=253)]
LabelMap = Annotated[dict[LabelKey, LabelValue], Meta(max_length=64)]
Annotations = Annotated[
    dict[LabelKey, Annotated[str, Meta(max_length=16_384)]], Meta(max_length=64)
]


class Volume(Part, frozen=True, kw_only=True):
    """A folder that is mounted in every task of the job: a claim, the values of a Secret or
    ConfigMap as read-only files or, if the cluster allows it, a path of the node.
    """

    name: Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)]
    mount_path: Annotated[str, Meta(pattern=r"^/")]
    claim: str | None = None
    host_path: str | None = None
    secret: ObjectName | None = None
    config_map: ObjectName | None = None


class ObjectRef(Part, frozen=True, kw_only=True):
    """An object of the job's namespace."""

    name: ObjectName


class KeyRef(Part, frozen=True, kw_only=True):
    """One value of a Secret or ConfigMap of the job's namespace."""

    name: ObjectName
    key: DataKey


class EnvValueFrom(Part, frozen=True, kw_only=True):
    """The source of a variable: exactly one of these."""

    secret_key_ref: KeyRef | None = None
    config_map_key_ref: KeyRef | None = None


class EnvVar(Part, frozen=True, kw_only=True):
    """A variable of every task: a value, or a reference to one. The value is visible to every
    reader of the bus; a secret belongs into a Secret.
    """

    name: EnvName
    value: Annotated[str, Meta(max_length=32_768)] | None = None
    value_from: EnvValueFrom | None = None


class EnvFrom(Part, frozen=True, kw_only=True):
    """All values of one Secret or ConfigMap as variables, each with the prefix before its name."""

    secret_ref: ObjectRef | None = None
    config_map_ref: ObjectRef | None = None
    prefix: Annotated[str, Meta(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?\Z", max_length=253)] = ""


class Toleration(Part, frozen=True, kw_only=True):
    """Taints of nodes that a job's pods accept, as in Kubernetes. Without a key and with `Exists`:
    every taint; without an effect: every effect.
    """

    key: Annotated[str, Meta(max_length=317)] = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: LabelValue = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class LabelRequirement(Part, frozen=True, kw_only=True):
    """A condition on a label of a node."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: Annotated[tuple[LabelValue, ...], Meta(max_length=256)] = ()


class FieldRequirement(Part, frozen=True, kw_only=True):
    """A condition on the name of a node."""

    key: Literal["metadata.name"] = "metadata.name"
    operator: Literal["In", "NotIn"]
    values: Annotated[tuple[Name, ...], Meta(max_length=256)] = ()


class NodeSelectorTerm(Part, frozen=True, kw_only=True):
    """The nodes that fulfil all of these."""

    match_expressions: Annotated[tuple[LabelRequirement, ...], Meta(max_length=64)] = ()
    match_fields: Annotated[tuple[FieldRequirement, ...], Meta(max_length=64)] = ()


class NodeSelector(Part, frozen=True, kw_only=True):
    """The nodes of at least one of the terms."""

    node_selector_terms: Annotated[tuple[NodeSelectorTerm, ...], Meta(max_length=64)]


class NodeAffinity(Part, frozen=True, kw_only=True):
    """The nodes that a job's tasks may use. Weir chooses among them, so there is no preference."""

    required_during_scheduling_ignored_during_execution: NodeSelector


class Affinity(Part, frozen=True, kw_only=True):
    """Node affinity only: Weir itself puts a job's tasks near each other."""

    node_affinity: NodeAffinity | None = None


class Message(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", omit_defaults=True, gc=False
):
    """The base of all messages: a subject, and an id that is the same if the content is the
    same.
    """

    def key(self) -> str:
        """Return the last tokens of the subject."""
        raise NotImplementedError

    def id(self) -> str:
        """Return a deterministic id, so that the server and every fold can ignore a repetition."""
        raise NotImplementedError


class JobNameMessage(Message, frozen=True, kw_only=True):
    """A message about one job by its name."""

    job: JobName
    namespace: Namespace = "default"

    def key(self) -> str:
        return f"{self.namespace}.{self.job}"


class Shuffle(Part, frozen=True, kw_only=True):
    """The order of the examples: `on`: another one in each epoch, by `seed`; off: that of their
    numbers. `window`: records of a file that are shuffled with one another.
    """

    on: bool = True
    seed: Annotated[int, Meta(ge=0, le=2**53)] = 0
    window: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000


Consistency = Literal["async", "global-batch", "exact"]
DEFAULT_CONSISTENCY: Consistency = "global-batch"
VirtualWorkers = Annotated[int, Meta(ge=1, le=64)]
STALENESS_FACTOR = 10
"""The default of `max_staleness`, as a multiple of the mean staleness, which is workers - 1."""
FEWEST_VIRTUAL_WORKERS = 4
"""The least default of `virtual_workers`."""


class JobRequested(JobNameMessage, frozen=True, kw_only=True, tag="job.requested"):
    """A request for training. Durable at once; answered by `JobAccepted` or `JobRejected`.

    `batch` is the number of examples of one update (`consistency`); times the optimizer's
    `gradient_accumulation_steps`. `device_batch_max`: the most examples that a worker computes at
    once; a larger batch takes several passes an update. `resources` absent: sized by Weir.
    `learning_rate` says how the rate follows a changed batch: `keep`, `linear` (by the ratio) or
    `sqrt` (its root). `rate_with_workers`: with more workers than at the start the rate falls so
    far that stale gradients stay `stable` (see `services/trainer/worker/scaling.py`), or not at all
    (`keep`). `max_staleness`: with `async`, a gradient during which more updates of other workers
    were applied is dropped, and its examples are trained again; absent: 10 x (workers - 1); `off`:
    none is dropped.
    `consistency`: `async`: each worker makes updates of its own; `global-batch`: all workers make
    each update together, of `batch` examples in all; `exact`: so that every bit of the result is
    the same whatever the job's sizes and history; absent: the cluster's default
    (`WEIR_ALLOCATOR_CONSISTENCY`, `global-batch`). `virtual_workers`: with `exact`, each update has
    the largest number of parts up to this one that divides it, and the workers share them; another
    number gives other bits; absent: `workers.max`, rounded up to 4, 8 or 16 (at most).
    `cpu_limits`: `hard`: a task never uses more cores than it has; `soft`: its cores are its share
    where others want theirs, and it may use what nobody else on its node does. `params`: values for
    keyword arguments of the program's functions.

    The fields from `env` on are settings of every pod, as in Kubernetes, if the cluster's owner
    allows them. `node_selector`, `affinity` and `tolerations` say which nodes tasks may use.
    `priority_class`: of the pods in Kubernetes; `priority` is the job's in Weir. `shm_gib`: the
    size of /dev/shm, a part of each task's memory.
    """

    program: Program
    epochs: Epochs
    batch: Span
    ps: Span
    workers: Span
    resources: RoleResources | None = None
    device_batch_max: Bound | None = None
    priority: Priority = 0
    policy: str | None = None
    image: str | None = None
    checkpoint: CheckpointRule = CheckpointRule()
    grace_s: Seconds = 30.0
    handover: HandOver = "make-before-break"
    learning_rate: Literal["keep", "linear", "sqrt"] = "keep"
    rate_with_workers: Literal["stable", "keep"] = "stable"
    max_staleness: NotNegative | Literal["off"] | None = None
    consistency: Consistency | None = None
    virtual_workers: VirtualWorkers | None = None
    cpu_limits: CpuLimits = "hard"
    volumes: tuple[Volume, ...] = ()
    shuffle: Shuffle | None = None
    params: dict[ParamName, Any] = {}
    env: Annotated[tuple[EnvVar, ...], Meta(max_length=512)] = ()
    env_from: Annotated[tuple[EnvFrom, ...], Meta(max_length=64)] = ()
    service_account: ObjectName | None = None
    image_pull_secrets: Annotated[tuple[ObjectRef, ...], Meta(max_length=16)] = ()
    node_selector: LabelMap = {}
    affinity: Affinity | None = None
    tolerations: Annotated[tuple[Toleration, ...], Meta(max_length=64)] = ()
    priority_class: ObjectName | None = None
    labels: LabelMap = {}
    annotations: Annotations = {}
    shm_gib: Annotated[float, Meta(ge=0.001, le=MOST_AMOUNT)] | None = None
    request_id: str = "-"

    @property
    def worker_rate_rule(self) -> str:
        """The rule by which the learning rate follows the number of workers. Without stale gradients
        it does not follow.
        """
        return "keep" if self.makes_updates_together else self.rate_with_workers

    @property
    def makes_updates_together(self) -> bool:
        """Return whether all workers make each update together. A job without `consistency` was
        accepted by an earlier version, or is simulated: its workers make updates of their own.
        """
        return self.consistency not in (None, "async")

    def staleness_limit(self, workers: int) -> int | None:
        """Return the staleness above which a gradient is dropped; None: none is dropped.

        On average a gradient is stale by workers - 1, so by default those are dropped whose worker
        is ten times slower than the others. A job without `consistency` was accepted by an earlier
        version, which dropped none.
        """
        if self.makes_updates_together or workers == 1 or self.max_staleness == "off":
            return None
        if self.max_staleness is None and self.consistency is not None:
            return STALENESS_FACTOR * (workers - 1)
        return self.max_staleness

    @property
    def program_version(self) -> str:
        """A key of the computation: the program's digest, with its entry and parameters if it has
        any, and its consistency if it is not `async`. Jobs with the same key are expected to be
        equally fast.
        """
        version = self.program.digest
        if self.program.entry or self.params:
            chosen = msgspec.json.encode((self.program.entry, self.params), order="sorted")
            version = f"{version}-{hashlib.sha256(chosen).hexdigest()[:16]}"
        return f"{version}-{self.consistency}" if self.makes_updates_together else version

    def id(self) -> str:
        return f"{self.key()}.job.requested.{self.request_id}"


class CancelRequested(JobNameMessage, frozen=True, kw_only=True, tag="job.cancel"):
    """A request to stop the job and remove all its pods."""

    request_id: str = "-"

    def id(self) -> str:
        return f"{self.key()}.job.cancel.{self.request_id}"


class Bounds(Part, frozen=True, kw_only=True):
    """The least and the greatest number of tasks of a role, inclusive."""

    min: Bound
    max: Bound


class ChangeRequested(JobNameMessage, frozen=True, kw_only=True, tag="job.change"):
    """A request for another priority or other bounds of a job. Answered by `JobChanged` or
    `ChangeRejected`. Absent values stay as they are.
    """

    priority: Priority | None = None
    ps: Bounds | None = None
    workers: Bounds | None = None
    request_id: str = "-"

    def id(self) -> str:
        return f"{self.key()}.job.change.{self.request_id}"


class SuspendRequested(JobNameMessage, frozen=True, kw_only=True, tag="job.suspend"):
    """A request that the job saves and frees all its resources until it is resumed. Answered like
    a change.
    """

    request_id: str = "-"

    def id(self) -> str:
        return f"{self.key()}.job.suspend.{self.request_id}"


class ResumeRequested(JobNameMessage, frozen=True, kw_only=True, tag="job.resume"):
    """A request that a suspended job continues from its last checkpoint. Answered like a change."""

    request_id: str = "-"

    def id(self) -> str:
        return f"{self.key()}.job.resume.{self.request_id}"


class ForgetRequested(JobNameMessage, frozen=True, kw_only=True, tag="job.forget"):
    """A request to remove all messages of a finished job from the bus, this one included. If the
    job is not over, only this message is removed.
    """

    request_id: str = "-"

    def id(self) -> str:
        return f"{self.key()}.job.forget.{self.request_id}"


Change = ChangeRequested | SuspendRequested | ResumeRequested
"""The requests that a person may make about an open job."""
BY_PERSONS = (JobRequested, ChangeRequested, SuspendRequested, ResumeRequested)
"""Requests that a person writes: an unknown field is refused."""


class JobMessage(JobNameMessage, frozen=True, kw_only=True):
    """A message about one accepted (or rejected) job. `uid` is the stream sequence of its
    request.
    """

    uid: NotNegative
    generation: NotNegative = 0

    def task(self) -> str:
        return "-"

    def ordinal(self) -> str:
        return "0"

    def id(self) -> str:
        tag = type(self).__struct_config__.tag
        return f"{self.uid}.{tag}.{self.generation}.{self.task()}.{self.ordinal()}"


class JobAccepted(JobMessage, frozen=True, kw_only=True, tag="job.accepted"):
    """The request is valid and queued. `request`: the completed request (resources, policy).

    `checkpoint_folder`: the job's own folder for checkpoints, below the cluster's folder or
    the URL of `request.checkpoint.path`. Empty for a job that version 0.1.0 accepted.
    """

    request: JobRequested
    accepted_s: Moment
    checkpoint_folder: str = ""


class JobRejected(Message, frozen=True, kw_only=True, tag="job.rejected"):
    """The request is not valid, with all reasons. If the name is not valid, `job` is
    `invalid-<digest>`.
    """

    job: str
    namespace: str = "default"
    uid: NotNegative
    reasons: tuple[str, ...]

    def key(self) -> str:
        return f"{self.namespace}.{self.job}"

    def id(self) -> str:
        return f"{self.uid}.job.rejected.0.-.0"


class JobChanged(JobMessage, frozen=True, kw_only=True, tag="job.changed"):
    """The whole new priority, bounds and suspension of a job, not a difference. `answers`: the
    stream sequence of the request. The `start` of a span never changes.
    """

    answers: NotNegative
    priority: Priority
    ps: Span
    workers: Span
    suspended: bool = False

    def ordinal(self) -> str:
        return str(self.answers)


class ChangeRejected(Message, frozen=True, kw_only=True, tag="job.unchanged"):
    """A request to change, suspend or resume a job is refused, with all reasons. `uid`: the stream
    sequence of the request.
    """

    job: str
    namespace: str = "default"
    uid: NotNegative
    reasons: tuple[str, ...]

    def key(self) -> str:
        return f"{self.namespace}.{self.job}"

    def id(self) -> str:
        return f"{self.uid}.job.unchanged.0.-.0"


# ---------------------------------------------------------------- free capacity


class Taint(Part, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class OwnPod(Part, frozen=True, kw_only=True):
    """One of Weir's pods, whose requests are subtracted from a node's free capacity."""

    namespace: str
    job: str
    pod: str
    resources: Resources
    terminating: bool = False


class CapacityChanged(Message, frozen=True, kw_only=True, tag="capacity.changed"):
    """The free capacity of one node: allocatable minus the requests of every pod on it, Weir's or
    not.

    `free`: never below zero. `schedulable`: false for a cordoned node. `gone`: the node was
    deleted. `seen`: a digest of the observation, so that the same observation has the same id.
    """

    node: str
    node_uid: str
    seen: str
    allocatable: Resources
    free: Resources
    ready: bool = True
    schedulable: bool = True
    gone: bool = False
    taints: tuple[Taint, ...] = ()
    own: tuple[OwnPod, ...] = ()
    labels: dict[str, str] = {}
    observed_s: Moment = 0.0

    def key(self) -> str:
        return self.node.replace(".", "_")

    def id(self) -> str:
        return f"{self.node_uid}.{self.seen}"


class QuotaBound(Part, frozen=True, kw_only=True):
    """The limit of one ResourceQuota for one resource, and the amount in use in the namespace.

    `resource`: its name in Kubernetes (`requests.cpu`, `limits.memory`, `pods`), in cores, GiB,
    devices or pods.
    """

    quota: Name
    resource: Name
    hard: Total
    used: Total = 0.0


class MostResources(Part, frozen=True, kw_only=True):
    """The upper limits of one task; absent: no limit."""

    cpu: Cores | None = None
    memory_gib: Cores | None = None
    gpu: Devices | None = None


class TaskBounds(Part, frozen=True, kw_only=True):
    """The lower and upper limits of one LimitRange for a container or a pod."""

    limit_range: Name
    least: Resources = Resources()
    most: MostResources = MostResources()


class QuotaChanged(Message, frozen=True, kw_only=True, tag="capacity.quota"):
    """The ResourceQuotas and LimitRanges of one namespace that apply to tasks; there may be none.

    Quotas with a scope count only if every task is in it. `seen`: a digest, as in
    `CapacityChanged`.
    """

    namespace: Namespace
    seen: str
    bounds: tuple[QuotaBound, ...] = ()
    task_bounds: tuple[TaskBounds, ...] = ()
    observed_s: Moment = 0.0

    def key(self) -> str:
        return self.namespace

    def id(self) -> str:
        return f"{self.namespace}.capacity.quota.{self.seen}"


class NodeRequirement(Part, frozen=True, kw_only=True):
    """A condition on a label, or a field, of a node, with the operators of a node affinity."""

    key: Name
    operator: Name
    values: tuple[Name, ...] = ()


class NodeTerm(Part, frozen=True, kw_only=True):
    """The nodes that fulfil all of these requirements; without requirements, no node."""

    labels: tuple[NodeRequirement, ...] = ()
    fields: tuple[NodeRequirement, ...] = ()


class ClaimPlacement(Part, frozen=True, kw_only=True):
    """Claims whose volumes only the nodes of the terms can reach."""

    claims: tuple[Name, ...]
    terms: tuple[NodeTerm, ...]


class ClaimsChanged(Message, frozen=True, kw_only=True, tag="capacity.claims"):
    """The PersistentVolumeClaims of one namespace that only some nodes can use, for example those
    of a zone; there may be none.

    `seen`: a digest, as in `CapacityChanged`.
    """

    namespace: Namespace
    seen: str
    placements: tuple[ClaimPlacement, ...] = ()
    observed_s: Moment = 0.0

    def key(self) -> str:
        return self.namespace

    def id(self) -> str:
        return f"{self.namespace}.capacity.claims.{self.seen}"


CapacityFact = CapacityChanged | QuotaChanged | ClaimsChanged
"""A fact of these kinds replaces the last one of its node or namespace."""


# ---------------------------------------------------------------- decisions


def task_name(role: Role, serial: int) -> str:
    """Return the name of a task in its job."""
    return f"{role}-{serial}"


class TaskPlan(Part, frozen=True, kw_only=True):
    """One task of a decision. `serial` is unique in a job, `index` is TensorFlow's."""

    role: Role
    index: NotNegative
    serial: NotNegative
    node: str
    resources: Resources

    def name(self) -> str:
        return task_name(self.role, self.serial)

    def pod(self, job: str) -> str:
        """Return the name of its pod. One step, because a pass needs thousands of names."""
        return f"{job}-{self.role}-{self.serial}"


class Alternative(Part, frozen=True, kw_only=True):
    """A size that was considered and not chosen, with the reason."""

    ps: NotNegative
    workers: NotNegative
    batch: NotNegative
    why: str


class AllocationDecided(JobMessage, frozen=True, kw_only=True, tag="allocation.decided"):
    """The whole desired state of one job. `generation` rises only when tasks, nodes or batch
    change. `off_s`: for how long its whole cluster was off before. `checkpoint_folder`: see
    `JobAccepted`.
    """

    revision: NotNegative
    request: JobRequested
    tasks: tuple[TaskPlan, ...]
    batch: NotNegative
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    gain_s: Measured = 0.0
    cost_s: Measured = 0.0
    cause: str = "-"
    off_s: Seconds = 0.0
    checkpoint_folder: str = ""
    decided_s: Moment = 0.0

    def ordinal(self) -> str:
        return str(self.revision)


# ---------------------------------------------------------------- tasks and generations


class TaskMessage(JobMessage, frozen=True, kw_only=True):
    """A fact about one pod of a job."""

    pod: Name
    pod_uid: Name
    role: Role
    serial: NotNegative

    def task(self) -> str:
        return task_name(self.role, self.serial)

    def ordinal(self) -> str:
        return self.pod_uid


class TaskReady(TaskMessage, frozen=True, kw_only=True, tag="task.ready"):
    """One task is ready at these addresses. A generation uses the port that the running one does
    not use.
    """

    node: Name
    host: Name
    ports: tuple[Port, Port]


class TaskStarted(TaskMessage, frozen=True, kw_only=True, tag="task.started"):
    """A pod runs."""

    node: str


SIGTERM = "SIGTERM"
EVICTED = "Evicted"
DELETED = "Deleted"
"""Reasons of a task that leaves for good: it got SIGTERM, or its pod is evicted or deleted."""
CORDONED, TAINTED = "NodeCordoned", "NodeTainted"
OF_NODE = (TAINTED, CORDONED)
"""Reasons of a task that leaves because of its node. They can be reverted; the stronger first."""


class TaskLeaving(TaskMessage, frozen=True, kw_only=True, tag="task.leaving"):
    """A task that still works has to leave. `leaves_s`: the time when it is killed; 0: unknown.

    `why`: one of the reasons above (SIGTERM: the task got the signal), or another one of
    Kubernetes. `message`: the text of the component that evicts it.
    """

    node: Name
    why: Sentence
    leaves_s: Moment = 0.0
    message: Text = ""

    def ordinal(self) -> str:
        """Return the pod, reason and time: a later notice may have the same reason with another
        time.
        """
        return f"{self.pod_uid}.{self.why}.{round(self.leaves_s)}"


class TaskExited(TaskMessage, frozen=True, kw_only=True, tag="task.exited"):
    """A pod ended. `reason` is Kubernetes' (OOMKilled, Evicted, NodeLost, Error, Completed,
    Deleted, Unschedulable).
    """

    node: str
    exit_code: Whole | None = None
    reason: str = ""
    message: str = ""


class TaskAddress(Part, frozen=True, kw_only=True):
    """The address of one task of a generation. `memory_gib`: its limit; 0: none, or not known."""

    role: Role
    index: NotNegative
    pod: str
    host: str
    port: Port
    memory_gib: Cores = 0.0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class ClusterSpecPublished(JobMessage, frozen=True, kw_only=True, tag="cluster.published"):
    """The addresses of a generation whose tasks are all ready. `previous`: the generation that
    runs now, if any; `off_s`: if none runs, for how long the cluster was off before. `decided_s`:
    the time of the decision; 0: unknown.
    """

    revision: NotNegative
    request: JobRequested
    tasks: tuple[TaskAddress, ...]
    batch: Positive
    previous: NotNegative | None = None
    off_s: Seconds = 0.0
    published_s: Moment = 0.0
    decided_s: Moment = 0.0

    def ordinal(self) -> str:
        return str(self.revision)

    def addresses(self, role: Role) -> list[str]:
        """Return the addresses of a role in the order of TensorFlow's index."""
        mine = sorted((t for t in self.tasks if t.role == role), key=lambda t: t.index)
        return [t.address for t in mine]

    def of(self, pod: str) -> TaskAddress | None:
        return next((t for t in self.tasks if t.pod == pod), None)


class PreparationParts(Part, frozen=True, kw_only=True):
    """The parts of a chief's preparation: the program's import; waiting for the servers of the
    other tasks; model and optimizer; tracing the step; a first update on every worker, with a save
    and a restore; reading the tables of the running generation.
    """

    import_s: Seconds = 0.0
    connect_s: Seconds = 0.0
    build_s: Seconds = 0.0
    trace_s: Seconds = 0.0
    first_step_s: Seconds = 0.0
    tables_s: Seconds = 0.0


class ModelProfile(Part, frozen=True, kw_only=True):
    """The size of the model: trainable parameters, their bytes, and the number of variables. A table
    that is divided counts as its parts: more ps than variables are of no use. `table_bytes`: of all
    divided tables with their slots; 0: there are none.
    """

    parameters: NotNegative
    bytes: NotNegative
    variables: NotNegative
    table_bytes: NotNegative = 0


class GenerationPrepared(TaskMessage, frozen=True, kw_only=True, tag="training.prepared"):
    """One task of the next generation is ready beside the running one, or has failed (`error`).
    `parts`: of a chief's `seconds`; `profile`: a chief's model.
    """

    seconds: Seconds = 0.0
    parts: PreparationParts | None = None
    profile: ModelProfile | None = None
    error: Text | None = None

    def ordinal(self) -> str:
        return self.pod_uid if self.error is None else f"{self.pod_uid}.error"


class HandOverOrdered(JobMessage, frozen=True, kw_only=True, tag="cluster.handover"):
    """All tasks are prepared: drain `previous`, then train as `generation`. Without `previous`,
    begin, or continue from a checkpoint.
    """

    previous: NotNegative | None = None


NOT_ENOUGH_MEMORY = "NotEnoughMemory"
"""Part of the error of a task that has no memory to prepare beside the running generation. The job
then restarts instead.
"""


ABANDONED_KEPT = 20
"""Abandoned generations above the running one that each service remembers, because one of them
may still resume.
"""


class GenerationAbandoned(JobMessage, frozen=True, kw_only=True, tag="cluster.abandoned"):
    """This generation was abandoned. `stood`: all its tasks were ready, so it failed by itself.

    `goes_on`: the generation that keeps training; None if there is none, or its chief ends too.
    """

    reason: str
    stood: bool = False
    goes_on: NotNegative | None = None


class TaskUpdated(TaskMessage, frozen=True, kw_only=True, tag="task.updated"):
    """CPU or memory changed in place."""

    resources: Resources
    revision: NotNegative

    def ordinal(self) -> str:
        return f"{self.pod_uid}.{self.revision}"


# ---------------------------------------------------------------- training


class CheckpointSaved(JobMessage, frozen=True, kw_only=True, tag="training.saved"):
    """A checkpoint is complete and committed. `final`: the generation has drained and applies no
    more updates.

    `step`: updates, `samples`: examples applied since the job began; `drain_s` and `seconds`: the
    two phases. `successor`: the generation for which it drained; if that one is abandoned, the
    checkpoint is no longer final. `stood`: the reason why training paused while a checkpoint that
    is not the last was written (empty: it did not pause). `digest`: of its files
    (`services/trainer/worker/checkpoint.py`). `pause_s`: the pause of training, drain included;
    `cost_s`: seconds of training lost, more than the pause if writing slows training down.
    `waited_s`: for how long its entry in the ledger waited for the bus. `next_s`: seconds to the
    next one.
    """

    step: NotNegative
    samples: NotNegative
    path: Path
    seconds: Seconds
    drain_s: Seconds = 0.0
    final: bool = False
    successor: NotNegative | None = None
    stood: Sentence = ""
    digest: Sentence = ""
    bytes: NotNegative = 0
    pause_s: Seconds = 0.0
    cost_s: Seconds = 0.0
    waited_s: Seconds = 0.0
    next_s: Seconds = 0.0

    def ordinal(self) -> str:
        """Return the step, and the successor: a generation may drain twice at one step."""
        return f"{self.step}.final.{self.successor or 0}" if self.final else str(self.step)


class CheckpointFailed(JobMessage, frozen=True, kw_only=True, tag="training.unsaved"):
    """Saving failed. Training continues, and the last checkpoint remains valid.

    `successor`: the generation for which this one had drained; it is abandoned, and this one
    continues.
    """

    step: NotNegative
    path: Path
    cause: Text
    remedy: Sentence
    successor: NotNegative | None = None
    failed_s: Moment = 0.0

    def ordinal(self) -> str:
        return f"{self.step}.{self.successor or 0}.{self.failed_s:.0f}"


class CheckpointSkipped(JobMessage, frozen=True, kw_only=True, tag="training.skipped"):
    """A checkpoint of the ledger is incomplete or missing. `instead`: the one that is restored
    (empty: there is none).
    """

    path: Path
    cause: Text
    instead: Path = ""

    def ordinal(self) -> str:
        """Return the end of the path, which identifies the checkpoint."""
        return "-".join(self.path.split("/")[-2:])


class Phases(Part, frozen=True, kw_only=True):
    """The phases of a pause, in seconds. The rest was waiting: for the decision, and for tasks that
    become ready, connect and trace.
    """

    drain_s: Seconds = 0.0
    save_s: Seconds = 0.0
    restore_s: Seconds = 0.0
    first_step_s: Seconds = 0.0

    def total_s(self) -> float:
        return self.drain_s + self.save_s + self.restore_s + self.first_step_s

    def waiting_s(self, pause_s: float) -> float:
        """Return the rest of the pause. It is 0 if the phases together last longer: the first ones
        begin while updates are still applied.
        """
        return max(pause_s - self.total_s(), 0.0)


class TableRound(Part, frozen=True, kw_only=True):
    """Rows of tables that a new generation has read from one file. `paused`: training stood still
    meanwhile; otherwise the generation before it trained.
    """

    rows: NotNegative
    bytes: NotNegative
    seconds: Seconds
    paused: bool = False


class TrainingResumed(JobMessage, frozen=True, kw_only=True, tag="training.resumed"):
    """The generation trains. `pause_s`: from the last update before to its first update, by the
    clocks of the ps (the chief's clock if that update was lost), without the time for which the
    whole cluster was off (`off_s`).

    `learning_rate`: the rate it trains with; None if the program has its own schedule. `change_s`:
    from the decision to its first update; 0: unknown. `table_rounds`: its last reads of tables.
    """

    step: NotNegative
    samples: NotNegative
    previous: NotNegative | None = None
    pause_s: Seconds | None = None
    off_s: Seconds = 0.0
    phases: Phases = Phases()
    learning_rate: Measured | None = None
    change_s: Seconds = 0.0
    table_rounds: Annotated[tuple[TableRound, ...], Meta(max_length=MOST_TABLE_ROUNDS)] = ()

    @property
    def handover_s(self) -> float | None:
        """Return the pause of a hand-over. None: this generation continued from a checkpoint
        after a loss, a crash or a cold start.
        """
        return None if self.previous is None else self.pause_s

    def ordinal(self) -> str:
        return str(self.step)


class TaskUsage(Part, frozen=True, kw_only=True):
    """Measured use of one task: cores (mean since the last report) and GiB (resident).

    `waited`: runnable threads without a core, mean since the last report; None: not measured.
    `busy`: the share of the time in which its busiest thread ran, or was runnable; None: not
    measured. `spare_gib`: the rest of its limit beside a second child as large as the running one,
    or all of the rest if such a child does not fit; None: no limit.
    """

    task: Name
    cpu: Cores
    memory_gib: Cores
    waited: Cores | None = None
    busy: Share | None = None
    spare_gib: Annotated[float, Meta(ge=-MOST_AMOUNT, le=MOST_AMOUNT)] | None = None


class Staleness(Part, frozen=True, kw_only=True):
    """The number of updates applied while a gradient was computed: mean, 99th percentile, maximum.

    `dropped`: gradients that were too stale (`max_staleness`), which the others do not include.
    """

    mean: Annotated[float, Meta(ge=0, le=LARGEST)] = 0.0
    p99: NotNegative = 0
    largest: NotNegative = 0
    dropped: NotNegative = 0


class ProgressReported(JobMessage, frozen=True, kw_only=True, tag="training.progress"):
    """The progress of the job. `loss`: mean over the examples since the last report; `epoch`: the
    number of complete epochs.

    `gradient_noise`: variance of an example's gradient over the mean's square, in examples; None:
    not measured. `gradient_noise_at_least`: a lower bound of it, which is known earlier.
    `applied_s`: the time of the last update; 0: unknown. `staleness`: of the gradients since the
    last report; None: there were none, or they could not be counted. `staleness_cost`: the share of
    progress that it costs (`shared/sample_efficiency.py`); None: not known.
    """

    step: NotNegative
    epoch: NotNegative
    samples: NotNegative
    total_samples: NotNegative
    samples_per_second: Speed
    loss: Measured | None = None
    gradient_noise: Measured | None = None
    gradient_noise_at_least: Measured | None = None
    staleness: Staleness | None = None
    staleness_cost: Share | None = None
    usage: Annotated[tuple[TaskUsage, ...], Meta(max_length=10_000)] = ()
    profile: ModelProfile | None = None
    reported_s: Moment = 0.0
    applied_s: Moment = 0.0

    def ordinal(self) -> str:
        return str(self.step)


class JobFinished(JobMessage, frozen=True, kw_only=True, tag="job.finished"):
    """The job is over. `counted`: examples applied, counted on the ps; `cause`: the reason, with
    the traceback.
    """

    outcome: Outcome
    cause: Cause = ""
    step: NotNegative = 0
    samples: NotNegative = 0
    counted: NotNegative = 0
    metrics: Metrics = {}
    finished_s: Moment = 0.0

    def id(self) -> str:
        return f"{self.uid}.job.finished"


# ---------------------------------------------------------------- incidents of the services

Trouble = Literal["no room", "bus away", "bus slow", "kubernetes away", "began again"]


class ServiceTroubled(Message, frozen=True, kw_only=True, tag="service.troubled"):
    """A service could not publish, receive or see what it must. `seconds`: the duration; None: it
    is not over, or was a moment.
    """

    service: Annotated[str, Meta(pattern=DNS_LABEL, max_length=40)]
    what: Trouble
    cause: str
    remedy: str
    begun_s: Moment
    seconds: Seconds | None = None

    def key(self) -> str:
        return self.service

    def id(self) -> str:
        end = "begun" if self.seconds is None else "over"
        return f"{self.service}.service.troubled.{self.what.replace(' ', '-')}.{self.begun_s:.3f}.{end}"


MESSAGES: tuple[type[Message], ...] = (
    JobRequested,
    CancelRequested,
    ChangeRequested,
    SuspendRequested,
    ResumeRequested,
    ForgetRequested,
    JobAccepted,
    JobRejected,
    JobChanged,
    ChangeRejected,
    CapacityChanged,
    QuotaChanged,
    ClaimsChanged,
    AllocationDecided,
    TaskReady,
    TaskStarted,
    TaskLeaving,
    TaskExited,
    ClusterSpecPublished,
    GenerationPrepared,
    HandOverOrdered,
    GenerationAbandoned,
    TaskUpdated,
    CheckpointSaved,
    CheckpointFailed,
    CheckpointSkipped,
    TrainingResumed,
    ProgressReported,
    JobFinished,
    ServiceTroubled,
)


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that could not be read: its place, its body and the error."""

    stream: str
    sequence: int
    subject: str
    error: str
    body: str
    said_by: str
    PREFIX: ClassVar[str] = "weir-dead"
