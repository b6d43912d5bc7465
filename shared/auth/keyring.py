"""Credentials as files, for one who runs a bus: made at random, readable by their owner alone.
Edge.

keys.json                    the secrets from which all else is made; a second run goes on with them
auth.conf                    whom nats-server is to believe (`include` it, or give it with -c)
monitor.creds, ...           one file a user: NATS credentials
jobs.json                    the launcher's key for credentials of jobs
submitter.<namespace>.creds  who may ask for jobs in that namespace
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shared.auth import authority
from shared.auth.authority import Keys
from shared.auth.permissions import SUBMITTER

KEYS = "keys.json"
CONFIG = "auth.conf"
JOBS = "jobs.json"


class BadKeys(ValueError):
    """The folder's keys cannot be read."""


def credentials_file(folder: Path, user: str) -> Path:
    return folder / f"{user}.creds"


def write_credentials(
    folder: Path,
    now_s: float,
    submitters: Sequence[str] = (),
    certificate: tuple[Path, Path] | None = None,
) -> list[Path]:
    """Write them all; returns what was written. Raises `BadKeys`, `OSError`.

    `certificate`: the server's own and its key, files; with them it speaks over TLS only.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    root = _load_keys(folder / KEYS)
    found = {folder / CONFIG: authority.server_config(root, now_s) + _tls_config(certificate)}
    found[folder / JOBS] = msgspec.json.encode(authority.job_signer(root)).decode()
    for user in authority.USERS:
        found[credentials_file(folder, user)] = authority.user_credentials(
            root, user, _random_seed(), now_s
        )
    for namespace in submitters:
        text = authority.submitter_credentials(root, namespace, _random_seed(), now_s)
        found[credentials_file(folder, f"{SUBMITTER}.{namespace}")] = text
    for path, text in found.items():
        write_private(path, text)
    return list(found)


def _tls_config(certificate: tuple[Path, Path] | None) -> str:
    if certificate is None:
        return ""
    own, key = (msgspec.json.encode(str(path.resolve())).decode() for path in certificate)
    return f"tls {{\n  cert_file: {own}\n  key_file: {key}\n}}\n"


def _random_seed() -> bytes:
    return os.urandom(authority.SEED_BYTES)


def _load_keys(path: Path) -> Keys:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Keys)
    except FileNotFoundError:
        made = authority.create_keys(os.urandom)
        write_private(path, msgspec.json.encode(made).decode())
        return made
    except msgspec.DecodeError as error:
        raise BadKeys(f"{path}: {error}") from error


def write_private(path: Path, text: str) -> None:
    """Write a file, whole or not at all, that only its owner may read."""
    handle, beside = tempfile.mkstemp(dir=path.parent)  # its mode is 0600
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(beside, path)
