"""What Weir counts of a node or a pod."""

from __future__ import annotations

from services.monitor.facts import Amount, read_amount


def test_amounts_are_rounded_up_and_absent_ones_are_zero():
    assert read_amount({"cpu": "100u", "memory": "1.5", "nvidia.com/gpu": "2"}) == Amount(1, 2, 2)
    assert read_amount(None) == read_amount({"ephemeral-storage": "1Gi"}) == Amount()
