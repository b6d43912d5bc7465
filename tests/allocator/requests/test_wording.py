"""A request that is refused says what was expected, as people say it."""

from __future__ import annotations

from tests.allocator.requests.test_validate import reasons

SPAN = "Expected `{start, min, max}` (a job's file may have one number)"


def test_what_a_field_should_have_been_is_told_in_words() -> None:
    name = "Expected a name: small letters, digits and -, beginning with a letter, not ending with -"
    volume = {"name": "Data", "mount_path": "data", "claim": "c"}

    assert reasons(job="My Job") == reasons(job="x" * 41) == (f"job: {name}, at most 40 characters",)
    assert reasons(job=7) == ("job: Expected `str`, got `int`",)
    assert reasons(namespace="Mine-") == (f"namespace: {name}, at most 63 characters",)
    assert reasons(batch="many") == (
        "batch: Expected `{start, min, max}` (a job's file may have one number), got `str`",
    )
    assert reasons(resources="small") == ("resources: Expected `{chief, ps, worker} | null`, got `str`",)
    assert reasons(resources={"ps": 2}) == ("resources.ps: Expected `{cpu, memory_gib, gpu}`, got `int`",)
    assert reasons(handover="fast") == (
        "handover: Invalid enum value 'fast'; there are 'make-before-break', 'restart'",
    )
    assert reasons(program={"name": "a.py", "digest": "x"}) == (
        "program.digest: Expected `sha256-` and 64 hexadecimal digits",
    )
    assert reasons(volumes=[volume]) == (
        f"volumes[0].name: {name}, at most 63 characters",
        "volumes[0].mount_path: Expected an absolute path",
    )
