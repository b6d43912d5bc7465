"""Fixture: the credentials that a cluster would have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.servers import Secrets, secrets_in


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    return secrets_in(tmp_path)
