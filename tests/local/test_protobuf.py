"""Tests of kubectl's protobuf bodies: read as if they were JSON, or refused with a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.local.api.request import MAGIC, decode_protobuf
from services.local.objects.bodies import ApiError

DELETE = bytes.fromhex("6b3873000a130a027631120d44656c6574654f7074696f6e7312020802" + "1a002200")
"""The body that kubectl 1.32 sends for `drain --grace-period=2`."""


def field(number: int, value: bytes | str | int) -> bytes:
    """Return one field as protobuf encodes it; for small numbers and lengths."""
    if isinstance(value, int):
        return bytes([number << 3]) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2]) + varint(len(raw)) + raw


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def sent(kind: str, raw: bytes) -> bytes:
    return MAGIC + field(1, field(1, "policy/v1") + field(2, kind)) + field(2, raw)


def test_a_deletion_as_kubectl_sends_it() -> None:
    assert decode_protobuf(DELETE) == {"kind": "DeleteOptions", "gracePeriodSeconds": 2}


def test_an_eviction_with_every_supported_field() -> None:
    options = (
        field(1, 300)
        + field(2, field(1, "u") + field(2, "7"))
        + field(3, 0)
        + field(4, "Background")
    )
    meta = field(1, "p") + field(2, "unknown") + field(3, "default")
    assert decode_protobuf(sent("Eviction", field(1, meta) + field(2, options))) == {
        "kind": "Eviction",
        "metadata": {"name": "p", "namespace": "default"},
        "deleteOptions": {
            "gracePeriodSeconds": 300,
            "preconditions": {"uid": "u", "resourceVersion": "7"},
            "orphanDependents": False,
            "propagationPolicy": "Background",
        },
    }


def test_negative_numbers_are_read_and_unknown_fields_are_skipped() -> None:
    strange = bytes([9 << 3 | 1]) + b"8 bytes!" + bytes([8 << 3 | 5]) + b"four"
    assert (
        decode_protobuf(sent("DeleteOptions", strange + field(1, -1)))["gracePeriodSeconds"] == -1
    )


@pytest.mark.parametrize(
    "raw", [b"", b"{}", MAGIC, sent("Pod", b""), DELETE[:-6], sent("Eviction", field(1, 5))]
)
def test_other_kinds_are_refused(raw: bytes) -> None:
    with pytest.raises(ApiError, match="not a protobuf message of a supported kind"):
        decode_protobuf(raw)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(raw: bytes) -> None:
    for body in (MAGIC + raw, sent("Eviction", raw)):
        try:
            assert "kind" in decode_protobuf(body)
        except ApiError as refused:
            assert refused.code == 400
