"""Runs nats-server with the configuration that deploy/ renders, in folders and on local ports."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from services.__main__ import weir
from shared.runtime.process import free_port
from tests.deploy.rendered import DEPLOY, KUBECTL, named
from tests.programs import program_path

OPENSSL = shutil.which("openssl")
NEW_CERTIFICATE = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -days 2"
)
NO_ROUTES: Mapping[str, str] = {}
Secrets = dict[str, dict[str, str]]
"""The text of each file, by name of the Secret and key."""


def secrets_in(folder: Path) -> Secrets:
    """Return the Secrets that the README's first two commands create, in a folder like deploy/."""
    for part in ("namespace", "credentials"):
        shutil.copytree(
            DEPLOY / part,
            folder / part,
            ignore=shutil.ignore_patterns("*.creds", "*.json", "*.conf"),
        )
    here = str(folder / "credentials")
    assert weir(["credentials", here]) == 0
    done = subprocess.run(
        [KUBECTL, "kustomize", here], capture_output=True, text=True, check=True, timeout=120
    )
    made = [body for body in yaml.safe_load_all(done.stdout) if body["kind"] == "Secret"]
    return {
        b["metadata"]["name"]: {k: b64decode(v).decode() for k, v in b["data"].items()}
        for b in made
    }


def written(name: str, folder: Path, secrets: Secrets, **instead: str) -> Path:
    """Write a server's rendered configuration with other paths and ports; return its main file."""
    folder.mkdir(parents=True, exist_ok=True)
    places = {"/etc/nats-tls": str(folder), "/data": str(folder / "data"), **instead}
    for file, text in {
        **named(name, "ConfigMap", "weir-nats")["data"],
        **secrets["weir-nats-server"],
    }.items():
        for told, here in places.items():
            text = text.replace(told, here)
        (folder / file).write_text(text)
    return folder / "nats.conf"


def certificate(folder: Path) -> None:
    """Write a self-signed certificate, which is its own authority."""
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run(
        [str(OPENSSL), *NEW_CERTIFICATE.split(), *names, *files], check=True, capture_output=True
    )
    shutil.copy(folder / "tls.crt", folder / "ca.crt")


def is_taken(config: Path, routes: Mapping[str, str]) -> str:
    """Return the server's error about a configuration; empty if it accepts the configuration.

    `routes`: more variables of the server's environment.
    """
    environ = {**os.environ, "POD_NAME": "weir-nats-0", **routes}
    words = [program_path("nats-server"), "-c", str(config), "-t"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120)
    return done.stderr if done.returncode else ""


def version() -> str:
    said = subprocess.run(
        [program_path("nats-server"), "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return said.stdout.split("v")[-1].strip()


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


@asynccontextmanager
async def running(
    config: Path, pod: str, routes: Mapping[str, str] = NO_ROUTES
) -> AsyncIterator[asyncio.subprocess.Process]:
    environ, quiet = {**os.environ, "POD_NAME": pod, **routes}, asyncio.subprocess.DEVNULL
    words = [program_path("nats-server"), "-c", str(config)]
    process = await asyncio.create_subprocess_exec(*words, env=environ, stdout=quiet, stderr=quiet)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
