"""Credentials of a job's trainers: theirs alone, for this job's subjects and its program, for a time. Edge.

They are not renewed. A pod's environment is that of its start, and a file that could be renewed could be read by the
program, too. So they last longer than a job does (`credentials_s`), and are an end to what leaked, not a fence.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
from nats.js.errors import NotFoundError

from services.launcher.actions import CreateSecret
from shared import authority, programs, tokens
from shared.authority import Signer
from shared.bus import Bus
from shared.messages import AllocationDecided

NOWHERE = "-"  # the subject of a program's parts, where there is no program


class BadKey(ValueError):
    """The file with the launcher's key cannot be used; the text says why."""


class Minter:
    def __init__(self, bus: Bus, signer: Signer, lasts_s: float) -> None:
        self.bus, self.signer, self.lasts_s = bus, signer, lasts_s

    async def filled(self, action: CreateSecret) -> CreateSecret:
        """With the credential in it. Raises `NatsError` while the bus is away."""
        return msgspec.structs.replace(action, text=await self._minted(action.decision))

    async def _minted(self, decision: AllocationDecided) -> str:
        digest = decision.request.program.digest
        chunks, chance = await self._chunks(digest), os.urandom(tokens.CHANCE_BYTES)
        meta = programs.meta_token(digest)
        return authority.job(
            self.signer, decision.namespace, decision.job, meta, chunks, chance, time.time(), self.lasts_s
        )

    async def _chunks(self, digest: str) -> str:
        """Where the program's parts lie, as the store has it; a person wrote that, so it may be any text."""
        try:
            found = (await programs.described(self.bus, digest)).nuid
        except (NotFoundError, msgspec.DecodeError):
            return NOWHERE
        return found if authority.TOKEN.match(found) else NOWHERE


def minter(bus: Bus, key_file: str, lasts_s: float) -> Minter | None:
    """None where there is no key: then the bus asks for no credentials. Raises `BadKey`."""
    if not key_file:
        return None
    try:
        return Minter(bus, msgspec.json.decode(Path(key_file).read_bytes(), type=Signer), lasts_s)
    except (OSError, msgspec.DecodeError) as error:
        raise BadKey(f"cannot use the key in {key_file}: {error}") from error
