"""The cost of a step by the model's profile alone, and the part of it that binds: Dike's estimator.

With p ps and w workers, m samples a worker and step, F operations a sample (forward and backward),
S bytes of parameters of which the largest variable has S_max:

    compute  = m F / rate                       [s]    rate: operations a second of one worker
    transfer = 2 w max(S/p, S_max) / link       [s]    to all workers and back, by the busiest link
    update   = w S / (p memory)                 [s]    memory: bytes a second that one ps can add up

    compute-bound, where transfer < A compute;  communication-bound, where transfer > B compute;
    else balanced

Published is that Dike (Xu & Li, Electronics 2019) decides by number and type of parameters and
layers, by nodes and by input data. The formulas, A and B are our reconstruction. So are the rates:
they belong to no particular machine, and only show which terms are likely to be large; an
observation outweighs them (`speed.py`). The trainer reports no number of operations, so six a
parameter are assumed: a multiplication and an addition, once forward and twice backward, as in
dense layers.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from services.allocator.models.fitting import Prior
from services.allocator.models.speed import SHARES, Fit, Form
from services.allocator.policies.contract import Size
from shared.messages import ModelProfile

Kind = Literal["compute-bound", "balanced", "communication-bound"]

A = 0.5
B = 1.0
PER_PARAMETER = 6.0
PROFILE_SHARE = SHARES[0] + SHARES[2] + SHARES[3]
"""The usual share of a step that compute, update and transfer have together."""
TRUST = 0.5
"""The part of a term's prior share that follows the profile; the rest is as without a profile."""


class Rates(msgspec.Struct, frozen=True):
    """The speeds of one worker, one link and one ps."""

    worker: float = 2e10
    """Operations a second."""
    link: float = 1.25e9
    """Bytes a second."""
    memory: float = 2e9
    """Bytes a second that a ps can add up."""


class Profile(msgspec.Struct, frozen=True):
    """The size of a model."""

    bytes: float
    """Bytes of all parameters."""
    operations: float
    """Operations for a sample, forward and backward."""
    largest: float = 0.0
    """Bytes of the largest variable; 0: variables can be split."""


class Parts(msgspec.Struct, frozen=True):
    """Seconds of one step."""

    compute: float
    transfer: float
    update: float

    @property
    def kind(self) -> Kind:
        """The class of a step with these parts."""
        return kind_of(self.compute, self.transfer)

    @property
    def step_s(self) -> float:
        """Seconds of all parts together."""
        return self.compute + self.update + self.transfer


def kind_of(compute: float, transfer: float) -> Kind:
    """Return the class of a step, by its seconds of computing and of transfer."""
    if transfer < A * compute:
        return "compute-bound"
    if transfer > B * compute:
        return "communication-bound"
    return "balanced"


def profile_of(profile: ModelProfile) -> Profile:
    """Return the profile that the trainer reported. Weir spreads variables evenly, the largest
    first, so no single variable limits the speed as long as there are several.
    """
    return Profile(float(profile.bytes), PER_PARAMETER * profile.parameters)


def step_parts(profile: Profile, size: Size, each: float, rates: Rates | None = None) -> Parts:
    """Return the parts of a step. `each`: samples of one worker's step."""
    rates = rates or Rates()
    ps = max(1, size.ps)
    shard = max(profile.bytes / ps, profile.largest)
    return Parts(
        compute=each * profile.operations / rates.worker,
        transfer=2.0 * size.workers * shard / rates.link,
        update=size.workers * profile.bytes / ps / rates.memory,
    )


def prior_of(
    profile: Profile | None,
    batch: int,
    form: Form = "synchronous",
    rates: Rates | None = None,
    device: float = math.inf,
) -> Prior:
    """Return the prior before any observation. Without a profile it is the same for every model.

    `batch`: the batch of the shares; `device`: the most samples that a worker holds at once.
    """
    plain = Prior(form=form, batch=batch, device=device)
    if profile is None or batch <= 0:
        return plain
    one = step_parts(profile, Size(1, 1), float(batch), rates)
    if not one.step_s > 0.0:
        return plain
    return Prior(
        shares=_profile_shares(one),
        step_s=one.step_s / PROFILE_SHARE,
        form=form,
        batch=batch,
        device=device,
    )


def _profile_shares(one: Parts) -> tuple[float, ...]:
    """Return the usual shares, mixed with those of the profile; the sum stays the same.

    `one`: a step of one ps and one worker.
    """
    compute, fixed, update, link, *others = SHARES
    compute = _mixed_share(compute, one.compute / one.step_s)
    update = _mixed_share(update, one.update / one.step_s)
    link = _mixed_share(link, one.transfer / one.step_s)
    return (compute, fixed, update, link, *others)


def _mixed_share(usual: float, part: float) -> float:
    """Return the share of a term. `part`: its part of the terms in the profile."""
    return (1 - TRUST) * usual + TRUST * (PROFILE_SHARE * part)


def fitted_kind(fitted: Fit, size: Size, batch: int) -> Kind:
    """Return the class of a step, by a model that was fitted to observations."""
    seconds = fitted.seconds(size.ps, size.workers, batch)
    compute = seconds["compute"]
    transfer = seconds["link"] + seconds["workers"] + seconds["ps"]
    return kind_of(compute, transfer)
