"""Tests of TLS: only a server with a known certificate is accepted, and none without TLS."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.errors import Error as NatsError

from shared.auth import keyring
from shared.bus.client import connect_client
from tests.conftest import NatsServer

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no openssl here to make certificates with"
)


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a self-signed certificate for 127.0.0.1. Return its path and that of its key."""
    own, key = folder / f"{name}.crt", folder / f"{name}.key"
    made = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "1",
    ]
    about = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *made, *about, "-out", own, "-keyout", key], check=True, capture_output=True
    )
    return own, key


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    keyring.write_credentials(
        tmp_path / "all", time.time(), certificate=certificate(tmp_path, "server")
    )
    running = NatsServer(tmp_path / "nats", "-c", str(tmp_path / "all" / keyring.CONFIG))
    await running.start()
    yield running
    await running.kill()


def operator(folder: Path) -> str:
    return str(keyring.credentials_file(folder / "all", "operator"))


@pytest.mark.parametrize("as_text", [False, True])
async def test_a_server_with_a_known_certificate_is_accepted(
    server: NatsServer, tmp_path: Path, as_text: bool
) -> None:
    ca = (tmp_path / "server.crt").read_text() if as_text else str(tmp_path / "server.crt")

    client = await connect_client(
        server.url, operator(tmp_path), ca, allow_reconnect=False, connect_timeout=60
    )

    await client.flush()
    await client.close()


async def test_a_server_with_another_certificate_is_refused(
    server: NatsServer, tmp_path: Path
) -> None:
    other, _ = certificate(tmp_path, "other")

    with pytest.raises((ssl.SSLError, NatsError)):
        await connect_client(
            server.url, operator(tmp_path), str(other), allow_reconnect=False, connect_timeout=60
        )


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_no_credentials_are_sent_to_a_server_without_tls(
    nats_url: str, tmp_path: Path, scheme: str
) -> None:
    known, _ = certificate(tmp_path, "server")
    ca = str(known) if scheme == "nats" else ""

    with pytest.raises(NatsError, match="no TLS"):
        await connect_client(
            nats_url.replace("nats:", f"{scheme}:"),
            "",
            ca,
            allow_reconnect=False,
            connect_timeout=60,
        )


async def test_a_command_that_does_not_trust_the_certificate_prints_only_that(
    server: NatsServer, tmp_path: Path
) -> None:
    other, _ = certificate(tmp_path, "other")
    environ = {
        **os.environ,
        "WEIR_NATS_CA": str(other),
        "WEIR_NATS_CREDENTIALS": operator(tmp_path),
    }
    pipe, words = asyncio.subprocess.PIPE, ["-m", "services", "jobs", "--nats", server.url]

    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, env=environ, stdout=pipe, stderr=pipe
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)

    said, advice = err.decode().splitlines()
    assert process.returncode and out == b"" and advice.startswith("Start it with `weir up`")
    assert said.startswith("weir jobs: cannot reach NATS") and "certificate verify failed" in said
