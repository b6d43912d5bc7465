"""What a task prints, over an API that speaks Kubernetes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tests.cli.conftest import Prompt

PRINTED = "step 1\nstep 2\n"


class Api:
    """Two pods of one job, and what was asked of it."""

    def __init__(self) -> None:
        self.url, self.asked = "", dict[str, str]()

    async def pods(self, request: web.Request) -> web.Response:
        self.asked = dict(request.query)
        items = [_pod("digits-chief-0", "chief"), _pod("digits-worker-1", "worker")]
        return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})

    async def log(self, request: web.Request) -> web.Response:
        if request.match_info["pod"] != "digits-chief-0":
            return web.json_response({"kind": "Status", "message": "is waiting to start"}, status=400)
        self.asked = dict(request.query)
        return web.Response(text=PRINTED)


def _pod(name: str, role: str) -> dict[str, Any]:
    labels = {"weir.dev/job": "digits", "weir.dev/role": role}
    return {"metadata": {"name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.fixture
async def kube() -> AsyncIterator[Api]:
    api, application = Api(), web.Application()
    application.router.add_get("/api/v1/namespaces/default/pods", api.pods)
    application.router.add_get("/api/v1/namespaces/default/pods/{pod}/log", api.log)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    api.url = "http://{}:{}".format(*runner.addresses[0])
    yield api
    await runner.cleanup()


async def test_without_a_task_the_chief_of_the_job_is_shown(kube: Api, prompt: Prompt) -> None:
    said = await prompt("logs", "digits", "--kube", kube.url)

    assert (said.code, said.out) == (0, PRINTED)


async def test_following_is_asked_of_the_api(kube: Api, prompt: Prompt) -> None:
    await prompt("logs", "digits", "--kube", kube.url, "--follow")

    assert kube.asked["follow"].lower() == "true"


async def test_only_pods_of_the_job_are_looked_at(kube: Api, prompt: Prompt) -> None:
    said = await prompt("logs", "digits", "ps-7", "--kube", kube.url)

    assert said.code == 1 and "there are digits-chief-0, digits-worker-1" in said.err
    assert kube.asked == {"labelSelector": "weir.dev/job=digits"}


async def test_a_refusal_of_kubernetes_is_told_in_its_words(kube: Api, prompt: Prompt) -> None:
    said = await prompt("logs", "digits", "worker-1", "--kube", kube.url)

    assert (said.code, said.err) == (1, "weir logs: Kubernetes refuses: is waiting to start\n")


async def test_a_kubernetes_that_is_not_there_is_told(prompt: Prompt) -> None:
    said = await prompt("logs", "digits", "--kube", "http://127.0.0.1:1")

    assert said.code == 1 and said.err.startswith("weir logs: cannot reach Kubernetes")
    assert json.dumps(said.err).count("\\n") == 1
