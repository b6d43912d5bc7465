"""Tests of a bus with TLS: clients that trust its authority can connect."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from nats.errors import Error as NatsError

from shared.bus import bus as wire
from shared.bus.client import connect_client
from tests.deploy.servers import OPENSSL, Secrets, certificate, free_ports, running, written

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="no openssl here")
WITHIN_S = 60


async def test_the_authority_is_a_file_for_services_and_text_for_trainers(
    secrets: Secrets, tmp_path: Path
) -> None:
    certificate(tmp_path)
    (port,) = free_ports(1)
    here = {"port: 4222": f"listen: 127.0.0.1:{port}", "http: 8222": ""}
    url, credentials = f"tls://127.0.0.1:{port}", secrets["weir-nats-setup"]["nats.creds"]
    async with running(written("dev+tls", tmp_path, secrets, **here), "weir-nats-0"):
        for ca in (str(tmp_path / "ca.crt"), (tmp_path / "ca.crt").read_text()):
            bus = await asyncio.wait_for(wire.connect(url, "setup", credentials, ca), WITHIN_S)
            await streams_made(bus)
            await bus.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect_client(url, credentials, allow_reconnect=False, connect_timeout=WITHIN_S)


async def streams_made(bus: wire.Bus) -> None:
    """Create the streams; repeat until JetStream is ready."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return await bus.create()
            except NatsError:
                await asyncio.sleep(0.05)
