"""A job as a row."""

from __future__ import annotations

from typing import Any

import msgspec

from services.allocator.view import JobView
from services.cli.jobs_table import HEADINGS, row, table


def view(**fields: Any) -> JobView:
    return JobView(**{"job": "digits", "namespace": "default", "uid": 7, "phase": "Running", **fields})


def cells(seen: JobView, epochs: int = 0) -> dict[str, str]:
    return dict(zip(HEADINGS, [text.plain for text in row(seen, epochs)], strict=True))


def test_a_job_that_changes_its_size_shows_both() -> None:
    shown = cells(view(phase="Scaling", ps=1, wanted_ps=2, workers=3, wanted_workers=3))

    assert (shown["PS"], shown["WORKERS"]) == ("1 -> 2", "3")


def test_how_far_a_job_is_counts_what_is_complete_as_its_messages_do() -> None:
    shown = cells(view(epoch=0, samples=50, total_samples=400, samples_per_second=1234.5, loss=0.25), epochs=4)

    assert (shown["EPOCHS"], shown["DONE"], shown["SAMPLES/S"], shown["LOSS"]) == ("0/4", "12.5 %", "1,234", "0.2500")
    assert cells(view(epoch=3, samples=350, total_samples=400))["EPOCHS"] == "3"


def test_of_a_job_that_is_over_the_end_is_told_and_no_longer_why_it_grew() -> None:
    over = view(phase="Succeeded", epoch=4, samples=4000, total_samples=4000, metrics={"loss": 0.25, "accuracy": 0.9})
    timed = msgspec.structs.replace(over, submitted_s=10.0, finished_s=210.0, reason="grow")

    assert cells(over, 4)["EPOCHS"] == "4/4"
    assert cells(timed)["WHY"] == "after 3 min 20 s, 4,000 samples, evaluation: loss 0.2500, accuracy 0.9000"
    failed = msgspec.structs.replace(timed, phase="Failed", metrics={}, why="Traceback:\n  x\nValueError: no")
    assert cells(failed)["WHY"] == "after 3 min 20 s, 4,000 samples: ValueError: no"


def test_what_is_not_known_yet_is_a_dash() -> None:
    assert {n: cells(view())[n] for n in ("EPOCHS", "DONE", "LOSS", "PAUSE")} == dict.fromkeys(
        ("EPOCHS", "DONE", "LOSS", "PAUSE"), "-"
    )


def test_the_last_pause_and_why_it_does_not_grow() -> None:
    shown = cells(view(pauses=(0.5, 0.75), reason="grow", why="no node is free"))

    assert (shown["PAUSE"], shown["WHY"]) == ("0.75 s", "no node is free")


def test_a_table_has_a_row_a_job_oldest_first() -> None:
    drawn = table([view(job="b", submitted_s=2.0), view(job="a", submitted_s=3.0)], {})

    assert [str(cell) for cell in drawn.columns[1].cells] == ["b", "a"]
