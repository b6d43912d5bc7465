"""What a policy is told, and what it answers.

`policy(cluster, jobs, now) -> list of Want`: for every job it has an opinion on, the size it should have. A policy
sees only what a live allocator sees. It may shrink a job as well as grow it, and may ask for more than fits now: the
grown one then waits until the shrunk one's pods are gone. Saying nothing of a job leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from services.allocator.models.kin import Kin
from services.allocator.models.learning import worth
from services.allocator.placing.placement import Node, Size
from services.allocator.placing.quota import Quota
from services.allocator.readings import Learned, Observed, Reading
from services.allocator.rules import PAUSE_S
from shared.messages import Alternative, JobRequested, ProgressReported, RoleResources, TaskPlan


class JobSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job. `size` is absent while nothing of it was decided; `busy`: a decision is in flight, wait for it."""

    key: str
    request: JobRequested
    sizes: RoleResources
    submitted_s: float
    size: Size | None = None
    batch: int = 0
    tasks: tuple[TaskPlan, ...] = ()
    since_s: float = 0.0
    busy: bool = False
    progress: ProgressReported | None = None
    observed: tuple[Observed, ...] = ()
    tried: tuple[Observed, ...] = ()
    """As `observed`, but one for each number of cores a task, too."""
    recent: tuple[Reading, ...] = ()
    curve: tuple[Learned, ...] = ()
    pause_s: float | None = None
    quota: Quota | None = None
    """Of its namespace: what all jobs in it may hold together."""
    kin: Kin | None = None
    """What jobs of its program that are over have shown."""

    @property
    def noise(self) -> float | None:
        """The gradient noise scale, in samples."""
        return self.progress.gradient_noise if self.progress else None

    def worth(self, batch: int) -> float:
        """What a sample of such a batch teaches, relative to one of the first batch."""
        return worth(batch, self.request.batch.start, self.noise)

    @property
    def pauses_s(self) -> float:
        """What a change is taken to cost it: its hand-overs' pauses as measured, `PAUSE_S` before."""
        return PAUSE_S if self.pause_s is None else self.pause_s

    @property
    def start(self) -> Size:
        """The size to begin with: within its bounds, which its user may have changed."""
        ps, workers = self.request.ps, self.request.workers
        return Size(max(ps.min, min(ps.start, ps.max)), max(workers.min, min(workers.start, workers.max)))

    @property
    def least(self) -> Size:
        return Size(self.request.ps.min, self.request.workers.min)

    @property
    def most(self) -> Size:
        return Size(self.request.ps.max, self.request.workers.max)


class Want(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job's size, why, and what else was considered. `sizes`: of its tasks; absent, they stay as they are.

    `faster`: how many times as fast as now it will learn there; absent, that is told by what was observed. `speed_now`:
    its speed now by which that is told, each example counted with its worth; absent, as it was observed. `apart`: as
    `faster`, where its devices stand on more nodes than they need. `lesser`: what it says of a smaller size and batch,
    for which there is room where for this one there is not; absent, the same words.
    """

    job: str
    ps: int
    workers: int
    batch: int
    reason: str
    alternatives: tuple[Alternative, ...] = ()
    sizes: RoleResources | None = None
    faster: float | None = None
    speed_now: float | None = None
    apart: float | None = None
    lesser: Callable[[Size, int], Want] | None = None

    @property
    def size(self) -> Size:
        return Size(self.ps, self.workers)

    @property
    def waits(self) -> bool:
        """Whether the job is to have nothing for now."""
        return not self.ps and not self.workers

    def cut(self, size: Size, batch: int, why: str) -> Want:
        """No more of it than this, and what was wanted: figures are those of what is granted, if anybody knows them."""
        said = self.lesser(size, batch) if self.lesser else replace(self, faster=None, apart=None)
        reason = f"{said.reason}, {why} (wanted: {self.size.told()})"
        return replace(said, ps=size.ps, workers=size.workers, batch=batch, reason=reason, lesser=self.lesser)


Policy = Callable[[Sequence[Node], Sequence[JobSeen], float], list[Want]]


def at_start(job: JobSeen, reason: str) -> Want:
    """What the user asked for at first."""
    size = job.start
    return Want(job=job.key, ps=size.ps, workers=size.workers, batch=job.request.batch.start, reason=reason)


def left_open(request: JobRequested) -> bool:
    """Did the person leave the sizes of tasks to Weir? An answered request has Weir's own then."""
    return request.resources in (None, RoleResources())
