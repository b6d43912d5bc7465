"""A real service in its own process, and its answers over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from shared.runtime.process import free_port

ROOT = Path(__file__).parents[2]
LEASE_S = 60.0  # s; longer than any outage of the bus
Values = dict[tuple[str, frozenset[str]], float]


class Asked:
    """A service that runs during an `async with` block."""

    def __init__(self, service: str, nats_url: str, **more: str) -> None:
        self.service, self.port = service, free_port()
        here = {
            "WEIR_NATS_URL": nats_url,
            "WEIR_METRICS_PORT": str(self.port),
            "WEIR_LEASE_S": str(LEASE_S),
        }
        own = {f"WEIR_{service.upper()}_{key.upper()}": value for key, value in more.items()}
        self.environ = {**os.environ, **here, **own, "PYTHONPATH": str(ROOT)}

    async def __aenter__(self) -> Asked:
        quiet = asyncio.subprocess.DEVNULL
        command = (sys.executable, "-m", f"services.{self.service}")
        self.process = await asyncio.create_subprocess_exec(
            *command, env=self.environ, stdout=quiet, stderr=quiet
        )
        self.session = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        """Send SIGTERM, as Kubernetes does, and wait for the exit."""
        self.process.terminate()
        await self.process.wait()

    async def ask(self, path: str) -> tuple[int, str]:
        """Return status and text; the status is 0 if nothing listens yet."""
        try:
            async with self.session.get(path, timeout=aiohttp.ClientTimeout(total=60)) as answer:
                return answer.status, await answer.text()
        except aiohttp.ClientConnectorError:
            return 0, ""

    async def until(self, path: str, status: int, within_s: float = 60.0) -> str:
        """Wait for an answer with this status. Return its text."""
        async with asyncio.timeout(within_s):
            while (answer := await self.ask(path))[0] != status:
                await asyncio.sleep(0.05)
            return answer[1]

    async def begun(self) -> None:
        """Wait until the service leads and is ready.

        A stand-by is ready too, but not while it starts to lead.
        """
        async with asyncio.timeout(60):
            while (await self.values()).get(("weir_leader", frozenset())) != 1:
                await asyncio.sleep(0.05)
        await self.until("/readyz", 200)

    async def values(self) -> Values:
        """Return the value of every metric, by name and label values."""
        _, text = await self.ask("/metrics")
        families = text_string_to_metric_families(text)
        return {
            (s.name, frozenset(s.labels.values())): s.value
            for family in families
            for s in family.samples
        }
