"""Tests of credential files: complete, private to their owner, and with the same keys again."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from shared.auth import keyring
from shared.auth.authority import USERS, Keys, user_name
from tests.conftest import NatsServer
from tests.shared.secured_server import is_let_in


def test_every_user_has_a_private_credentials_file(tmp_path: Path) -> None:
    written = keyring.write_credentials(tmp_path / "credentials", time.time(), ["team-a"])

    names = {user_name(path.read_text()) for path in written if path.suffix == ".creds"}
    assert names == {*USERS, "submitter.team-a"}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "credentials").iterdir()} == {0o600}
    assert (tmp_path / "credentials").stat().st_mode & 0o777 == 0o700


async def test_a_second_run_uses_the_same_keys(tmp_path: Path) -> None:
    """So a server that was started with the first files accepts the second, with its streams."""
    keyring.write_credentials(tmp_path / "all", time.time())
    first = keyring.credentials_file(tmp_path / "all", "operator").read_text()
    server = NatsServer(tmp_path / "nats", "-c", str(tmp_path / "all" / keyring.CONFIG))
    await server.start()
    keyring.write_credentials(tmp_path / "all", time.time())
    second = keyring.credentials_file(tmp_path / "all", "operator").read_text()

    assert (
        first != second
        and await is_let_in(server.url, first)
        and await is_let_in(server.url, second)
    )
    await server.kill()


def test_unreadable_keys_are_an_error_and_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / keyring.KEYS).write_text('{"operator": "SO"}')

    with pytest.raises(keyring.BadKeys, match=r"keys\.json"):
        keyring.write_credentials(tmp_path, time.time())
    assert (tmp_path / keyring.KEYS).read_text() == '{"operator": "SO"}'


def test_the_launchers_file_contains_only_its_own_key(tmp_path: Path) -> None:
    keyring.write_credentials(tmp_path, time.time())
    root = msgspec.json.decode((tmp_path / keyring.KEYS).read_bytes(), type=Keys)
    text = (tmp_path / keyring.JOBS).read_text()

    assert root.jobs in text and not [
        s for s in (root.operator, root.inside, root.outside) if s in text
    ]
