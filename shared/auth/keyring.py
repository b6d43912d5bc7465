"""Credentials as files, for the operator of a bus: random, readable by their owner only.

keys.json                    the secrets for all others; a second run uses them again
auth.conf                    operator and accounts for nats-server (`include` it, or use -c)
monitor.creds, ...           one file for each user: NATS credentials
jobs.json                    the launcher's key for credentials of jobs
submitter.<namespace>.creds  users who may request jobs in that namespace
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
    """Write all files; return their paths. Raises `BadKeys`, `OSError`.

    `certificate`: files of the server's certificate and key; with them it requires TLS.
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
    """Write a file atomically; only its owner may read it."""
    handle, beside = tempfile.mkstemp(dir=path.parent)  # its mode is 0600
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(beside, path)
