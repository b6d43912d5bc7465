"""What is made of what a trainer's process saw."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.cli.diagnosis.finding import Finding, size
from services.cli.diagnosis.seen import of_program
from services.trainer.examined import Examined, Held

TRIED = {0: "a", 1: "b", 31: "c"}
WELL: dict[str, Any] = {
    "loaded_s": 1.5,
    "examples": 1437,
    "together": TRIED,
    "alone": TRIED,
    "read_s": 0.001,
    "variables": (
        Held(name="net/kernel", shape=(100, 10), bytes=4000, learns=True),
        Held(name="net/bias", shape=(10,), bytes=40, learns=True),
        Held(name="net/seen", shape=(), bytes=4),
    ),
    "update_s": 0.012,
    "loss": 2.3026,
    "evaluated": True,
    "done": True,
}
ONE_AXIS: dict[str, Any] = {"labels": ((32,),), "outputs": ((32, 1),)}
READER = Examined(loaded_s=1.0, examples=1437, together=TRIED, alone=TRIED, read_s=0.001, done=True)


def found(there: Examined = READER, **fields: Any) -> list[Finding]:
    return list(of_program(Examined(**(WELL | fields)), there))


def ill(there: Examined = READER, **fields: Any) -> Finding:
    """The one finding that is not fine."""
    (one,) = [each for each in found(there, **fields) if each.weight != "fine"]
    return one


def test_a_program_that_is_well_is_told_so_with_what_was_measured() -> None:
    assert [(f.weight, f.what) for f in found()] == [
        ("fine", "it is imported in 1.5 s, and has 1,437 examples"),
        (
            "fine",
            "the same example for the same number, in a batch, alone, and in another process (3 of 1,437 tried)",
        ),
        ("fine", "the model has 3 variables with 4.04 kB, of which net/kernel has 4 kB"),
        ("fine", "an update takes 12 ms here, at a loss of 2.303"),
        ("fine", "evaluation() and metrics() work"),
    ]


def test_an_example_that_changes_when_it_is_read_by_itself_is_named() -> None:
    told = ill(alone=TRIED | {1: "x", 31: "y"})

    assert told.weight == "wrong"
    assert told.what == "example 1, 31 is another one when it is read by itself (3 of 1,437 tried)"
    assert "fixed seed" in told.remedy


def test_an_example_that_another_process_sees_otherwise_is_named() -> None:
    told = ill(Examined(together=TRIED | {0: "x"}, read_s=0.1, done=True))

    assert told.weight == "wrong" and told.what.startswith(
        "example 0 is another one in another process"
    )
    assert "hash()" in told.remedy


def test_who_could_not_read_in_the_other_process_is_not_called_the_same() -> None:
    told = ill(Examined(failed="mine.py:3: OSError: only one reader\nTraceback ..."))

    assert told.weight == "wrong" and told.what == "mine.py:3: OSError: only one reader"
    assert not any("the same example" in each.what for each in found(Examined(failed="-")))


@pytest.mark.parametrize(
    ("fields", "weight", "what"),
    [
        ({"infinite": (3, 9)}, "wrong", "example 3, 9 has a number that is not finite"),
        ({"loss": None, "finite": False}, "wrong", "after two updates the loss is not finite"),
        ({"finite": False}, "wrong", "after two updates weights are not finite"),
        ({"scheduled": True}, "advice", "the learning rate is a schedule"),
        ({"ordered": True}, "advice", "the labels are sorted, and nothing shuffles examples"),
        ({"read_s": 0.9}, "advice", "a batch is read in 900 ms, longer than its update takes"),
        (
            {"mixed": True} | ONE_AXIS,
            "wrong",
            "each example with each: the mean of (32,) and (32, 1)",
        ),
        (
            {"lossy": (32, 32)} | ONE_AXIS,
            "wrong",
            "example with each: (32, 32) of (32,) and (32, 1)",
        ),
    ],
)
def test_what_is_wrong_is_told_with_a_way_out(
    fields: dict[str, Any], weight: str, what: str
) -> None:
    told = ill(**fields)

    assert told.weight == weight and what in told.what and told.remedy


def test_a_variable_that_never_learns_and_one_that_travels_whole_are_named() -> None:
    idle = Held(name="net/idle", shape=(3,), bytes=12, learns=False)
    table = Held(name="net/users", shape=(10**6, 16), bytes=64 * 10**6, learns=True, whole=True)

    assert ill(variables=(idle,)).what == "net/idle never learns: the loss does not depend on it"
    small = msgspec.structs.replace(table, bytes=500_000)
    assert [f.weight for f in found(variables=(small,))] == ["fine"] * 5
    assert ill(variables=(table,)).what == "each batch reads all of net/users, 64 MB in all"


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        (
            "mine.py:1: ModuleNotFoundError: No module named 'pandas'",
            "install pandas here and in the job's image",
        ),
        ("mine.py:9: FileNotFoundError: [Errno 2] 'x.csv'", "read data from a volume"),
        (
            "dataset(0, 32) gave 2 examples instead of 32: is it batched already?",
            "take .batch(...) out",
        ),
        ("its process ended with SIGKILL, and says no more\n", "more memory"),
        (
            "mine.py:4: ZeroDivisionError: division by zero",
            "mend it: a job would end with this as its cause",
        ),
    ],
)
def test_how_it_failed_is_told_as_a_job_would_tell_it(cause: str, remedy: str) -> None:
    told = list(of_program(Examined(failed=f"{cause}\nTraceback (most recent call last):"), READER))

    assert (
        len(told) == 1
        and told[0].what == cause.strip().splitlines()[0]
        and remedy in told[0].remedy
    )
    assert told[0].more.endswith("Traceback (most recent call last):")


def test_bytes_are_told_in_the_largest_unit_that_fits() -> None:
    assert [size(n) for n in (12, 4_040, 64 * 10**6, 1_484_800_000)] == [
        "12 bytes",
        "4.04 kB",
        "64 MB",
        "1.48 GB",
    ]
