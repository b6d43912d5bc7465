"""The checkpoint folder of a job belongs to that job alone."""

from __future__ import annotations

import msgspec
import pytest

from shared.checkpoints import is_in_namespace, location, new_folder
from shared.messages import CheckpointRule, JobRequested
from tests.launcher.builders import request

NOVEMBER = 1_795_408_512.0  # 2026-11-23 04:35:12 UTC
BUCKET = "gs://bucket/models"


def asked(job: str = "net", namespace: str = "team-a", path: str | None = None) -> JobRequested:
    wanted = request(checkpoint=CheckpointRule(path=path))
    return msgspec.structs.replace(wanted, job=job, namespace=namespace)


def where(wanted: JobRequested, uid: int = 7, accepted_s: float = NOVEMBER) -> str:
    return location(wanted, uid, new_folder(wanted, uid, accepted_s))


def test_the_folder_names_the_namespace_the_job_its_uid_and_the_time_of_its_acceptance() -> None:
    assert where(asked()) == "team-a/net-7-20261123t043512"
    assert where(asked(path="vision/deep")) == "team-a/vision/deep/net-7-20261123t043512"
    assert where(asked(path=BUCKET)) == f"{BUCKET}/team-a/net-7-20261123t043512"


@pytest.mark.parametrize("path", [None, "shared", "team-a/net-7-20261123t043512", BUCKET])
def test_two_jobs_with_the_same_path_have_two_folders(path: str | None) -> None:
    mine = where(asked(path=path))
    others = [
        where(asked(path=path, namespace="team-b")),
        where(asked(path=path, job="other")),
        where(asked(path=path), uid=8),
        where(
            asked(path=path), accepted_s=NOVEMBER + 3600.0
        ),  # the bus was lost, and counts from the beginning
    ]
    assert len({mine, *others}) == 5


def test_no_path_leads_into_another_namespace() -> None:
    assert where(asked(namespace="team-b", path="team-a/secret-12")).startswith("team-b/")


def test_a_job_that_version_0_1_accepted_keeps_its_folder() -> None:
    assert location(asked(), 7, "") == "team-a/net-7"
    assert location(asked(path="mine"), 7, "") == "mine"
    assert location(asked(path=BUCKET), 7, "") == BUCKET


@pytest.mark.parametrize(
    "folder",
    ["team-a/net-7-20261123t043512", "team-a/net-7", "team-a/deep/net-7", f"{BUCKET}/team-a/net-7"],
)
def test_a_job_folder_of_the_namespace_is_recognised(folder: str) -> None:
    assert is_in_namespace(folder, "team-a") and not is_in_namespace(folder, "team-b")


@pytest.mark.parametrize(
    "folder",
    [
        "team-a",
        "net-7",
        "team-a/net",
        "gs://team-a/net-7",
        "team-b/team-a/net-7",
        "gs://bucket/team-a/team-b/net-7",
        "gs://bucket/team-a/deep/net-7",
    ],
)
def test_another_folder_is_none_of_the_namespace(folder: str) -> None:
    assert not is_in_namespace(folder, "team-a")
