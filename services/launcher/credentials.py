"""Credentials of a job's trainers: theirs alone, for this job's subjects and its program, for a
time. Edge.

They do not say where the program's contents are, so they stay good however often the same program
is stored.

They are not renewed. A pod's environment is that of its start, and a file that could be renewed
could be read by the program, too. So they last longer than a job does (`credentials_s`), and are an
end to what leaked, not a fence.
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
    """The file with the launcher's key cannot be used; the text says why."""


class Minter:
    def __init__(self, signer: Signer, lasts_s: float) -> None:
        self.signer, self.lasts_s = signer, lasts_s

    def fill_secret(self, action: CreateSecret) -> CreateSecret:
        """Return the action with a new credential in it."""
        return msgspec.structs.replace(action, text=self._mint_credentials(action.decision))

    def _mint_credentials(self, decision: AllocationDecided) -> str:
        meta = programs.meta_token(decision.request.program.digest)
        chance = os.urandom(authority.SEED_BYTES)
        request = decision.request
        return authority.job_credentials(
            self.signer,
            decision.namespace,
            decision.job,
            meta,
            chance,
            time.time(),
            self.lasts_s,
            permissions.reader_blocks(1 + request.ps.max + request.workers.max),
        )


def load_minter(key_file: str, lasts_s: float) -> Minter | None:
    """None where there is no key: then the bus asks for no credentials. Raises `BadKey`."""
    if not key_file:
        return None
    try:
        return Minter(msgspec.json.decode(Path(key_file).read_bytes(), type=Signer), lasts_s)
    except (OSError, msgspec.DecodeError) as error:
        raise BadKey(f"cannot use the key in {key_file}: {error}") from error
