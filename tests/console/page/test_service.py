"""Tests of the page's HTTP service: accepted hosts and origins, its headers, and its limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest

from services.console.board.board import initial_board
from services.console.dry_run import example_proposal
from services.console.page import service
from services.console.page.service import Page, Settings
from tests.console.board.test_board import running
from tests.console.page.conftest import Still, served


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with served(Still(running().board)) as made:
        yield made


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_the_page_answers_only_on_loopback_and_only_to_its_host_names(
    page: Page, http: aiohttp.ClientSession
) -> None:
    assert page.url.startswith("http://127.0.0.1:")
    async with http.get(page.url, headers={"Host": "example.org"}) as answer:
        assert answer.status == 403
    async with http.get(page.url, headers={"Host": "localhost:80"}) as answer:
        assert answer.status == 200


EXAMPLE = example_proposal(running().board.state)


async def test_requests_of_other_origins_are_refused(
    page: Page, http: aiohttp.ClientSession
) -> None:
    async with http.post(
        f"{page.url}api/what-if", data=EXAMPLE, headers={"Origin": "http://example.org"}
    ) as answer:
        assert answer.status == 403


async def test_the_content_security_policy_forbids_external_resources(
    page: Page, http: aiohttp.ClientSession
) -> None:
    for path in ("", "page.js", "page.css", "api/example"):
        async with http.get(page.url + path) as answer:
            assert (
                answer.status == 200
                and "default-src 'none'" in answer.headers["Content-Security-Policy"]
            )


def test_no_static_file_has_an_external_url() -> None:
    for path in service.STATIC.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in "".join(line for line in text.splitlines() if "://" in line), path.name


async def test_the_what_if_endpoint_answers(page: Page, http: aiohttp.ClientSession) -> None:
    async with http.post(f"{page.url}api/what-if", data=EXAMPLE) as answer:
        found = msgspec.json.decode(await answer.read())

    assert answer.status == 200 and found["says"][0].startswith("job default/proposal would ")


async def test_a_proposal_above_the_size_limit_is_refused(
    page: Page, http: aiohttp.ClientSession
) -> None:
    async with http.post(f"{page.url}api/what-if", data="#" * 100_000) as answer:
        assert answer.status == 413


async def test_a_viewer_above_the_limit_is_told_to_retry() -> None:
    still = Still(initial_board())
    small = Page(still, Settings(port=0, browsers=1))  # type: ignore[arg-type]
    runner = await small.open()
    async with aiohttp.ClientSession() as http, http.get(f"{small.url}api/follow") as first:
        assert (await first.content.readline()).startswith(b"retry: ")
        async with http.get(f"{small.url}api/follow") as second:
            assert (second.status, second.headers["Retry-After"]) == (503, "5")
    async with asyncio.timeout(60):
        while small.browsers:
            await asyncio.sleep(0.05)
    await runner.cleanup()
