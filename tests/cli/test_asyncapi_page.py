"""The page for people is made from the classes, and the one in deploy/ is that page."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from services.cli.asyncapi_document import build_page, message_schemas, subject_address
from shared.messages import MESSAGES

FILE = Path(__file__).parents[2] / "deploy" / "events.md"
SAID = build_page()


def test_the_page_in_deploy_is_up_to_date() -> None:
    assert FILE.read_text("utf-8") == SAID, "weir asyncapi --page > deploy/events.md"


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda k: k.__name__)
def test_every_message_has_its_subject_and_every_field(kind: type) -> None:
    part = SAID.partition(f"\n### {kind.__name__}\n")[2].partition("\n### ")[0]

    assert f"`{subject_address(kind)}`" in part
    for name in message_schemas()[kind.__name__]["properties"]:
        assert f"\n| `{name}` | " in part


def test_every_link_leads_to_a_heading() -> None:
    headings = {
        line.removeprefix("### ").lower() for line in SAID.splitlines() if line.startswith("### ")
    }
    linked = {part.partition(")")[0] for part in SAID.split("](#")[1:]}

    assert linked and linked <= headings


def test_every_table_row_has_the_same_number_of_columns() -> None:
    lines = SAID.splitlines()
    for above, below in itertools.pairwise(lines):
        if above.startswith("|") and below.startswith("|"):
            assert above.replace(r"\|", "").count("|") == below.replace(r"\|", "").count("|"), below
