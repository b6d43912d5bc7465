"""Tests of a job's credentials: created once, before its pods, and deleted with it.

They are valid only for the job's program.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from nats.errors import Error as NatsError

from services.launcher import kube, pods
from services.launcher import view as views
from services.launcher.actions import CreatePod, CreateSecret, CreateService
from services.launcher.facts import ServiceFact
from services.launcher.kube import BadKey, Minter, load_minter
from services.launcher.reconcile import reconcile
from services.launcher.settings import Settings
from services.launcher.view import View
from shared.auth import authority
from shared.auth.authority import user_name
from shared.auth.permissions import chunk_subject, description_subject, program_stream
from shared.bus import programs, subjects
from shared.kube.client import connect_api
from tests.conftest import NatsServer
from tests.launcher.builders import UID, decided, plan
from tests.shared import secured_server
from tests.shared.kube.api_server import api_server
from tests.shared.secured_server import KEYS, credentials, is_let_in, visitor

GUARDED, OPEN = (
    Settings(signing_key="jobs.json", network_policies=False),
    Settings(network_policies=False),
)
SHORT_S, DAY_S = 3.0, 86_400.0
DECIDED = decided(1, "c0 p1")
SECRET = CreateSecret(decision=DECIDED, owner_uid="0123-owner-and-more", text="credentials")
POD = CreatePod(decision=DECIDED, task=plan("p1"), name="net-ps-1", owner_uid=SECRET.owner_uid)


def service(uid: str = SECRET.owner_uid) -> ServiceFact:
    return ServiceFact(namespace="default", name="net", uid=uid, job_uid=UID)


def todo(view: View, rules: Settings = GUARDED) -> list[type]:
    return [type(action) for action in reconcile(view, 1.0, rules)]


# ------------------------------------------------------------ when they are created


def test_the_service_is_created_before_the_credentials_and_those_before_the_pods() -> None:
    view = views.fold_message(View(), DECIDED, 0.0)
    assert todo(view) == [CreateService]
    view = views.with_service(view, service(), deleted=False)
    assert todo(view) == [CreateSecret]
    assert todo(views.with_credentials(view, SECRET.owner_uid)) == [CreatePod, CreatePod]


def test_a_recreated_service_gets_its_own_credentials() -> None:
    view = views.with_credentials(
        views.with_service(views.fold_message(View(), DECIDED, 0.0), service(), deleted=False),
        service().uid,
    )
    view = views.with_service(
        views.with_service(view, service(), deleted=True), service("another"), deleted=False
    )

    assert todo(view) == [CreateSecret]
    assert views.with_credentials(view, "another").services_with_credentials == {"another"}


def test_a_bus_without_credentials_needs_no_secret() -> None:
    view = views.with_service(views.fold_message(View(), DECIDED, 0.0), service(), deleted=False)

    assert todo(view, OPEN) == [CreatePod, CreatePod]
    assert "WEIR_NATS_CREDS_TEXT" not in str(pods.pod_manifest(POD, Settings()))


# ------------------------------------------------------------ where they are stored


def test_a_pod_refers_to_the_secret_and_the_service_owns_it() -> None:
    kept, env = (
        pods.secret_manifest(SECRET),
        pods.pod_manifest(POD, GUARDED)["spec"]["containers"][0]["env"],
    )
    given = next(
        each["valueFrom"]["secretKeyRef"] for each in env if each["name"] == "WEIR_NATS_CREDS_TEXT"
    )

    assert given == {"name": kept["metadata"]["name"], "key": "nats.creds"}
    assert base64.b64decode(kept["data"]["nats.creds"]) == b"credentials"
    assert kept["metadata"]["ownerReferences"][0]["uid"] == SECRET.owner_uid


async def test_credentials_are_created_once_and_never_read() -> None:
    async with api_server() as server:
        api = await connect_api(Settings(kube_url=server.url), "test", random.Random(1).random)
        for _ in range(2):
            await kube.perform(SECRET, api, GUARDED)
        server.trouble = [(403, "Forbidden")]
        with pytest.raises(kube.Refused):
            await kube.perform(SECRET, api, GUARDED)
        await api.close()

    assert server.names("secrets") == [pods.secret_name("net", SECRET.owner_uid)]
    assert {verb for verb, path, _ in server.calls if "secrets" in path} == {"POST"}


# ------------------------------------------------------------ what they permit


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with secured_server.guarded(tmp_path) as running:
        yield running


async def test_a_job_can_read_only_its_own_program(server: NatsServer) -> None:
    body = os.urandom(300_000)
    digest = programs.digest_of(body)
    program = replace(DECIDED.request.program, digest=digest)
    decision = replace(DECIDED, request=replace(DECIDED.request, program=program))
    async with visitor(server.url, credentials("operator")) as person:
        await programs.store_program(person.bus, "default", digest, body)
        await programs.store_program(
            person.bus, "default", programs.digest_of(b"another's"), b"another's"
        )

    filled = Minter(authority.job_signer(KEYS), DAY_S).fill_secret(
        replace(SECRET, decision=decision)
    )

    assert user_name(filled.text) == "job.default.net" and "eyJ" not in filled.key()
    async with visitor(server.url, filled.text) as pod:
        assert await programs.read_program(pod.bus, "default", digest) == body
        bucket, stream = subjects.program_bucket("default"), program_stream("default")
        for token in (programs.meta_token(programs.digest_of(b"another's")), "*", ">"):
            described = f"{description_subject(bucket)}.{token}"
            assert not await pod.may_say(f"{pod.client.api}.DIRECT.GET.{stream}.{described}")
            assert not await pod.may_say(f"{pod.client.api}.CONSUMER.CREATE.{stream}.x.{described}")


@pytest.mark.parametrize("nuid", [">", "*", "a.b", ""])
async def test_a_wildcard_in_a_program_location_grants_nothing(
    server: NatsServer, nuid: str
) -> None:
    """A submitter writes the location of a program's parts.

    A wildcard there must not become a permission, and is not followed.
    """
    digest, bucket = DECIDED.request.program.digest, subjects.program_bucket("default")
    about = msgspec.json.encode({"name": digest, "nuid": nuid, "size": 1, "chunks": 1})
    async with visitor(server.url, credentials("submitter", "default.x")) as person:
        await person.bus.js.publish(
            f"{description_subject(bucket)}.{programs.meta_token(digest)}", about
        )

    filled = Minter(authority.job_signer(KEYS), DAY_S).fill_secret(SECRET)

    async with visitor(server.url, filled.text) as pod:
        with pytest.raises(ValueError, match="does not lead to its content"):
            await programs.read_program(pod.bus, "default", digest)
        other = f"{program_stream('team-a')}.x.{chunk_subject(subjects.program_bucket('team-a'))}.{nuid or 'any'}"
        assert not await pod.may_say(f"{pod.client.api}.CONSUMER.CREATE.{other}")


async def test_credentials_expire_as_configured(server: NatsServer) -> None:
    async def ends(lasts_s: float) -> bool:
        filled = Minter(authority.job_signer(KEYS), lasts_s).fill_secret(SECRET)
        with suppress(TimeoutError):
            async with asyncio.timeout(60 if lasts_s == SHORT_S else SHORT_S + 1):
                await over(filled.text)
                return True
        return False

    async def over(text: str) -> None:
        with suppress(
            NatsError
        ):  # on a machine that stalls they may have expired before they are tried
            async with visitor(server.url, text) as pod:
                while pod.client.is_connected:
                    await asyncio.sleep(0.05)
        while await is_let_in(server.url, text):
            await asyncio.sleep(0.05)

    assert await asyncio.gather(ends(SHORT_S), ends(DAY_S), ends(0.0)) == [True, False, False]
    assert Settings().credentials_s > 300 * DAY_S


def test_an_invalid_signing_key_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "jobs.json").write_text("{}")
    assert load_minter("", DAY_S) is None
    for file in ("jobs.json", "missing.json"):
        with pytest.raises(BadKey, match=file):
            load_minter(str(tmp_path / file), DAY_S)


def test_credentials_do_not_depend_on_the_generation() -> None:
    assert replace(SECRET, decision=decided(2, "c0")).key() == SECRET.key()
