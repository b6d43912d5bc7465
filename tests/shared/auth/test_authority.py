"""Tests of the credentials that a real server accepts, and of the limits of the launcher's key."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.auth import authority, permissions
from shared.auth.permissions import JOB, OPERATOR, OUTSIDE
from shared.bus import programs
from tests.conftest import NatsServer
from tests.shared.secured_server import DIGEST, KEYS, NOW_S, credentials, guarded, is_let_in

META = programs.meta_token(DIGEST)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with guarded(tmp_path) as running:
        yield running


def forged(issuer: str, name: str, **nats: object) -> str:
    secret = authority.create_seed("user", os.urandom(32))
    claims = {"name": name, "sub": authority.public_key(secret), "nats": nats}
    return authority.format_credentials(
        authority.sign_claims(claims, "user", NOW_S, issuer), secret
    )


def tags(namespace: str = "team-a", job: str = "mine", meta: str = META) -> list[str]:
    return [f"namespace:{namespace}", f"job:{job}", f"meta:{meta}"]


async def test_no_credentials_or_those_of_another_authority_are_refused(
    server: NatsServer,
) -> None:
    stranger = authority.create_keys(os.urandom)

    assert await is_let_in(server.url, credentials(OPERATOR))
    assert not await is_let_in(server.url, "")
    assert not await is_let_in(
        server.url, authority.user_credentials(stranger, OPERATOR, os.urandom(32), NOW_S)
    )


async def test_claims_without_the_users_key_are_refused(server: NatsServer) -> None:
    token = credentials(OPERATOR).split(authority.BEGIN.format(authority.JWT))[1].split()[0]

    assert not await is_let_in(
        server.url,
        authority.format_credentials(token, authority.create_seed("user", os.urandom(32))),
    )


async def test_the_launchers_key_signs_only_for_one_job(server: NatsServer) -> None:
    own = authority.job_signer(KEYS)
    everything = {
        "pub": {"allow": [">"]},
        "sub": {"allow": [">"]},
        "subs": -1,
        "data": -1,
        "payload": -1,
    }
    wide = forged(
        own.seed, "job.team-a.mine", issuer_account=own.account, tags=tags(), **everything
    )
    inside = forged(
        own.seed,
        "job.team-a.mine",
        issuer_account=authority.public_key(KEYS.inside),
        tags=tags(),
    )
    alone = forged(own.seed, "operator")

    for text in (wide, inside, alone):
        assert not await is_let_in(server.url, text)


@pytest.mark.parametrize("word", ["*", ">", "a.b", "a b", "", "$1", "a\r\nPUB"])
def test_job_credentials_accept_no_pattern_as_a_job_name(word: str) -> None:
    own = authority.job_signer(KEYS)
    with pytest.raises(ValueError, match="is not a word"):
        authority.job_credentials(own, "team-a", word, META, os.urandom(32), NOW_S)


def test_the_server_configuration_contains_no_secret() -> None:
    config = authority.server_config(KEYS, NOW_S)

    assert not [
        seed
        for seed in (KEYS.operator, KEYS.system, KEYS.inside, KEYS.outside, KEYS.jobs)
        if seed in config
    ]
    assert authority.public_key(KEYS.outside) in config and OUTSIDE not in config


def test_credentials_contain_the_user_name() -> None:
    assert authority.user_name(credentials(JOB)) == "job.team-a.mine"
    assert permissions.inbox_prefix(authority.user_name(credentials(OPERATOR))) == "_INBOX_operator"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        authority.BEGIN.format(authority.JWT),
        "-----BEGIN NATS USER JWT-----\na.b.c\n",
    ],
)
def test_a_text_without_credentials_is_refused(text: str) -> None:
    with pytest.raises(authority.BadCredentials):
        authority.user_name(text)
