"""Tests of `weir streams`, which creates the streams and can enlarge a full one."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.js.errors import NotFoundError

from shared.auth.permissions import SETUP, program_stream
from shared.bus.bus import Bus
from shared.bus.streams import MIB, PROGRAMS_BYTES
from shared.bus.subjects import ORDERS
from shared.messages import GIB
from tests.cli.conftest import Prompt
from tests.shared.sample_messages import request
from tests.shared.secured_server import credentials, guarded


async def room(bus: Bus) -> int:
    return int((await bus.js.stream_info(ORDERS)).config.max_bytes or 0)


async def test_a_larger_stream_limit_is_applied_and_kept(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    assert await room(bus) == GIB

    said = await prompt("streams", "create", "--orders-gib", 2, "--nats", nats_url)
    assert said.code == 0 and await room(bus) == 2 * GIB

    await prompt("streams", "create", "--nats", nats_url)
    assert await room(bus) == 2 * GIB


async def test_a_full_stream_has_a_remedy(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    await bus.publish(request())
    await bus.js.update_stream((await bus.js.stream_info(ORDERS)).config, max_bytes=1)

    said = await prompt("cancel", "digits", "--nats", nats_url)

    assert said.code == 1
    assert (
        "has no room for it (maximum bytes exceeded); for more room, run `weir streams"
        " create --orders-gib N`" in said.err
    )


# ---------------------------------------------------------------- namespaces


async def programs_room(bus: Bus, namespace: str) -> int:
    return int((await bus.js.stream_info(program_stream(namespace))).config.max_bytes or 0)


async def test_default_and_every_listed_and_named_namespace_get_a_program_bucket(
    bus: Bus, nats_url: str, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_JOB_NAMESPACES", "red, blue")

    said = await prompt("streams", "create", "--namespace", "green", "--nats", nats_url)

    assert said.code == 0, said.err
    for namespace in ("default", "red", "blue", "green"):
        assert await programs_room(bus, namespace) == PROGRAMS_BYTES
        assert f"weir-programs-{namespace}" in said.out
    with pytest.raises(NotFoundError):
        await programs_room(bus, "yellow")


async def test_a_namespace_provisioned_again_keeps_what_it_has_and_its_larger_bucket(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await prompt(
        "streams", "create", "--namespace", "red", "--programs-mib", 300, "--nats", nats_url
    )
    store = await bus.js.object_store("weir-programs-red")
    await store.put("a", b"program")

    await prompt("streams", "create", "--namespace", "red", "--nats", nats_url)

    assert await programs_room(bus, "red") == 300 * MIB
    assert (await store.get("a")).data == b"program"


@pytest.mark.usefixtures("bus")
async def test_verify_fails_while_a_namespace_is_not_provisioned(
    nats_url: str, prompt: Prompt
) -> None:
    words = ("--namespace", "red", "--nats", nats_url)

    assert (await prompt("streams", "verify", *words)).code == 1
    await prompt("streams", "create", *words)
    assert (await prompt("streams", "verify", *words)).code == 0


async def test_the_credentials_of_setup_are_enough_to_provision_a_namespace(
    prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(tmp_path) as server:
        (tmp_path / "setup.creds").write_text(credentials(SETUP))
        monkeypatch.setenv("WEIR_NATS_CREDENTIALS", str(tmp_path / "setup.creds"))

        for _ in range(2):
            said = await prompt("streams", "create", "--namespace", "team-c", "--nats", server.url)
            assert (said.code, said.err) == (0, "")


async def test_an_invalid_listed_namespace_is_refused(
    nats_url: str, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_JOB_NAMESPACES", "red,No Name")

    said = await prompt("streams", "create", "--nats", nats_url)

    assert said.code == 2 and "No Name" in said.err
