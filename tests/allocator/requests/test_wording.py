"""A request that is refused says what was expected, as people say it."""

from __future__ import annotations

import pytest

from tests.allocator.requests.test_validate import reasons

SPAN = "Expected `{start, min, max}` (a job's file may have one number)"


def test_what_a_field_should_have_been_is_told_in_words() -> None:
    name = (
        "Expected a name: small letters, digits and -, beginning with a letter, not ending with -"
    )
    volume = {"name": "Data", "mount_path": "data", "claim": "c"}

    assert reasons(job="My Job") == (f"job: {name}, at most 40 characters, got 'My Job'",)
    assert reasons(job=7) == ("job: Expected `str`, got 7",)
    assert reasons(namespace="Mine-") == (f"namespace: {name}, at most 63 characters, got 'Mine-'",)
    assert reasons(batch="many") == (
        "batch: Expected `{start, min, max}` (a job's file may have one number), got 'many'",
    )
    assert reasons(resources="small") == (
        "resources: Expected `{chief, ps, worker} | null`, got 'small'",
    )
    assert reasons(resources={"ps": 2}) == (
        "resources.ps: Expected `{cpu, memory_gib, gpu}`, got 2",
    )
    assert reasons(handover="fast") == (
        "handover: Invalid enum value 'fast'; there are 'make-before-break', 'restart'",
    )
    assert reasons(program={"name": "a.py", "digest": "x"}) == (
        "program.digest: Expected `sha256-` and 64 hexadecimal digits, got 'x'",
    )
    assert reasons(volumes=[volume]) == (
        f"volumes[0].name: {name}, at most 63 characters, got 'Data'",
        "volumes[0].mount_path: Expected an absolute path, got 'data'",
    )


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("ten", "'ten'"),
        (True, "true"),
        (None, "null"),
        (1.5, "1.5"),
        ({"start": 1}, "{'start': 1}"),
        ([1], "[1]"),
    ],
)
def test_what_a_field_is_is_told_as_it_was_written(value: object, told: str) -> None:
    assert reasons(epochs=value) == (f"epochs: Expected `int`, got {told}",)


def test_a_long_value_is_shortened() -> None:
    (text,), (deep,) = reasons(job="x" * 100_000), reasons(epochs=[["y" * 100] * 10] * 10)

    assert text.endswith(", got 'xxxxxxxxxxxx...xxxxxxxxxxxxx'")
    assert deep.endswith("...") and len(deep) < 100


def test_a_value_of_a_choice_is_told_once() -> None:
    assert reasons(handover=7) == (
        "handover: Expected `str`, got 7; there are 'make-before-break', 'restart'",
    )
