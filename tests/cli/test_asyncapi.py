"""`weir asyncapi` writes the document, or the page, without a bus."""

from __future__ import annotations

import json

from services.cli.asyncapi_document import build_document, build_page
from tests.cli.conftest import Prompt


async def test_asyncapi_writes_json(prompt: Prompt) -> None:
    said = await prompt("asyncapi")

    assert said.code == 0 and json.loads(said.out) == json.loads(json.dumps(build_document()))


async def test_asyncapi_writes_the_page(prompt: Prompt) -> None:
    assert (await prompt("asyncapi", "--page")).out == build_page()
