"""YAML from outside is measured before it is expanded."""

from __future__ import annotations

import resource

import pytest
import yaml

from shared import documents

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
"""Under 1,000 bytes, which stand for nine to the power of twelve values."""
MERGES = "b0: &b0 {x: 1}\n" + "".join(
    f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)
LONG = f"s: &s {'x' * 100_000}\nt: [{', '.join(['*s'] * 1_000)}]\n"


@pytest.mark.parametrize("text", [LAUGHS, MERGES, LONG], ids=["aliases", "merges", "a long text"])
def test_aliases_that_multiply_are_refused_before_they_take_memory(text: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(documents.TooLarge, match="expanded it is larger"):
        documents.load(text, 256 << 10)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x" * 200, "it has 200 characters, more than 100"),
        ("a: &a [*a]", "a part of it contains itself"),
        ("a: *b", "undefined alias"),
        ("a: 1\n---\nb: 2", "several documents"),
        ("{", "expected"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, why: str) -> None:
    with pytest.raises(yaml.YAMLError, match=why):
        documents.load(text, 100)


def test_a_document_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(documents.TooLarge, match="nested too deeply"):
        documents.load("[" * 100_000)


def test_a_number_of_too_many_digits_is_no_yaml() -> None:
    with pytest.raises(yaml.YAMLError, match="digits"):
        documents.load(f"a: {'1' * 10_000}")


def test_ordinary_aliases_and_merges_are_read() -> None:
    text = "base: &base {cpu: 1, memory_gib: 2}\nps: *base\nworker: {<<: *base, cpu: 3}"

    assert documents.load(text) == {
        "base": {"cpu": 1, "memory_gib": 2},
        "ps": {"cpu": 1, "memory_gib": 2},
        "worker": {"cpu": 3, "memory_gib": 2},
    }
    assert documents.load("") is None and documents.load_all("a: 1\n---\n2") == [{"a": 1}, 2]
