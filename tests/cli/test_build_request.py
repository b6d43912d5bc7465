"""Tests of `weir submit PROGRAM --tfjob FILE`: the request that it sends, and what it prints."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.allocator.service import Settings, start
from services.trainer.program import REQUIRED
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.messages import JobRequested, Span
from tests.cli.conftest import Prompt, Said, closed
from tests.cli.tfjobs import LARGE, SMALL

PROGRAM = "".join(f"def {name}(*_): ...\n" for name in REQUIRED)
NEEDED = ("--epochs", "10", "--batch", "64")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "large.yaml").write_text(LARGE)
    return tmp_path


@pytest.fixture
async def allocator(bus: Bus, nats_url: str) -> AsyncIterator[None]:
    service = await wire.connect(nats_url, "allocator")
    await start(service, Settings(images=()))
    yield
    await closed(service)


@pytest.mark.usefixtures("allocator")
async def test_a_tfjob_with_a_program_is_accepted(
    bus: Bus, nats_url: str, prompt: Prompt, folder: Path
) -> None:
    await bus.create(namespaces=["vision"])
    file = folder / "small.yaml"

    said = await prompt("submit", folder / "train.py", "--tfjob", file, *NEEDED, "--nats", nats_url)

    assert said.code == 0 and "job vision/dist-mnist is accepted (uid 1)\n" in said.out, said.err
    heard = await bus.last_message(JobRequested, "vision.dist-mnist")
    assert heard and isinstance(heard.message, JobRequested)
    assert heard.message.program.name == "train.py" and heard.message.workers == Span(
        start=4, min=1, max=4
    )
    assert f"Weir handles these parts of {file} differently:\n  - no Chief: " in said.err


async def printed(prompt: Prompt, *words: object) -> Said:
    return await prompt("submit", *words, "--print", "--nats", "nats://127.0.0.1:1")


async def test_print_writes_only_the_request(prompt: Prompt, folder: Path) -> None:
    said = await printed(
        prompt, folder / "train.py", "--tfjob", folder / "small.yaml", *NEEDED, "--max-workers", "9"
    )

    request = json.loads(said.out)
    assert said.code == 0 and request["workers"] == {"start": 4, "min": 1, "max": 9}
    assert request["program"]["name"] == "train.py" and "request_id" not in request


async def test_an_annotated_program_is_relative_to_the_manifest(
    prompt: Prompt, folder: Path
) -> None:
    said = await printed(prompt, "--tfjob", folder / "large.yaml", "--leave-out")

    assert said.code == 0 and json.loads(said.out)["program"]["name"] == "train.py"
    assert json.loads(said.out)["workers"]["max"] == 16


async def test_unsupported_fields_are_refused_unless_left_out(prompt: Prompt, folder: Path) -> None:
    said = await printed(prompt, "--tfjob", folder / "large.yaml")

    assert (said.code, said.out) == (2, "")
    assert (
        "large.yaml has fields that Weir does not support:\n  - activeDeadlineSeconds: " in said.err
    )
    assert "\n  - Chief, PS, Worker: env DATA_DIR: " in said.err and said.err.endswith(
        "with --leave-out.\n"
    )


async def test_everything_missing_is_listed(prompt: Prompt, folder: Path) -> None:
    said = await printed(prompt, "--tfjob", folder / "small.yaml")

    lines = [
        line[4:].partition(":")[0]
        for line in said.err.partition("is not a valid job:\n")[2].splitlines()
    ]
    assert said.code == 2 and [
        word for word in lines if word in ("program", "epochs", "batch")
    ] == [
        "program",
        "epochs",
        "batch",
    ]


async def test_tfjob_options_without_a_tfjob_are_wrong_use(prompt: Prompt, folder: Path) -> None:
    job = folder / "job.yaml"
    job.write_text("job: digits\nprogram: train.py\nepochs: 2\nbatch: 32\nps: 1\nworkers: 1\n")

    said = await printed(prompt, job, "--epochs", "3", "--leave-out")

    assert said.code == 2 and "--epochs, --leave-out needs --tfjob" in said.err
    assert (await printed(prompt, job)).code == 0


async def test_submit_without_a_file_is_wrong_use(prompt: Prompt) -> None:
    for words in ([], ["--dry-run"], ["--print"]):
        said = await prompt("submit", *words, "--nats", "nats://127.0.0.1:1")

        assert said.code == 2 and "no job is given: " in said.err


async def test_a_missing_file_is_an_error(prompt: Prompt, folder: Path) -> None:
    said = await printed(prompt, folder / "train.py", "--tfjob", folder / "none.yaml")

    assert said.code == 2 and "none.yaml: No such file" in said.err
