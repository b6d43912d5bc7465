"""Tests that a command distinguishes a server without JetStream from one without a leader yet."""

from __future__ import annotations

import pytest
from nats.js.errors import ServiceUnavailableError

from services.cli.connection import Connection, _explain_failure


@pytest.mark.parametrize("code", [10008, None])
def test_an_election_is_not_reported_as_missing_jetstream(code: int | None) -> None:
    told = _explain_failure(ServiceUnavailableError(code=503, err_code=code), Connection())

    assert "electing a leader" in told and "start it with -js" not in told


@pytest.mark.parametrize("code", [10039, 10076])
def test_a_server_without_jetstream_has_a_remedy(code: int) -> None:
    assert "start it with -js" in _explain_failure(
        ServiceUnavailableError(code=503, err_code=code), Connection()
    )
