"""The whole system on this machine; that it runs, the tests of `services/local` and the flows show."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cli.conftest import Prompt

BAD = """
nodes: [{cpu: 0, memory_gib: many}, {cpus: 2}]
"""


async def test_a_bad_cluster_file_is_refused_at_once_with_every_reason_and_nothing_is_started(
    prompt: Prompt, tmp_path: Path
) -> None:
    (tmp_path / "cluster.yaml").write_text(BAD)
    began = time.monotonic()

    said = await prompt("up", "--cluster", tmp_path / "cluster.yaml", "--data", tmp_path / "data")

    assert time.monotonic() - began < 5 and not (tmp_path / "data").exists()
    assert (said.code, said.out) == (2, "")
    assert said.err.splitlines() == [
        f"weir up: {tmp_path / 'cluster.yaml'} describes no cluster:",
        "  nodes[0].cpu: Expected `float` > 0.0",
        "  nodes[0].memory_gib: Expected `float`, got `str`",
        "  nodes[1].cpus: no such field; did you mean 'cpu'?",
    ]


@pytest.mark.parametrize(
    ("body", "told"), [(None, "cannot read"), (b"\xff", "is not text in UTF-8"), (b"nodes: [", "this is no YAML")]
)
async def test_what_is_no_cluster_file_at_all_is_wrong_use(
    prompt: Prompt, tmp_path: Path, body: bytes | None, told: str
) -> None:
    file = tmp_path / "cluster.yaml"
    if body is not None:
        file.write_bytes(body)

    said = await prompt("up", "--cluster", file, "--data", tmp_path / "data")

    assert said.code == 2 and told in said.err and str(file) in said.err
