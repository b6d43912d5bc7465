"""Tests of a hostile program: it finds no credential, and that of its job permits little.

With the job's credential it can publish for that job only, and read no other program.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fnmatch
import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shared.auth.authority import user_name
from shared.auth.permissions import chunk_subject, description_subject, program_stream
from shared.bus.programs import digest_of, meta_token
from shared.bus.subjects import program_bucket
from shared.messages import CheckpointSaved, JobFinished, TrainingResumed
from tests.flow.stage import JOB, LOOK_S, PATIENCE_S, Scene, stage
from tests.shared.secured_server import Visitor, is_let_in, visitor

pytestmark = pytest.mark.long

PRYING = Path(__file__).parent / "prying.py"
FOUND_NOTHING = {
    "own": [],
    "environments": [],
    "open_files": [],
    "files": [],
    "supervisor_s_memory": False,
}


async def reports(folder: Path, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(PATIENCE_S):
        while len(found := list(folder.glob("report-*.json"))) < count:
            await asyncio.sleep(LOOK_S)
    return [json.loads(path.read_text()) for path in found]


def refusals(folder: Path) -> list[str]:
    """Return the permission violations in the logs of services and of pods that still exist.

    Folders of pods may go while they are read: `os.walk` leaves those out.
    """
    found = []
    for parent, _, names in os.walk(folder):
        for name in fnmatch.filter(names, "*.log"):
            with contextlib.suppress(FileNotFoundError):
                lines = (Path(parent) / name).read_text(errors="replace").splitlines()
                found += [line for line in lines if "permissions violation" in line.lower()]
    return found


async def secrets(scene: Scene) -> list[dict[str, Any]]:
    url = f"{scene.watched.stack.kube_url}/api/v1/namespaces/default/secrets"
    async with (
        aiohttp.ClientSession(headers=scene.watched.stack.kube_headers) as http,
        http.get(url) as answer,
    ):
        items: list[dict[str, Any]] = (await answer.json())["items"]
        return items


async def speaks_for_itself_only(guest: Visitor) -> None:
    for subject in (
        "weir.training.saved.default.{}",
        "weir.job.finished.default.{}",
        "$KV.weir-ledger.default.{}",
    ):
        assert not await guest.may_say(subject.format("other"), b"{}")
        assert not await guest.may_subscribe(subject.format("other"))
    assert not await guest.may_say(f"weir.job.requested.default.{JOB}", b"{}")
    assert not await guest.may_say(f"weir.allocation.decided.default.{JOB}", b"{}")
    assert await guest.may_say(f"weir-usage.default.{JOB}.0", b"{}")


async def reads_no_other_program(guest: Visitor) -> None:
    """Check that the visitor can neither read nor store another program."""
    for namespace in ("default", "team-a"):
        bucket, stream = program_bucket(namespace), program_stream(namespace)
        for token in (meta_token(digest_of(b"another's")), "*", ">"):
            described = f"{description_subject(bucket)}.{token}"
            assert not await guest.may_say(f"{guest.client.api}.DIRECT.GET.{stream}.{described}")
            assert not await guest.may_say(
                f"{guest.client.api}.CONSUMER.CREATE.{stream}.x.{described}"
            )
            assert not await guest.may_say(described, b"{}")
        assert not await guest.may_say(f"{chunk_subject(bucket)}.x", b"import os")


async def test_a_program_finds_no_credential_and_the_jobs_credential_is_limited_to_the_job(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as scene:
        scene.more = "\n" + PRYING.read_text().replace('"report"', repr(str(tmp_path / "report")))
        await scene.submit()
        await scene.hear(TrainingResumed)
        for report in await reports(tmp_path, 2):
            assert report.pop("supervisor_is_seen")
            assert "Authorization" in report.pop("spoken")
            assert report == FOUND_NOTHING
        await scene.hear(CheckpointSaved)  # the job's supervisor can still publish for it

        (kept,) = await secrets(scene)
        text = base64.b64decode(kept["data"]["nats.creds"]).decode()
        assert user_name(text) == f"job.default.{JOB}" and kept["metadata"]["name"].startswith(
            f"{JOB}-nats-"
        )
        async with visitor(scene.watched.stack.nats_url, text) as guest:
            await speaks_for_itself_only(guest)
            await reads_no_other_program(guest)
        assert not await is_let_in(scene.watched.stack.nats_url, "")

        scene.pace(0.0)
        await scene.hear(JobFinished)
        async with asyncio.timeout(PATIENCE_S):
            while await secrets(scene):
                await asyncio.sleep(LOOK_S)

        assert refusals(tmp_path / "weir") == []  # every process had the permissions that it needed
