"""Tests that errors of commands say what to do: a command, a setting, or what to pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.allocator.service import Settings, start
from shared.bus.bus import Bus
from tests.cli.conftest import Api, Prompt, closed
from tests.cli.test_submit import PROGRAM
from tests.conftest import connected

NOWHERE = "nats://127.0.0.1:1"
GOOD = "job: digits\nprogram: digits.py\nepochs: 1\nbatch: 8\nps: 1\nworkers: 1\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "digits.py").write_text(PROGRAM)
    (tmp_path / "job.yaml").write_text(GOOD)
    (tmp_path / "lost.yaml").write_text(GOOD.replace("digits.py", "elsewhere.py"))
    (tmp_path / "list.yaml").write_text("- a\n- b\n")
    (tmp_path / "broken.yaml").write_text("job: [\n")
    (tmp_path / "slip.py").write_text("def model(:\n")
    (tmp_path / "slip.yaml").write_text(GOOD.replace("digits.py", "slip.py"))
    (tmp_path / "short.py").write_text("def model(): ...\n")
    (tmp_path / "short.yaml").write_text(GOOD.replace("digits.py", "short.py"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    return tmp_path


WITHOUT_A_BUS = [
    (
        "jobs --nats {nowhere}",
        1,
        "elsewhere, give --nats URL or set WEIR_NATS_URL",
    ),
    ("submit {files}/none.yaml --print", 2, "deploy/jobs/digits.yaml is an example"),
    ("submit {files}/list.yaml --print", 2, "deploy/jobs/digits.yaml explains every field"),
    ("submit {files}/broken.yaml --print", 2, "deploy/jobs/digits.yaml explains every field"),
    ("submit {files}/binary.yaml --print", 2, "save it as UTF-8"),
    ("submit {files}/lost.yaml --print", 2, "`program:` is relative to the job's file"),
    ("submit {files}/slip.yaml --print", 2, "slip.py:1"),
    ("submit {files}/short.yaml --print", 2, "dataset"),
    ("submit --print", 2, "give its FILE"),
    ("submit {files}/job.yaml --epochs 3 --print", 2, "needs --tfjob"),
    ("simulate", 2, "--jobs and --surfaces and --cluster must be given, or --from-log"),
    ("simulate --timeline", 2, "--json OUT"),
    ("up --cluster {files}/none.yaml", 2, "without --cluster it is four nodes of half a core"),
    ("up --cluster {files}/binary.yaml", 2, "save it as UTF-8"),
    ("dead-letters show", 2, "`weir dead-letters` lists them"),
    ("credentials {files}/job.yaml", 1, "give a folder that you may write to"),
    ("logs digits --kube http://127.0.0.1:1", 1, "--kube URL"),
]
WITH_A_BUS = [
    ("cancel nothing", "`weir jobs` lists them"),
    ("explain nothing", "`weir submit FILE` submits one"),
    ("explain digits --at 2999-01-01", "give a time in the past"),
    ("why f77", "`weir events` shows the name of each event"),
    ("dead-letters show 9", "`weir dead-letters` lists them"),
    ("submit {files}/job.yaml --timeout 0.2s", "`weir events` shows it"),
    ("logs nothing --kube {kube}", "`weir submit FILE` submits one"),
    ("logs digits ps --kube {kube}", "there are"),
    ("events --job nothing", "`weir submit FILE` submits one"),
    ("events --kind capacity --job digits", "leave out --job"),
]


@pytest.mark.parametrize(("line", "code", "advice"), WITHOUT_A_BUS)
async def test_errors_without_a_bus_have_a_remedy(
    line: str, code: int, advice: str, files: Path, prompt: Prompt
) -> None:
    said = await prompt(*line.format(files=files, nowhere=NOWHERE).split())

    assert (said.code, said.out) == (code, ""), said
    assert advice in said.err


@pytest.mark.usefixtures("bus")
@pytest.mark.parametrize(("line", "advice"), WITH_A_BUS)
async def test_errors_on_a_bus_have_a_remedy(
    line: str, advice: str, files: Path, kube: Api, nats_url: str, prompt: Prompt
) -> None:
    kube.items = [pod for pod in kube.items if "nothing" not in line]

    said = await prompt(*line.format(files=files, kube=kube.url).split(), "--nats", nats_url)

    assert said.code in (1, 2) and advice in said.err, said


async def test_cancelling_a_finished_job_is_an_error_with_a_remedy(
    bus: Bus, nats_url: str, prompt: Prompt, files: Path
) -> None:
    service = await connected(nats_url, "allocator")
    await start(service, Settings(view_s=0.05))
    await prompt("submit", files / "job.yaml", "--nats", nats_url)
    await prompt("cancel", "digits", "--nats", nats_url)

    said = await prompt("cancel", "digits", "--nats", nats_url)
    await closed(service)

    assert said.code == 1 and "`weir jobs` shows how it ended" in said.err
