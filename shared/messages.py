"""Every message, in the order the story is told.

Law: a message is a frozen struct, written once, read by a typed decoder. Its tag (`fact`) is its
subject without the `weir.` in front and the names behind. A decision carries the whole wanted state
and a generation, never a difference: late or repeated messages are harmless, a lost one is healed
by the next. New fields get defaults; tags are for ever.

Units: `*_s` seconds (points in time: seconds since 1970, UTC), `cpu` cores, `memory_gib` GiB,
`samples` examples.

Every number has bounds, which are part of its type and are checked on arrival: a message beyond
them becomes a dead letter. Within them no decision overflows. The sender of a fact keeps to them
(`shared/bounds.py`). `metrics` alone, which are only shown, may be any number of JSON. In the same
way every text and every list of what a job may say has a longest length: the services remember
these, and a program may write anything.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

Role = Literal["chief", "ps", "worker"]
HandOver = Literal["make-before-break", "restart"]
Outcome = Literal["succeeded", "failed", "cancelled"]
CpuLimits = Literal["hard", "soft"]

DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?\Z"
JobName = Annotated[str, Meta(pattern=DNS_LABEL, max_length=40)]
Namespace = Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)]
Digest = Annotated[str, Meta(pattern=r"^sha256-[0-9a-f]{64}\Z")]
LARGEST_PROGRAM = 16 << 20  # bytes
LARGEST = (1 << 53) - 1  # every whole number up to it is exact as a float, too
LONGEST_S = 366 * 86_400.0  # a year; what takes longer is told as this
FASTEST = 1e12  # examples a second
MOST_AMOUNT = 1e6  # cores, GiB or devices of one task or node
MOST_OF_SPAN = 1_000_000  # tasks of a role, or examples of one worker's batch
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


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A piece of a message."""


# ---------------------------------------------------------------- what a person asks for


class Resources(Part, frozen=True, kw_only=True):
    """What one task or node has or wants: cores, GiB, devices."""

    cpu: Cores = 0.0
    memory_gib: Cores = 0.0
    gpu: Devices = 0


class RoleResources(Part, frozen=True, kw_only=True):
    """Requests of one task of each role; they are its limits too, unless the job's CPU limits are
    soft. What a role leaves out, or 0, is Weir's default.
    """

    chief: Resources = Resources(cpu=0.25, memory_gib=1.0)
    ps: Resources = Resources(cpu=0.25, memory_gib=1.0)
    worker: Resources = Resources(cpu=0.5, memory_gib=1.0)


class Span(Part, frozen=True, kw_only=True):
    """A number that may grow and shrink: where it starts, and its bounds (both included)."""

    start: Bound
    min: Bound
    max: Bound


class Program(Part, frozen=True, kw_only=True):
    """A training program: the file's name, and the digest under which the object store keeps it."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    digest: Digest


class CheckpointRule(Part, frozen=True, kw_only=True):
    """Where checkpoints go, how often, and how many stay.

    `path`: a folder in the namespace's part of the cluster's checkpoint folder, or an object
    store's URL; absent: the namespace's part itself. Each job gets a folder of its own below it
    (`JobAccepted.checkpoint_folder`). `continue_from`: the folder of a finished job of the same
    namespace; training begins with its last checkpoint. `every_s`: besides those of each hand-over;
    absent: chosen from what a save costs and how often the job fails
    (`services/trainer/interval.py`).
    """

    path: str | None = None
    continue_from: str | None = None
    every_s: Annotated[float, Meta(ge=1, le=LONGEST_S)] | None = None
    keep: Annotated[int, Meta(ge=1, le=1_000_000)] = 2


class Volume(Part, frozen=True, kw_only=True):
    """A folder that every task of the job sees: a claim or, where the cluster allows it, a path of
    the node.
    """

    name: Annotated[str, Meta(pattern=DNS_LABEL, max_length=63)]
    mount_path: Annotated[str, Meta(pattern=r"^/")]
    claim: str | None = None
    host_path: str | None = None


class Message(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", omit_defaults=True, gc=False
):
    """What every message has: a subject, and an id that is the same each time the same is said."""

    def key(self) -> str:
        """The last tokens of the subject."""
        raise NotImplementedError

    def id(self) -> str:
        """Deterministic, so that the server and every fold can ignore a repetition."""
        raise NotImplementedError


class JobNameMessage(Message, frozen=True, kw_only=True):
    """A message about one job by its name."""

    job: JobName
    namespace: Namespace = "default"

    def key(self) -> str:
        return f"{self.namespace}.{self.job}"


class JobRequested(JobNameMessage, frozen=True, kw_only=True, tag="job.requested"):
    """Somebody asks for training. Durable at once; answered by `JobAccepted` or `JobRejected`.

    `batch` is the number of examples of one update, by one worker; times the optimizer's
    `gradient_accumulation_steps`. `device_batch_max`: the most examples that a worker computes at
    once; a larger batch takes several passes an update. `resources` absent: sized by Weir.
    `learning_rate` says how the rate follows a changed batch: `keep`, `linear` (by the ratio) or
    `sqrt` (its root). `rate_with_workers`: with more workers than at the start the rate falls so
    far that stale gradients stay `stable` (see `services/trainer/rate.py`), or not at all (`keep`).
    `cpu_limits`: `hard`: a task never uses more cores than it has; `soft`: its cores are its share
    where others want theirs, and it may use what nobody else on its node does.
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
    cpu_limits: CpuLimits = "hard"
    volumes: tuple[Volume, ...] = ()
    request_id: str = "-"

    def id(self) -> str:
        return f"{self.key()}.job.requested.{self.request_id}"


class CancelRequested(JobNameMessage, frozen=True, kw_only=True, tag="job.cancel"):
    """Somebody wants the job to stop and leave nothing behind."""

    request_id: str = "-"

    def id(self) -> str:
        return f"{self.key()}.job.cancel.{self.request_id}"


class Bounds(Part, frozen=True, kw_only=True):
    """Between which numbers a role of a job may grow and shrink, both included."""

    min: Bound
    max: Bound


class ChangeRequested(JobNameMessage, frozen=True, kw_only=True, tag="job.change"):
    """Somebody wants another priority or other bounds for a job. Answered by `JobChanged` or
    `ChangeRejected`. What is absent stays as it is.
    """

    priority: Priority | None = None
    ps: Bounds | None = None
    workers: Bounds | None = None
    request_id: str = "-"

    def id(self) -> str:
        return f"{self.key()}.job.change.{self.request_id}"


class SuspendRequested(JobNameMessage, frozen=True, kw_only=True, tag="job.suspend"):
    """Somebody wants the job to save and to give back all that it has, until it is resumed.
    Answered as a change is.
    """

    request_id: str = "-"

    def id(self) -> str:
        return f"{self.key()}.job.suspend.{self.request_id}"


class ResumeRequested(JobNameMessage, frozen=True, kw_only=True, tag="job.resume"):
    """Somebody wants a suspended job to go on from where it was. Answered as a change is."""

    request_id: str = "-"

    def id(self) -> str:
        return f"{self.key()}.job.resume.{self.request_id}"


class ForgetRequested(JobNameMessage, frozen=True, kw_only=True, tag="job.forget"):
    """Somebody wants what a job left on the bus to be removed, this message included. Of a job that
    is not over, only this message is.
    """

    request_id: str = "-"

    def id(self) -> str:
        return f"{self.key()}.job.forget.{self.request_id}"


Change = ChangeRequested | SuspendRequested | ResumeRequested
"""What a person may ask of a job that is open."""
BY_PERSONS = (JobRequested, ChangeRequested, SuspendRequested, ResumeRequested)
"""Requests in which an unknown field is refused: a person wrote them."""


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
    """The request is valid and queued. `request` is it, completed (resources sized, policy named).

    `checkpoint_folder`: where this job alone keeps its checkpoints, below the cluster's folder or
    the URL of `request.checkpoint.path`. Empty for a job that version 0.1.0 accepted.
    """

    request: JobRequested
    accepted_s: Moment
    checkpoint_folder: str = ""


class JobRejected(Message, frozen=True, kw_only=True, tag="job.rejected"):
    """The request is not valid; every reason at once. An unusable name is answered as
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
    """From now on a job has this priority and these bounds, and is suspended or not: all of it, and
    no difference. `answers`: the stream sequence of the request. A span's `start` stays as it was
    asked for at first.
    """

    answers: NotNegative
    priority: Priority
    ps: Span
    workers: Span
    suspended: bool = False

    def ordinal(self) -> str:
        return str(self.answers)


class ChangeRejected(Message, frozen=True, kw_only=True, tag="job.unchanged"):
    """A request to change, suspend or resume a job is refused; every reason at once. `uid`: its
    stream sequence.
    """

    job: str
    namespace: str = "default"
    uid: NotNegative
    reasons: tuple[str, ...]

    def key(self) -> str:
        return f"{self.namespace}.{self.job}"

    def id(self) -> str:
        return f"{self.uid}.job.unchanged.0.-.0"


# ---------------------------------------------------------------- what is free


class Taint(Part, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class OwnPod(Part, frozen=True, kw_only=True):
    """One of our pods that is subtracted from a node's free capacity."""

    namespace: str
    job: str
    pod: str
    resources: Resources
    terminating: bool = False


class CapacityChanged(Message, frozen=True, kw_only=True, tag="capacity.changed"):
    """What one node can still hold: allocatable less the requests of every pod on it, ours or not.

    `free` may not be below zero. `schedulable` is false for a cordoned node. `gone`: the node was
    deleted. `seen` is a digest of what was seen, so that the same picture has the same id.
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
    """What one ResourceQuota allows of one resource, and how much of it the pods of the namespace
    use.

    `resource`: its name in Kubernetes (`requests.cpu`, `limits.memory`, `pods`), in cores, GiB,
    devices or pods.
    """

    quota: Name
    resource: Name
    hard: Total
    used: Total = 0.0


class MostResources(Part, frozen=True, kw_only=True):
    """The most that one task may have; absent: no limit."""

    cpu: Cores | None = None
    memory_gib: Cores | None = None
    gpu: Devices | None = None


class TaskBounds(Part, frozen=True, kw_only=True):
    """The least and the most that one LimitRange allows a container or a pod to have."""

    limit_range: Name
    least: Resources = Resources()
    most: MostResources = MostResources()


class QuotaChanged(Message, frozen=True, kw_only=True, tag="capacity.quota"):
    """The ResourceQuotas and LimitRanges of one namespace, as far as they count for tasks; it may
    have none any more.

    Quotas with a scope count only if every task is in it. `seen` is a digest, as in
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
    """What a label, or a field, of a node must be; the operators are those of a node affinity."""

    key: Name
    operator: Name
    values: tuple[Name, ...] = ()


class NodeTerm(Part, frozen=True, kw_only=True):
    """A node is meant that fulfils all of these requirements; without any, none is."""

    labels: tuple[NodeRequirement, ...] = ()
    fields: tuple[NodeRequirement, ...] = ()


class ClaimPlacement(Part, frozen=True, kw_only=True):
    """Claims whose volumes only those nodes can reach that one of the terms means."""

    claims: tuple[Name, ...]
    terms: tuple[NodeTerm, ...]


class ClaimsChanged(Message, frozen=True, kw_only=True, tag="capacity.claims"):
    """The PersistentVolumeClaims of one namespace that only some nodes can use, those of a zone for
    example.

    It may have none any more. `seen` is a digest, as in `CapacityChanged`.
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
"""Each takes the place of the last one of its node or namespace."""


# ---------------------------------------------------------------- what should run


def task_name(role: Role, serial: int) -> str:
    """Of a task in its job."""
    return f"{role}-{serial}"


class TaskPlan(Part, frozen=True, kw_only=True):
    """One wanted task. `serial` is never used twice in a job, `index` is TensorFlow's."""

    role: Role
    index: NotNegative
    serial: NotNegative
    node: str
    resources: Resources

    def name(self) -> str:
        return task_name(self.role, self.serial)

    def pod(self, job: str) -> str:
        """The name of its pod: its `name` behind its job's, in one step, for thousands are asked
        for at once.
        """
        return f"{job}-{self.role}-{self.serial}"


class Alternative(Part, frozen=True, kw_only=True):
    """A size that was considered and lost, and why."""

    ps: NotNegative
    workers: NotNegative
    batch: NotNegative
    why: str


class AllocationDecided(JobMessage, frozen=True, kw_only=True, tag="allocation.decided"):
    """The whole wanted state of one job. `generation` rises only when tasks, nodes or batch change.
    `off_s`: for so long its whole cluster was off before. `checkpoint_folder`: as the job was
    accepted with.
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


# ---------------------------------------------------------------- making it so


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
    """One task stands ready at these addresses. A generation takes the port that the running one
    does not use.
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
"""Why a task leaves that was itself asked to end, or whose pod is taken away: nothing takes that
back.
"""
CORDONED, TAINTED = "NodeCordoned", "NodeTainted"
OF_NODE = (TAINTED, CORDONED)
"""Why a task leaves with its node, which may be taken back; the harder first."""


class TaskLeaving(TaskMessage, frozen=True, kw_only=True, tag="task.leaving"):
    """A task that still works will have to go. `leaves_s`: by then it is killed; 0: nobody says
    when.

    `why`: one of those above (SIGTERM: the task was told itself), or what else Kubernetes says.
    `message`: of who wants it.
    """

    node: Name
    why: Sentence
    leaves_s: Moment = 0.0
    message: Text = ""

    def ordinal(self) -> str:
        """One notice may follow another, and each says another time."""
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
    """Where one task of a generation listens."""

    role: Role
    index: NotNegative
    pod: str
    host: str
    port: Port

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class ClusterSpecPublished(JobMessage, frozen=True, kw_only=True, tag="cluster.published"):
    """A generation's tasks all stand: who they are and where. `previous` is the generation that
    runs now, if any; `off_s`: for so long the cluster was off before, where none does. `decided_s`:
    when it was decided; 0: not known.
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
        """In the order of TensorFlow's index."""
        mine = sorted((t for t in self.tasks if t.role == role), key=lambda t: t.index)
        return [t.address for t in mine]

    def of(self, pod: str) -> TaskAddress | None:
        return next((t for t in self.tasks if t.pod == pod), None)


class GenerationPrepared(TaskMessage, frozen=True, kw_only=True, tag="training.prepared"):
    """One task of the next generation stands ready beside the running one; or could not
    (`error`).
    """

    seconds: Seconds = 0.0
    error: Text | None = None

    def ordinal(self) -> str:
        return self.pod_uid if self.error is None else f"{self.pod_uid}.error"


class HandOverOrdered(JobMessage, frozen=True, kw_only=True, tag="cluster.handover"):
    """All are prepared: drain `previous`, take over as `generation`. No previous: begin, or go on
    from a checkpoint.
    """

    previous: NotNegative | None = None


NOT_ENOUGH_MEMORY = "NotEnoughMemory"
"""In the error of a task that has no room to prepare beside the running generation: the job
restarts instead.
"""


ABANDONED_KEPT = 20
"""How many abandoned generations above the running one each service remembers: one of them may
resume all the same.
"""


class GenerationAbandoned(JobMessage, frozen=True, kw_only=True, tag="cluster.abandoned"):
    """This generation will not be. `stood`: all its tasks stood ready, so it failed alone.

    `goes_on`: the generation that trains meanwhile, if one does; None, too, where its chief ends as
    well.
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


# ---------------------------------------------------------------- it happens


class CheckpointSaved(JobMessage, frozen=True, kw_only=True, tag="training.saved"):
    """A checkpoint exists: it is complete and committed. `final`: the generation drained and
    applies nothing more.

    `step` counts updates, `samples` examples applied since the job began; `drain_s` and `seconds`
    are the two phases. `successor`: the generation for which it drained; once that one is
    abandoned, the checkpoint is final no more. `stood`: why training stood still while it was
    written, though it was not the last (empty: it went on). `digest`: of its files
    (`services/trainer/files.py`). `pause_s`: how long training stood still for it, drain included;
    `cost_s`: seconds of training that it cost: more, where writing slows what goes on beside it.
    `waited_s`: how long its entry in the ledger waited for the bus. `next_s`: seconds from its end
    to the next one.
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
        """A generation may drain twice at one step, for one successor after another."""
        return f"{self.step}.final.{self.successor or 0}" if self.final else str(self.step)


class CheckpointFailed(JobMessage, frozen=True, kw_only=True, tag="training.unsaved"):
    """Nothing was saved; training goes on, and the last checkpoint stays what it was.

    `successor`: the generation for which this one had drained; it is given up, and this one goes
    on.
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
    """A checkpoint that the ledger names is torn or missing; `instead` is restored (empty: none is
    left).
    """

    path: Path
    cause: Text
    instead: Path = ""

    def ordinal(self) -> str:
        """The end of the path: which of them."""
        return "-".join(self.path.split("/")[-2:])


class Phases(Part, frozen=True, kw_only=True):
    """A pause, taken apart; seconds. The rest of it was waiting: until it was decided, and tasks
    were ready, connected and traced.
    """

    drain_s: Seconds = 0.0
    save_s: Seconds = 0.0
    restore_s: Seconds = 0.0
    first_step_s: Seconds = 0.0

    def total_s(self) -> float:
        return self.drain_s + self.save_s + self.restore_s + self.first_step_s

    def waiting_s(self, pause_s: float) -> float:
        """None, where the phases together last longer: those that come first begin while updates
        are still applied.
        """
        return max(pause_s - self.total_s(), 0.0)


class TrainingResumed(JobMessage, frozen=True, kw_only=True, tag="training.resumed"):
    """The generation trains. `pause_s`: last update that was applied before to the first of this
    one, on the ps' clocks (the chief's, where that update was lost), without the time for which the
    whole cluster was off (`off_s`).

    `learning_rate`: with which it trains; None where the program has a schedule of its own.
    `change_s`: from the decision to its first update; 0: not known.
    """

    step: NotNegative
    samples: NotNegative
    previous: NotNegative | None = None
    pause_s: Seconds | None = None
    off_s: Seconds = 0.0
    phases: Phases = Phases()
    learning_rate: Measured | None = None
    change_s: Seconds = 0.0

    @property
    def handover_s(self) -> float | None:
        """The pause, where the generation before made way. None: nobody was left who could, so this
        one went on from a checkpoint, and its pause is of a loss, a crash or a cold start, for as
        long as nobody saw to it.
        """
        return None if self.previous is None else self.pause_s

    def ordinal(self) -> str:
        return str(self.step)


class TaskUsage(Part, frozen=True, kw_only=True):
    """Measured use of one task: cores (mean since the last report) and GiB (resident).

    `waited`: threads that could have run and had no core, mean since the last report; None: not
    measured. `busy`: the share of the time in which the busiest of its threads ran, or could have
    run; None: not measured. `spare_gib`: what would be left of its limit beside a second child as
    large as the one that runs; None: no limit.
    """

    task: Name
    cpu: Cores
    memory_gib: Cores
    waited: Cores | None = None
    busy: Share | None = None
    spare_gib: Annotated[float, Meta(ge=-MOST_AMOUNT, le=MOST_AMOUNT)] | None = None


class ModelProfile(Part, frozen=True, kw_only=True):
    """What a policy may know of the model: trainable numbers, their bytes, and how many variables
    hold them.
    """

    parameters: NotNegative
    bytes: NotNegative
    variables: NotNegative


class ProgressReported(JobMessage, frozen=True, kw_only=True, tag="training.progress"):
    """How far the job is. `loss` is the mean over the examples since the last report; `epoch`: how
    many are complete.

    `gradient_noise`: variance of an example's gradient over the mean's square, in examples; None:
    not measured. `applied_s`: when the last update was applied, in seconds since 1970; 0: not
    known.
    """

    step: NotNegative
    epoch: NotNegative
    samples: NotNegative
    total_samples: NotNegative
    samples_per_second: Speed
    loss: Measured | None = None
    gradient_noise: Measured | None = None
    usage: Annotated[tuple[TaskUsage, ...], Meta(max_length=10_000)] = ()
    profile: ModelProfile | None = None
    reported_s: Moment = 0.0
    applied_s: Moment = 0.0

    def ordinal(self) -> str:
        return str(self.step)


class JobFinished(JobMessage, frozen=True, kw_only=True, tag="job.finished"):
    """The job is over. `counted`: examples applied, counted on the ps; `cause` says why, with the
    traceback.
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


# ---------------------------------------------------------------- what befalls the services themselves

Trouble = Literal["no room", "bus away", "bus slow", "kubernetes away", "began again"]


class ServiceTroubled(Message, frozen=True, kw_only=True, tag="service.troubled"):
    """A service could not say, hear or see what it must. `seconds`: how long; None: it lasts still,
    or is a moment.
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
    """A message nobody could use: where it was, what it said, and why not."""

    stream: str
    sequence: int
    subject: str
    error: str
    body: str
    said_by: str
    PREFIX: ClassVar[str] = "weir-dead"
