"""Tests of the help on file formats: its examples work, and it names every column and field."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from services.__main__ import weir
from services.cli import decide, simulate
from services.whatif.decide_json.document import (
    InvalidDocument,
    Said,
    read_document,
    reasons_against,
)
from services.whatif.simulator.csv_files import JOBS, SPEEDS

EXAMPLES = {
    "jobs": simulate.JOBS,
    "surfaces": simulate.SPEEDS,
    "loss": simulate.LOSSES,
    "cluster": simulate.CLUSTER,
}


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert weir([*words]) == 0
    return capsys.readouterr().out


def test_the_example_files_can_be_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words: list[str] = []
    for name, text in EXAMPLES.items():
        (tmp_path / name).write_text(text)
        words += [f"--{name}", str(tmp_path / name)]

    assert weir(["simulate", *words, "--json", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out").read_text())["weir"]["completed"] == 1


def test_help_has_every_column_and_the_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = shown(capsys, "simulate", "--help-files")

    assert [
        column.name
        for column in (*JOBS, *SPEEDS)
        if column.name not in page and column.name != "mode"
    ] == []
    for name in ("jobs", "surfaces", "cluster"):
        assert all(line in page for line in EXAMPLES[name].splitlines())


def test_the_answer_to_the_example_line_has_the_fields_in_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = shown(capsys, "decide", "--help-lines")
    assert all(line in page for line in decide.LINE.splitlines())
    line = decide.LINE.replace("\n", " ").encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line)))
    told = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(told, write_through=True))
    assert weir(["decide"]) == 0

    answer = json.loads(told.getvalue())
    names = [*answer, *answer["decisions"][0]]
    assert [name for name in names if f'"{name}": ' not in page] == [] and "errors" not in answer


def test_the_help_lists_every_field_of_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    pages = shown(capsys, "decide", "--help-lines") + shown(capsys, "decide", "--help-fields")
    parts = Said.__subclasses__()
    assert [
        field
        for part in parts
        for field in part.__struct_fields__
        if not re.search(rf"\b{field}\b", pages)
    ] == []


def test_the_required_fields_are_those_in_the_help() -> None:
    least: dict[str, Any] = {
        "now": 0,
        "nodes": [{"name": "n1"}],
        "jobs": [{"job": "a", "request": {}}],
    }
    assert read_document(json.dumps(least).encode()).now == 0
    assert list(reasons_against("a", {})) == []

    lacking = [
        {**least, "nodes": [{}]},
        {**least, "jobs": [{"job": "a"}]},
        {**least, "jobs": [{"request": {}}]},
        {},
    ]
    for without in lacking:
        with pytest.raises(InvalidDocument):
            read_document(json.dumps(without).encode())


def test_an_unusable_file_is_an_error_with_the_expected_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in EXAMPLES:
        (tmp_path / name).write_text("")
    words = [word for name in EXAMPLES for word in (f"--{name}", str(tmp_path / name))]

    assert weir(["simulate", *words]) == 2
    said = capsys.readouterr().err
    assert (
        "its first line names the columns job, submitted_s, model, samples, global_batch\n" in said
    )
    assert "a cluster file is a mapping with `nodes` and perhaps `tenants`" in said
    assert said.splitlines()[-1].endswith("`weir simulate --help-files` shows their format")
