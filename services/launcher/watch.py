"""List, then watch, for ever: how what Kubernetes shows comes in. Edge.

Promise: `on_list` is given all there is, then `on_change` each change in order, and whenever something may have been
missed `on_list` again. Missed means: 410 Expired (as a status, or as an ERROR event inside a 200 stream), a stream that
broke, a server that was away. A watch that the server ends in peace goes on from where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from services.launcher.api import TROUBLES, Api, ApiError
from services.launcher.facts import Kind
from services.launcher.labels import SELECTOR
from services.launcher.settings import Settings
from services.launcher.shapes import Event, Page, Status, Versioned

log = structlog.get_logger()

Body = dict[str, Any]
OnList = Callable[[Kind, list[Body]], None]
OnChange = Callable[[Kind, Body, bool], None]
PAGE, EXPIRED = 500, 410


class Watcher:
    """Follows one kind of object; `on_change(kind, body, gone)`."""

    def __init__(self, api: Api, kind: Kind, settings: Settings, on_list: OnList, on_change: OnChange) -> None:
        self.api, self.kind, self.settings = api, kind, settings
        self.on_list, self.on_change = on_list, on_change
        inside = f"/namespaces/{settings.kube_namespace}" if settings.kube_namespace and kind != "nodes" else ""
        self.path = f"/api/v1{inside}/{kind}"
        self.query = {} if kind == "nodes" else {"labelSelector": SELECTOR}

    async def run(self) -> None:
        while True:
            try:
                version = await self.list_all()
                while True:
                    version = await self.watch_from(version)
            except ApiError as error:
                if error.status == EXPIRED:
                    continue
                await self._wait(error)
            except TROUBLES as error:
                await self._wait(error)

    async def list_all(self) -> str:
        """Give all there is; returns its version."""
        items: list[Body] = []
        query = {**self.query, "limit": str(PAGE)}
        while True:
            page = msgspec.convert(await self.api.call("GET", self.path, query=query), Page)
            items += page.items or []
            query["continue"] = page.metadata.continue_ or ""
            if not query["continue"]:
                self.on_list(self.kind, items)
                return page.metadata.resource_version or ""

    async def watch_from(self, version: str) -> str:
        """Give every change until the server ends the watch; returns the version to go on from."""
        seconds = self.settings.kube_watch_s
        more = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": version,
        }
        async for line in self.api.lines(self.path, {**self.query, **more}, seconds):
            event = msgspec.convert(line, Event)
            if event.type == "ERROR":
                said = msgspec.convert(event.object, Status)
                raise ApiError(said.code or 0, str(said.reason), str(said.message))
            version = msgspec.convert(event.object, Versioned).metadata.resource_version or version
            if event.type != "BOOKMARK":
                self.on_change(self.kind, event.object, event.type == "DELETED")
        return version

    async def _wait(self, error: Exception) -> None:
        log.warning("WatchBroke", kind=self.kind, error=repr(error))
        await asyncio.sleep(self.settings.kube_retry_s)
