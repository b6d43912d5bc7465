"""One HTTP request to a Kubernetes API server, with the official client's configuration and credentials. Edge.

Bodies go in and out as plain dicts: no models, because a pod is read into a small fact at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import msgspec
from kubernetes.aio import client, config

from services.launcher.settings import Settings

Body = dict[str, Any]
SERVER_GRACE_S = 15.0  # how much later than the server we end a watch ourselves
TROUBLES = (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError, RecursionError, msgspec.DecodeError)
"""The wire's, not the server's: no answer, or one that cannot be read."""


class ApiError(Exception):
    """The server's refusal: its HTTP status, reason and message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message


async def connect(settings: Settings) -> Api:
    """By URL, else by kubeconfig, else as the pod that we are."""
    chosen = client.Configuration()
    if settings.kube_url:
        chosen.host = settings.kube_url
    elif settings.kubeconfig:
        await config.load_kube_config(config_file=settings.kubeconfig, client_configuration=chosen)
    else:
        config.load_incluster_config(client_configuration=chosen)
    return Api(client.ApiClient(chosen), settings.kube_timeout_s)


class Api:
    def __init__(self, api: Any, timeout_s: float) -> None:
        self.api, self.timeout = api, aiohttp.ClientTimeout(total=timeout_s)

    async def call(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        query: Mapping[str, str] | None = None,
        patch: bool = False,
    ) -> Body:
        """Raises `ApiError` for a refusal, one of `TROUBLES` where there is no proper answer."""
        content = "application/strategic-merge-patch+json" if patch else "application/json"
        response = await self._send(method, path, body, query, content, self.timeout)
        async with response:
            answer = await response.read()
            if response.status >= 400:
                raise _refusal(response.status, answer)
            return _dict(answer)

    async def lines(self, path: str, query: Mapping[str, str], seconds: int) -> AsyncIterator[Body]:
        """A watch: one document a line, until the server ends it or it has lasted too long."""
        limit = aiohttp.ClientTimeout(total=seconds + SERVER_GRACE_S, sock_connect=self.timeout.total)
        response = await self._send("GET", path, None, query, "application/json", limit)
        async with response:
            if response.status >= 400:
                raise _refusal(response.status, await response.read())
            while line := await response.content.readline():
                yield _dict(line)

    async def _send(
        self,
        method: str,
        path: str,
        body: Body | None,
        query: Mapping[str, str] | None,
        content: str,
        limit: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "Content-Type": content}
        parts = await self.api.param_serialize(
            method, path, query_params=list((query or {}).items()), header_params=headers, body=body, auth_settings=AUTH
        )
        answer = await self.api.call_api(*parts, _request_timeout=limit)
        response: aiohttp.ClientResponse = answer.response
        return response

    async def close(self) -> None:
        await self.api.close()


AUTH = ["BearerToken"]


def _dict(text: bytes) -> Body:
    return msgspec.json.decode(text, type=dict[str, Any])


def _refusal(status: int, answer: bytes) -> ApiError:
    try:
        said = _dict(answer)
    except msgspec.DecodeError:
        said = {"message": answer[:200].decode("utf-8", "replace")}
    return ApiError(status, str(said.get("reason") or "Unknown"), str(said.get("message") or ""))
