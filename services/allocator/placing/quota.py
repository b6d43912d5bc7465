"""What a namespace may hold in all: the chiefs, ps and workers of its jobs counted together.

Law: what the tasks of a namespace have and were promised never grows beyond its quota; to give back is always allowed,
whoever stands above a quota that was lowered. A job starts as large as the quota has room for, and never below its gang
floor; a running one grows as far, ps and workers in turn, so that their ratio stays near the one that is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from services.allocator.placing.amounts import fits, less, times, together
from services.allocator.placing.placement import ROLES, Room, Size
from shared.messages import Cores, Namespace, NotNegative, Resources, Role, RoleResources, TaskPlan

BOUNDLESS = 1 << 53  # devices, where no number of them is too large


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Cores, GiB and devices; absent: no limit."""

    cpu: Cores | None = None
    memory_gib: Cores | None = None
    gpu: NotNegative | None = None

    def most(self) -> Resources:
        return Resources(
            cpu=math.inf if self.cpu is None else self.cpu,
            memory_gib=math.inf if self.memory_gib is None else self.memory_gib,
            gpu=BOUNDLESS if self.gpu is None else self.gpu,
        )


Quotas = dict[Namespace, Quota]
"""A namespace that is not in it has no limit."""


def gang(sizes: RoleResources, size: Size) -> Resources:
    """All tasks of a job together."""
    return together(times(getattr(sizes, role), size.of(role)) for role in ROLES)


def growth(tasks: Sequence[TaskPlan], size: Size, sizes: RoleResources, *, stretched: bool) -> Resources:
    """What a job takes beyond its tasks to come to a size. What it gives back does not count.

    `sizes`: of its new tasks, and of those that stand, if they are to be `stretched`.
    """
    more = [times(getattr(sizes, role), max(0, size.of(role) - len(_of(tasks, role)))) for role in ROLES]
    stay = [task for role in ROLES for task in _of(tasks, role)[: size.of(role)]] if stretched else []
    return together([*more, *(less(getattr(sizes, task.role), task.resources) for task in stay)])


def _of(tasks: Sequence[TaskPlan], role: Role) -> list[TaskPlan]:
    """The oldest first: these stay."""
    return sorted((task for task in tasks if task.role == role), key=lambda task: task.serial)


def shortage(room: Room, job: str, wants: Resources) -> str:
    """Why a job's quota has no room for so much more; empty where it has."""
    purse = room.purse(job)
    if purse is None or fits(wants, purse):
        return ""
    return f"quota of namespace {job.partition('.')[0]}: {_lack(wants, purse, 'wants {} more, and {:.4g} is left')}"


def too_small(quota: Quota | None, namespace: str, wants: Resources) -> str:
    """Why a quota will never do for so much; empty where it can."""
    most = quota.most() if quota else wants
    if fits(wants, most):
        return ""
    return f"quota of namespace {namespace}: {_lack(wants, most, 'wants at least {}, and {:.4g} is all there is')}"


def _lack(wants: Resources, has: Resources, sentence: str) -> str:
    amounts = (
        (f"{wants.cpu:g} cpu", wants.cpu, has.cpu),
        (f"{wants.memory_gib:.4g} GiB", wants.memory_gib, has.memory_gib),
        (f"{wants.gpu} gpu", wants.gpu, has.gpu),
    )
    return "; ".join(sentence.format(told, there) for told, wanted, there in amounts if wanted > there)
