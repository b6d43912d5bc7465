"""The program's file, from a real store: what is used is what was asked for, or nothing."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from services.trainer import program_file
from services.trainer.program import BadProgram
from shared.bus import Bus
from shared.messages import Program

BODY = b"def model(): ..."
DIGEST = "sha256-" + hashlib.sha256(BODY).hexdigest()
PROGRAM = Program(name="net.py", digest=DIGEST)


async def stored(bus: Bus, body: bytes) -> None:
    await (await bus.programs()).put(DIGEST, body)


async def test_a_program_is_fetched_once(bus: Bus, tmp_path: Path) -> None:
    await stored(bus, BODY)
    path = await program_file.fetched(bus, PROGRAM, tmp_path / "pod")
    await (await bus.programs()).delete(DIGEST)

    assert path == await program_file.fetched(bus, PROGRAM, tmp_path / "pod")
    assert path.name == "net.py" and path.read_bytes() == BODY


async def test_what_is_not_what_was_asked_for_is_refused_and_not_kept(bus: Bus, tmp_path: Path) -> None:
    await stored(bus, b"import os")

    with pytest.raises(BadProgram, match=rf"^net.py is not to be had: what the store has under {DIGEST} is something"):
        await program_file.fetched(bus, PROGRAM, tmp_path / "pod")

    assert not (tmp_path / "pod").exists()


async def test_what_is_put_right_meanwhile_is_used(bus: Bus, tmp_path: Path) -> None:
    await stored(bus, b"import os")
    fetching = asyncio.create_task(program_file.fetched(bus, PROGRAM, tmp_path / "pod"))
    await asyncio.sleep(program_file.AGAIN_S / 2)
    await stored(bus, BODY)

    assert (await fetching).read_bytes() == BODY


async def test_what_is_not_there_is_named(bus: Bus, tmp_path: Path) -> None:
    with pytest.raises(BadProgram, match=rf"the store has no {DIGEST}: .*NotFound"):
        await program_file.fetched(bus, PROGRAM, tmp_path / "pod")
