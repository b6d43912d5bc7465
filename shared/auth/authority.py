"""Who is believed on the bus: an operator, two accounts, and the users of each. Pure: chance and
time are arguments.

nats-server believes what the operator's key has signed: the accounts (`server_config`), and through
them their users. The launcher has a key of its own, bound to a template: a user that it signs has
the permissions of the trainers of the job that is named in it, whatever else it claims. (The server
takes a pattern for a name, too, which `job` does not: so who has that key may speak as every job's
trainers, which he might name one by one as well, and as nobody else.)
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import msgspec

from shared.auth import permissions, tokens
from shared.auth.permissions import (
    INSIDE,
    JOB,
    OPERATOR,
    OUTSIDE,
    PAGE,
    SERVICES,
    SETUP,
    SUBMITTER,
    Permissions,
)

USERS = (*SERVICES, SETUP, PAGE, OPERATOR)
SYSTEM = "SYS"
UNLIMITED = -1
CONTROL_LINE = 64 * 1024
"""Bytes of a client's first line, which holds its credentials: a submitter's list of consumers
takes about 24 KiB.
"""
TOKEN = re.compile(r"[-\w=]+\Z", re.ASCII)
Chance = Callable[[int], bytes]
"""So many random bytes."""


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets from which all else is made; only who makes credentials needs them."""

    operator: str
    system: str
    inside: str
    outside: str
    jobs: str


class Signer(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher has: the key that signs for jobs, and the account for which it does."""

    seed: str
    account: str


def keys(chance: Chance) -> Keys:
    """New ones."""

    def account() -> str:
        return tokens.seed("account", chance(tokens.CHANCE_BYTES))

    operator = tokens.seed("operator", chance(tokens.CHANCE_BYTES))
    return Keys(
        operator=operator, system=account(), inside=account(), outside=account(), jobs=account()
    )


def signer(root: Keys) -> Signer:
    return Signer(seed=root.jobs, account=tokens.public(root.outside))


# ---------------------------------------------------------------- the server


def server_config(root: Keys, issued_s: float) -> str:
    """The part of nats-server's configuration that says whom it believes."""
    accounts = {
        root.system: _account(root, SYSTEM, root.system, {}, issued_s),
        root.inside: _account(root, INSIDE, root.inside, _inside(), issued_s),
        root.outside: _account(root, OUTSIDE, root.outside, _outside(root), issued_s),
    }
    preload = "".join(f"  {tokens.public(seed)}: {token}\n" for seed, token in accounts.items())
    claims = {"name": "weir", "sub": tokens.public(root.operator), "nats": {}}
    operator = tokens.signed(claims, "operator", issued_s, root.operator)
    system = tokens.public(root.system)
    lines = f"max_control_line: {CONTROL_LINE}\n"
    return f"{lines}operator: {operator}\nsystem_account: {system}\nresolver: MEMORY\nresolver_preload: {{\n{preload}}}\n"


def _account(root: Keys, name: str, seed: str, fields: dict[str, Any], issued_s: float) -> str:
    limits = dict.fromkeys(
        ("subs", "data", "payload", "imports", "exports", "conn", "leaf"), UNLIMITED
    )
    stored = dict.fromkeys(
        ("mem_storage", "disk_storage", "streams", "consumer"), UNLIMITED if name == INSIDE else 0
    )
    nats = {"limits": {**limits, **stored, "wildcards": True}, **fields}
    claims = {"name": name, "sub": tokens.public(seed), "nats": nats}
    return tokens.signed(claims, "account", issued_s, root.operator)


def _inside() -> dict[str, Any]:
    return {
        "exports": [
            {
                "name": subject,
                "subject": subject,
                "type": "service",
                "response_type": "Stream" if many else "Singleton",
            }
            for subject, many in permissions.imported().items()
        ]
    }


def _outside(root: Keys) -> dict[str, Any]:
    account = tokens.public(root.inside)
    scope = {"kind": "user_scope", "key": tokens.public(root.jobs), "role": JOB}
    return {
        "imports": [
            {
                "name": subject,
                "subject": subject,
                "local_subject": _local(subject),
                "account": account,
                "type": "service",
            }
            for subject in permissions.imported()
        ],
        "signing_keys": [{**scope, "template": _allowed(permissions.template(), OUTSIDE_LIMITS)}],
    }


def _local(subject: str) -> str:
    """What a subject inside is called outside; a wildcard by its number, as in the server's
    mappings.
    """
    tokens, number = permissions.outer(subject).split("."), itertools.count(1)
    return ".".join(f"${next(number)}" if token == "*" else token for token in tokens)


# ---------------------------------------------------------------- users


def user(root: Keys, name: str, chance: bytes, issued_s: float) -> str:
    """Credentials of a user inside."""
    return _credentials(root.inside, name, _allowed(permissions.of_user(name)), chance, issued_s)


def submitter(root: Keys, namespace: str, chance: bytes, issued_s: float) -> str:
    """Credentials of who may ask for jobs in a namespace."""
    allowed = _allowed(permissions.of_submitter(namespace), OUTSIDE_LIMITS)
    return _credentials(root.outside, f"{SUBMITTER}.{namespace}", allowed, chance, issued_s)


def job(
    by: Signer,
    namespace: str,
    name: str,
    meta: str,
    chance: bytes,
    issued_s: float,
    lasts_s: float = 0.0,
    reader_blocks: int = 1,
) -> str:
    """Credentials of one job's trainers; raises `ValueError` where a word is none that a subject
    may have.

    `meta`: the last token of the subject on which the job's program is described. `lasts_s`: when
    it has passed, the server lets nobody in with them, and puts out who is; 0: never.
    `reader_blocks`: how many blocks of names its consumers may have (`permissions.reader_blocks`).
    """
    values = (namespace, name, meta)
    if odd := [value for value in values if not TOKEN.match(value)]:
        raise ValueError(f"{odd[0]!r} is not a word of a subject")
    tags = [f"{tag}:{value}" for tag, value in zip(permissions.TAGS, values, strict=True)]
    tags += [f"{permissions.READERS_TAG}:{block}" for block in range(reader_blocks)]
    fields = {"tags": tags, "issuer_account": by.account}
    return _credentials(by.seed, f"{JOB}.{namespace}.{name}", fields, chance, issued_s, lasts_s)


def _credentials(
    issuer: str,
    name: str,
    fields: dict[str, Any],
    chance: bytes,
    issued_s: float,
    lasts_s: float = 0.0,
) -> str:
    secret = tokens.seed("user", chance)
    ends = {"exp": int(issued_s + lasts_s)} if lasts_s else {}
    claims = {"name": name, "sub": tokens.public(secret), "nats": fields, **ends}
    return tokens.credentials(tokens.signed(claims, "user", issued_s, issuer), secret)


NO_LIMITS = dict.fromkeys(("subs", "data", "payload"), UNLIMITED)
OUTSIDE_LIMITS = {"subs": 256, "data": UNLIMITED, "payload": 512 * 1024}
"""Subscriptions of a connection and bytes of a message, for credentials that are given away."""


def _allowed(given: Permissions, limits: dict[str, int] = NO_LIMITS) -> dict[str, Any]:
    denied = {"deny": given.denied} if given.denied else {}
    return {"pub": {"allow": given.publish, **denied}, "sub": {"allow": given.subscribe}, **limits}
