"""Tests of `weir recover` after the bus is lost: jobs that can continue, and their new requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from services.allocator.service import Settings, start
from services.cli import program_file
from services.trainer.program_archive import pack_files
from shared import checkpoints
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.checkpoints import CommitMark
from shared.messages import JobAccepted, JobRequested, Program
from tests.cli.conftest import Prompt, closed
from tests.cli.test_submit import PROGRAM
from tests.shared.sample_messages import request

STAMP = "20261123t043512"


@pytest.fixture
async def allocator(bus: Bus, nats_url: str) -> AsyncIterator[None]:
    """Start the real allocator."""
    service = await wire.connect(nats_url, "allocator")
    await start(service, Settings())
    yield
    await closed(service)


def left(folder: Path, job: str, uid: int = 3, samples: int = 320, total: int = 1_000) -> str:
    """Write what a job leaves: committed checkpoints at steps 10 and 20, its request, its program.

    Return the name of its folder.
    """
    name = f"default/{job}-{uid}-{STAMP}"
    home = folder / name
    for generation, step in ((1, 10), (2, 20)):
        path = home / f"gen-{generation}" / f"ckpt-{step}"
        path.parent.mkdir(parents=True)
        path.with_suffix(".index").write_bytes(b"index")
        path.with_suffix(".data-00000-of-00001").write_bytes(b"data")
        digest = checkpoints.checkpoint_digest(b"index", [(f"{path.name}.data-00000-of-00001", 4)])
        mark = CommitMark(digest=digest, samples=samples * step // 20, total_samples=total)
        path.with_suffix(".committed").write_bytes(msgspec.json.encode(mark))
    asked = msgspec.structs.replace(
        request(),
        job=job,
        program=Program(name="train.py", digest=program_file.digest(PROGRAM.encode())),
    )
    (home / "job").mkdir()
    (home / checkpoints.REQUEST).write_bytes(msgspec.json.encode(asked))
    (home / checkpoints.PROGRAM).write_text(PROGRAM)
    return name


async def asked(bus: Bus, job: str) -> JobRequested | None:
    heard = await bus.last_message(JobRequested, f"default.{job}")
    return heard.message if heard and isinstance(heard.message, JobRequested) else None


async def test_recover_lists_progress_and_options_of_each_job(
    bus: Bus, nats_url: str, prompt: Prompt, tmp_path: Path
) -> None:
    left(tmp_path, "digits")
    left(tmp_path, "over", samples=1_000)
    torn = tmp_path / left(tmp_path, "torn") / "gen-2"
    (torn / "ckpt-20.data-00000-of-00001").write_bytes(b"da")
    for part in (tmp_path / left(tmp_path, "bare")).glob("gen-*/*.committed"):
        part.unlink()
    folder = left(tmp_path, "here")
    await bus.publish(
        JobAccepted(job="here", uid=1, request=request(), accepted_s=1.0, checkpoint_folder=folder)
    )

    said = await prompt("recover", tmp_path, "--nats", nats_url)

    assert said.code == 0
    assert said.out.splitlines()[:5] == [
        "default/bare    -                                 lost: no complete checkpoint",
        "default/digits  step 20, 320 of 1,000 examples    can continue",
        "default/here    step 20, 320 of 1,000 examples    not lost: on the bus",
        "default/over    step 20, 1,000 of 1,000 examples  finished",
        "default/torn    step 10, 160 of 1,000 examples    can continue",
    ]
    assert await asked(bus, "digits") is None, "nothing is asked for yet"


@pytest.mark.usefixtures("allocator")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "on another machine"])
async def test_recoverable_jobs_are_requested_once_with_their_program(
    bus: Bus, nats_url: str, prompt: Prompt, tmp_path: Path, elsewhere: bool
) -> None:
    place = tmp_path / "checkpoints"
    folder = left(place, "digits")
    left(place, "over", samples=1_000)
    if elsewhere:
        place = tmp_path / "lost.jsonl"
        place.write_text((await prompt("recover", tmp_path / "checkpoints", "--print")).out)

    said = await prompt("recover", place, "--resume", "--nats", nats_url)

    assert said.code == 0 and "job default/digits continues from step 20 (uid 1)" in said.out
    again = await asked(bus, "digits")
    assert (
        again is not None
        and again.checkpoint.continue_from == folder
        and again.epochs == request().epochs
    )
    assert (await (await bus.program_store()).get(again.program.digest)).data == PROGRAM.encode()
    assert await asked(bus, "over") is None

    second = await prompt("recover", place, "--resume", "--nats", nats_url)
    assert (
        second.code == 0 and "not lost: on the bus" in second.out and "continues" not in second.out
    )


@pytest.mark.usefixtures("allocator")
async def test_a_program_of_several_files_is_recovered_whole(
    bus: Bus, nats_url: str, prompt: Prompt, tmp_path: Path
) -> None:
    body = pack_files({"mine.py": PROGRAM.encode(), "helpers.py": b""})
    program = Program(name="train", digest=program_file.digest(body), entry="mine.py")
    home = tmp_path / left(tmp_path, "digits")
    written = msgspec.structs.replace(request(), program=program, params={"width": 3})
    (home / checkpoints.REQUEST).write_bytes(msgspec.json.encode(written))
    (home / checkpoints.PROGRAM).write_bytes(body)

    said = await prompt("recover", tmp_path, "--resume", "--nats", nats_url)

    again = await asked(bus, "digits")
    assert said.code == 0 and again is not None
    assert again.program == program and again.params == {"width": 3}
    assert (await (await bus.program_store()).get(program.digest)).data == body


async def test_files_written_by_a_job_cannot_move_it_to_another_tenant(
    bus: Bus, nats_url: str, prompt: Prompt, tmp_path: Path
) -> None:
    home = tmp_path / left(tmp_path, "digits")
    foreign = msgspec.structs.replace(request(), namespace="team-a")
    (home / checkpoints.REQUEST).write_bytes(msgspec.json.encode(foreign))

    said = await prompt("recover", tmp_path, "--nats", nats_url)

    assert (said.code, said.out) == (0, "no jobs found here\n")


async def test_a_program_with_another_digest_is_not_recovered(
    bus: Bus, nats_url: str, prompt: Prompt, tmp_path: Path
) -> None:
    home = tmp_path / left(tmp_path, "digits")
    (home / checkpoints.PROGRAM).write_text("another")

    said = await prompt("recover", tmp_path, "--resume", "--nats", nats_url)

    assert said.code == 1 and "its stored program is damaged" in said.err
    assert await asked(bus, "digits") is None


async def test_a_missing_recovery_folder_is_wrong_use(prompt: Prompt, tmp_path: Path) -> None:
    said = await prompt("recover", tmp_path / "nowhere")

    assert said.code == 2 and "give the folder of the checkpoints" in said.err
