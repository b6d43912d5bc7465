"""What `weir up` says when it goes down: which jobs were under way, and where they go on."""

from __future__ import annotations

from pathlib import Path

from services.allocator.job_views import JobView
from services.cli.left_behind import goes_on, left, told
from shared.bus.bus import Bus
from shared.messages import CheckpointSaved
from tests.cli.test_jobs import shown
from tests.shared.sample_messages import JOB

HERE, FOLDER = Path("/home/somebody"), Path(".weir")


def view(job: str, **fields: object) -> JobView:
    about = {"job": job, "namespace": "default", "uid": 7, "phase": "Running", **fields}
    return JobView(**about)  # type: ignore[arg-type]


def saved(path: str) -> CheckpointSaved:
    return CheckpointSaved(**JOB, step=1_234, samples=320, path=path, seconds=0.5, final=True)


def test_where_no_job_was_under_way_that_is_said() -> None:
    assert told({}, FOLDER, HERE) == [
        "weir is down; no job was under way. All that happened stays in .weir."
    ]


def test_each_job_is_told_with_its_checkpoint_and_that_it_goes_on() -> None:
    lines = told(
        {
            "default.digits": (
                view("digits", total_samples=640),
                saved(f"{HERE}/.weir/checkpoints/x/ckpt-1234"),
            ),
            "team-a.clicks": (view("clicks", namespace="team-a", phase="Pending"), None),
            "default.elsewhere": (view("elsewhere"), saved("s3://bucket/x/ckpt-1234")),
        },
        FOLDER,
        HERE,
    )

    assert lines == [
        "weir is down. 3 jobs were not over; the next `weir up` with .weir goes on with what is below:",
        "  digits         saved at step 1,234, 50 % done: .weir/checkpoints/x/ckpt-1234",
        "  team-a/clicks  has no checkpoint yet: it begins at its beginning",
        "  elsewhere      saved at step 1,234: s3://bucket/x/ckpt-1234",
    ]


def test_the_next_one_names_the_jobs_with_which_it_goes_on_and_from_where_and_of_many_some() -> (
    None
):
    assert goes_on({}) == ""
    under_way = {
        "default.digits": (view("digits", total_samples=640), saved("/x/ckpt-1234")),
        "default.early": (view("early"), saved("/x/ckpt-1234")),
        "team-a.clicks": (view("clicks", namespace="team-a"), None),
    }
    assert goes_on(under_way) == (
        "weir goes on with what the `weir up` before it left: "
        "digits from step 1,234 (50 %), early from step 1,234, team-a/clicks from its beginning."
    )
    many = goes_on({f"default.job-{number}": (view(f"job-{number}"), None) for number in range(10)})
    assert "10 jobs: job-0 from its beginning, job-1" in many and many.endswith(
        "job-7 from its beginning and 2 more."
    )


async def test_it_is_read_off_the_bus_of_the_very_job(bus: Bus) -> None:
    await shown(bus, "digits", phase="Running")
    await shown(bus, "over", phase="Succeeded")
    await bus.publish(saved("/somewhere/ckpt-1234"))

    found = await left(bus)

    assert list(found) == ["default.digits"]
    there, checkpoint = found["default.digits"]
    assert (checkpoint is not None) == (there.uid == JOB["uid"]), (
        "of an earlier job of this name nothing counts"
    )
