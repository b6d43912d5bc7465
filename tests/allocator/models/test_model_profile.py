"""Tests of the bottleneck by a model's profile: textbook models on fast and slow links."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.allocator.models.fitting import fit_model
from services.allocator.models.model_profile import (
    Profile,
    Rates,
    fitted_kind,
    prior_of,
    profile_of,
    step_parts,
)
from services.allocator.models.speed import SHARES
from services.allocator.policies.contract import Observed, Size
from shared.messages import ModelProfile

DEVICE = Rates(worker=7e12, link=5e9, memory=2e10)
"""One GPU of 7 Tflop/s and a link of 40 Gbit/s."""
BILLION = 1e9
RESNET_50 = Profile(bytes=102e6, operations=6 * 3.9 * BILLION, largest=9.4e6)
INCEPTION_3 = Profile(bytes=95e6, operations=6 * 5.7 * BILLION, largest=8.2e6)
VGG_16 = Profile(bytes=553e6, operations=6 * 15.5 * BILLION, largest=411e6)
ALEXNET = Profile(bytes=244e6, operations=6 * 0.72 * BILLION, largest=151e6)
FOUR_EACH = Size(4, 4)
BATCH = 32


@pytest.mark.parametrize("model", [RESNET_50, INCEPTION_3])
def test_deep_narrow_networks_are_compute_bound(model):
    assert step_parts(model, FOUR_EACH, BATCH, DEVICE).kind == "compute-bound"
    assert (
        step_parts(model, FOUR_EACH, BATCH, replace(DEVICE, link=DEVICE.link / 10)).kind
        == "communication-bound"
    )


@pytest.mark.parametrize("model", [VGG_16, ALEXNET])
def test_networks_with_large_dense_layers_are_transfer_bound(model):
    assert step_parts(model, FOUR_EACH, BATCH, DEVICE).kind == "communication-bound"


def test_ten_times_the_bandwidth_makes_vgg_compute_bound():
    assert (
        step_parts(VGG_16, FOUR_EACH, BATCH, replace(DEVICE, link=10 * DEVICE.link)).kind
        == "compute-bound"
    )


def test_one_large_variable_is_the_bottleneck_for_any_number_of_ps():
    split = replace(VGG_16, largest=0.0)
    assert (
        step_parts(VGG_16, Size(8, 4), BATCH, DEVICE).transfer
        > 5 * step_parts(split, Size(8, 4), BATCH, DEVICE).transfer
    )


def test_the_prior_follows_the_profile():
    dense, narrow = (prior_of(model, BATCH, rates=DEVICE) for model in (ALEXNET, RESNET_50))
    compute, link = 0, 3
    assert dense.shares[link] > SHARES[link] > narrow.shares[link]
    assert dense.shares[compute] < SHARES[compute] < narrow.shares[compute]
    assert sum(dense.shares) == pytest.approx(sum(SHARES)) == pytest.approx(sum(narrow.shares))


@pytest.mark.parametrize("profile, batch", [(None, 32), (Profile(0.0, 0.0), 32), (RESNET_50, 0)])
def test_without_a_profile_the_prior_is_the_default(profile, batch):
    assert prior_of(profile, batch).shares == SHARES and prior_of(profile, batch).step_s is None


def test_a_reported_profile_counts_six_operations_per_parameter():
    assert profile_of(ModelProfile(parameters=1000, bytes=4000, variables=4)) == Profile(
        4000.0, 6000.0
    )


def test_observed_speeds_overrule_the_profile():
    """More workers on one ps make the job slower, whatever the profile predicts."""
    prior = prior_of(RESNET_50, BATCH, rates=replace(DEVICE, link=10 * DEVICE.link))
    before = fitted_kind(fit_model([Observed(1, 1, BATCH, 100.0)], prior), Size(1, 1), BATCH)
    seen = [Observed(1, w, BATCH, v) for w, v in ((1, 100.0), (2, 55.0), (4, 28.0), (8, 14.0))]
    assert before == "compute-bound"
    assert fitted_kind(fit_model(seen, prior), Size(1, 4), BATCH) == "communication-bound"
