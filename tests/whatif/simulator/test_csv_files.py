"""Tests of CSV files of speeds, loss curves and jobs.

A file is read as a whole, or refused with every reason.
"""

from __future__ import annotations

import pytest

from services.whatif.simulator.csv_files import (
    Column,
    Table,
    amount_cell,
    number_cell,
    read_jobs,
    read_losses,
    read_surfaces,
    read_table,
    whole_number_cell,
)
from shared.documents import InvalidFile
from shared.messages import Resources, Span

SERVED = "model,mode,ps,workers,global_batch,samples_per_second\nnet,sync,1,1,64,100\nnet,sync,2,4,64,300\n"
ALONE = "model,global_batch,gpus,samples_per_second\nring,64,1,50\nring,64,8,300\n"
HEADER = "job,submitted_s,model,samples,global_batch,ps,workers,min_ps,max_ps,min_workers,max_workers,batch_min,"
HEADER += "batch_max,device_batch_max,ps_cpu,worker_cpu,worker_gpu,priority\n"
MEASURED = read_surfaces(SERVED) | read_surfaces(ALONE)


def refused(text: str) -> list[str]:
    with pytest.raises(InvalidFile) as bad:
        read_jobs(text, MEASURED)
    return str(bad.value).splitlines()


def test_speed_files_have_ps_or_device_columns() -> None:
    assert MEASURED["net"].speed(2, 4, 64) == pytest.approx(300.0)
    assert MEASURED["ring"].speed(0, 8, 64) == pytest.approx(300.0)
    mixed = read_surfaces(
        "model,ps,workers,global_batch,samples_per_second\nnet,1,2,64,10\nnet,0,2,64,20\n"
    )["net"]
    assert (mixed.speed(1, 2, 64), mixed.speed(0, 2, 64)) == pytest.approx((10.0, 20.0))


def test_two_modes_of_one_model_are_refused() -> None:
    with pytest.raises(
        InvalidFile, match=r"line 4, column 2 \(mode\): net has mode 'sync' in an earlier row"
    ):
        read_surfaces(SERVED + "net,async,1,1,64,130\n")


def test_a_speed_must_be_above_zero() -> None:
    with pytest.raises(InvalidFile, match="0 is not above 0"):
        read_surfaces(SERVED.replace(",300", ",0"))


def test_loss_curves_by_model() -> None:
    assert read_losses("model,samples,loss\nnet,0,2\nnet,100,1\n")["net"].at(50) == 1.5


def test_every_column_of_a_job_is_read() -> None:
    (job,) = read_jobs(HEADER + "a,5,net,1000,64,2,3,1,4,2,8,32,256,128,0.5,2,1,7\n", MEASURED)
    assert (job.job, job.submitted_s, job.samples, job.priority, job.device_batch_max) == (
        "a",
        5.0,
        1000,
        7,
        128,
    )
    assert job.ps == Span(start=2, min=1, max=4) and job.workers == Span(start=3, min=2, max=8)
    assert job.batch == Span(start=64, min=32, max=256)
    sizes = job.resources()
    assert (
        sizes.ps == Resources(cpu=0.5)
        and sizes.worker == Resources(cpu=2, gpu=1)
        and sizes.chief == Resources()
    )


def test_missing_bounds_come_from_the_measurements() -> None:
    net, ring = read_jobs(
        "job,submitted_s,model,samples,global_batch\na,0,net,10,64\nb,1,ring,10,64\n", MEASURED
    )
    assert (net.ps, net.workers) == (Span(start=1, min=1, max=2), Span(start=1, min=1, max=4))
    assert (net.ps_cpu, net.worker_cpu, net.worker_gpu) == (1.0, 1.0, 0)
    assert (ring.ps, ring.workers) == (Span(start=0, min=0, max=0), Span(start=1, min=1, max=8))
    assert (ring.worker_cpu, ring.worker_gpu) == (0.0, 1)
    assert net.batch == Span(start=64, min=64, max=64)


def test_jobs_are_ordered_by_submission_and_share_their_models_program() -> None:
    rows = "job,submitted_s,model,samples,global_batch\nlate,9,net,10,64\nearly,1,net,10,64\nother,5,ring,10,64\n"
    read = read_jobs(rows, MEASURED)
    assert [job.job for job in read] == ["early", "other", "late"]
    digests = [job.request().program.digest for job in read]
    assert digests[0] == digests[2] != digests[1]


def test_every_error_in_a_job_file_is_listed() -> None:
    wrong = (
        "a,0,net,10,64,3,1,,2,,,,,,,,,\n"
        "b,0,nat,10,64,,,,,,,,,,,,,\n"
        "a,0,ring,10,64,1,,,,,,,,,,,,\n"
        "c,0,net,10,64,0,,0,,,,128,,,,,,\n"
        "d,-1,ring,10,64,0,,0,3,,,,,,,,,\n"
    )
    assert refused(HEADER + wrong.replace("d,-1", "d,1")) == [
        "line 2, column 1 (job): 'a' occurs 2 times",
        "line 2, column 6 (ps): min 1 <= 3 <= max 2 does not hold",
        "line 3, column 3 (model): the speeds of 'nat' were not measured",
        "line 4, column 1 (job): 'a' occurs 2 times",
        "line 4, column 6 (ps): 'ring' was not measured with ps",
        "line 5, column 5 (global_batch): min 128 <= 64 <= max 64 does not hold",
        "line 5, column 6 (ps): 'net' was not measured without ps",
        "line 6, column 6 (ps): min 0 means a job without ps, but up to 3 are allowed",
    ]
    assert "line 6, column 2 (submitted_s): -1 is less than 0" in refused(HEADER + wrong)


def test_jobs_can_be_checked_without_speeds() -> None:
    assert (
        len(read_jobs("job,submitted_s,model,samples,global_batch\na,0,unknown,10,64\n", None)) == 1
    )


def test_a_job_may_name_its_namespace() -> None:
    text = "job,submitted_s,model,samples,global_batch,namespace\na,0,net,10,64,team-a\nb,1,net,10,64,\n"
    one, other = read_jobs(text, MEASURED)
    assert (one.request().key(), other.request().key()) == ("team-a.a", "default.b")
    assert "'Team A' is not a name" in refused(text.replace("team-a", "Team A"))[0]


COLUMNS = (
    Column("name", str),
    Column("cores", whole_number_cell(1)),
    Column("share", number_cell(0.0), optional=True, default=0.5),
)


def said(read: Table) -> list[str]:
    return str(InvalidFile(read.reasons)).splitlines()


def test_cells_are_typed_and_empty_ones_take_their_default() -> None:
    read = read_table("\ufeffcores, name,share\n\n2,a,0.25\n 3 ,b,\n4.0,c\n", COLUMNS)
    assert read.reasons == []
    assert [tuple(row.cells.values()) for row in read.rows] == [
        ("a", 2, 0.25),
        ("b", 3, 0.5),
        ("c", 4, 0.5),
    ]
    assert [row.line for row in read.rows] == [3, 4, 5]


def test_every_error_is_listed_with_line_and_column() -> None:
    read = read_table("name,cores,share\na,x,-1\n,1.5,nan\nb,0,1,7\n", COLUMNS)
    assert said(read) == [
        "line 2, column 2 (cores): 'x' is not a number",
        "line 2, column 3 (share): -1 is less than 0",
        "line 3, column 1 (name): is empty",
        "line 3, column 2 (cores): 1.5 is not a whole number",
        "line 3, column 3 (share): nan is not finite",
        "line 4, column 2 (cores): 0 is less than 1",
        "line 4: has 4 cells under 3 columns",
    ]


def test_a_missing_column_is_one_error() -> None:
    read = read_table("naem,cores,note,cores\na,1,x,2\nb,y,x,2\n", COLUMNS)
    assert said(read)[:3] == [
        "line 1, column 1 (naem): no such column; did you mean 'name'?",
        "line 1, column 4 (cores): occurs twice",
        "line 1: no column 'name'",
    ]
    assert read.rows == []


EMPTY = "line 1: the file is empty; its first line names the columns"


@pytest.mark.parametrize(
    ("text", "why"),
    [("", f"{EMPTY} name, cores"), ("name,cores\n", "line 1: the file has no rows")],
)
def test_a_file_without_rows_is_refused(text: str, why: str) -> None:
    assert said(read_table(text, COLUMNS)) == [why]


def test_an_amount_of_work_is_rounded_up() -> None:
    assert amount_cell("1e3") == 1000 and amount_cell("12.2") == 13
    with pytest.raises(ValueError, match="not above 0"):
        amount_cell("0")
