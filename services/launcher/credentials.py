"""Credentials of a job's trainers, for the subjects of this job and its program only, with an end.

They do not depend on the place of the program's contents, so they stay valid if the same program is
stored again.

They are not renewed. The environment of a pod does not change after its start, and the program
could read a file that is renewed. So they last longer than any job (`credentials_s`). Their end
limits a leak in time; it is no fence.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from services.launcher.actions import CreateSecret
from shared.auth import authority, permissions
from shared.auth.authority import Signer
from shared.bus import programs
from shared.messages import AllocationDecided


class BadKey(ValueError):
    """The file with the launcher's key cannot be used."""


class Minter:
    def __init__(self, signer: Signer, lasts_s: float) -> None:
        self.signer = signer
        self.lasts_s = lasts_s

    def fill_secret(self, action: CreateSecret) -> CreateSecret:
        """Return the action with a new credential in it."""
        return msgspec.structs.replace(action, text=self._mint_credentials(action.decision))

    def _mint_credentials(self, decision: AllocationDecided) -> str:
        request = decision.request
        meta = programs.meta_token(request.program.digest)
        seed = os.urandom(authority.SEED_BYTES)
        return authority.job_credentials(
            self.signer,
            decision.namespace,
            decision.job,
            meta,
            seed,
            time.time(),
            self.lasts_s,
            permissions.reader_blocks(1 + request.ps.max + request.workers.max),
        )


def load_minter(key_file: str, lasts_s: float) -> Minter | None:
    """Return None without a key file: then the bus requires no credentials. Raises `BadKey`."""
    if not key_file:
        return None
    try:
        return Minter(msgspec.json.decode(Path(key_file).read_bytes(), type=Signer), lasts_s)
    except (OSError, msgspec.DecodeError) as error:
        raise BadKey(f"cannot use the key in {key_file}: {error}") from error
