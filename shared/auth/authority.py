"""NATS users and credentials: an operator, two accounts, and the users of each.

nats-server trusts what the operator's key has signed: the accounts (`server_config`), and through
them their users. The launcher has a key of its own, bound to a template: a user that it signs has
the permissions of the trainers of one job, whatever other permissions its claims contain. (The
server accepts a pattern as a job's name, which `job_credentials` refuses. So the owner of that key
can act as the trainers of all jobs, and as no other user. The owner could also sign credentials for
each of these jobs.)

Keys are nkeys. A claim is a JWT, `header.claims.signature`, each part in base64 without padding;
the signature is ed25519 over the first two. Random bytes and times are arguments.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import nkeys

from shared.auth import permissions
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

Kind = Literal["operator", "account", "user"]
PREFIXES: dict[Kind, int] = {
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "user": nkeys.PREFIX_BYTE_USER,
}
SEED_BYTES = 32  # of an ed25519 seed
HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
VERSION = 2
BEGIN, END = "-----BEGIN {}-----", "------END {}------"
JWT, SEED = "NATS USER JWT", "USER NKEY SEED"


class BadCredentials(ValueError):
    """The text is not credentials."""


def create_seed(kind: Kind, chance: bytes) -> str:
    """Return a new private key (a seed). `chance`: 32 random bytes."""
    return bytes(nkeys.encode_seed(chance, PREFIXES[kind])).decode()


def public_key(secret: str) -> str:
    """Return the public key of a private key."""
    return bytes(nkeys.from_seed(bytearray(secret.encode())).public_key).decode()


def sign_claims(claims: dict[str, Any], kind: Kind, issued_s: float, secret: str) -> str:
    """Return a signed token. `claims`: `name`, `sub` (a public key), `nats` (the claims of NATS),
    and perhaps `exp` (the end, seconds since 1970).
    """
    nats = {**claims["nats"], "type": kind, "version": VERSION}
    body = {**claims, "nats": nats, "iat": int(issued_s), "iss": public_key(secret)}
    body["jti"] = (
        base64.b32encode(hashlib.sha256(msgspec.json.encode(body)).digest()).decode().rstrip("=")
    )
    text = f"{_base64(msgspec.json.encode(HEADER))}.{_base64(msgspec.json.encode(body))}"
    signature = nkeys.from_seed(bytearray(secret.encode())).sign(text.encode())
    return f"{text}.{_base64(bytes(signature))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def format_credentials(token: str, secret: str) -> str:
    """Return a user's credentials as a NATS client reads them."""
    parts = ((JWT, token), (SEED, secret))
    return "".join(f"{BEGIN.format(name)}\n{text}\n{END.format(name)}\n\n" for name, text in parts)


def user_name(text: str) -> str:
    """Return the user's name in credentials. Raises `BadCredentials`."""
    return _claims(text).name


def user_tags(text: str) -> list[str]:
    """Return the tags in credentials, each `name:value`; raises `BadCredentials`."""
    return _claims(text).nats.tags


class _Nats(msgspec.Struct):
    tags: list[str] = []


class _Claims(msgspec.Struct):
    """The claims of a user that are read here."""

    name: str
    nats: _Nats = msgspec.field(default_factory=_Nats)


def _claims(text: str) -> _Claims:
    try:
        token = text.split(BEGIN.format(JWT))[1].split()[0]
        claims = token.split(".")[1]
        body = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
        return msgspec.json.decode(body, type=_Claims)
    except (IndexError, ValueError) as error:
        raise BadCredentials("not NATS credentials") from error


USERS = (*SERVICES, SETUP, PAGE, OPERATOR)
SYSTEM = "SYS"
UNLIMITED = -1
CONTROL_LINE = 64 * 1024
"""The longest first line of a client in bytes. It holds the client's credentials: a submitter's
list of consumers takes about 24 KiB.
"""
TOKEN = re.compile(r"[-\w=]+\Z", re.ASCII)
RandomBytes = Callable[[int], bytes]
"""A function that returns a number of random bytes."""


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets of all credentials."""

    operator: str
    system: str
    inside: str
    outside: str
    jobs: str


class Signer(msgspec.Struct, frozen=True, kw_only=True):
    """The launcher's key for credentials of jobs, and the account of these credentials."""

    seed: str
    account: str


def create_keys(chance: RandomBytes) -> Keys:
    """Return new keys."""

    def account() -> str:
        return create_seed("account", chance(SEED_BYTES))

    operator = create_seed("operator", chance(SEED_BYTES))
    return Keys(
        operator=operator, system=account(), inside=account(), outside=account(), jobs=account()
    )


def job_signer(root: Keys) -> Signer:
    return Signer(seed=root.jobs, account=public_key(root.outside))


# ---------------------------------------------------------------- the server


def server_config(root: Keys, issued_s: float) -> str:
    """Return the part of nats-server's configuration with operator and accounts."""
    accounts = {
        root.system: _account(root, SYSTEM, root.system, {}, issued_s),
        root.inside: _account(root, INSIDE, root.inside, _inside_exports(), issued_s),
        root.outside: _account(root, OUTSIDE, root.outside, _outside_imports(root), issued_s),
    }
    preload = "".join(f"  {public_key(seed)}: {token}\n" for seed, token in accounts.items())
    claims = {"name": "weir", "sub": public_key(root.operator), "nats": {}}
    operator = sign_claims(claims, "operator", issued_s, root.operator)
    system = public_key(root.system)
    lines = f"max_control_line: {CONTROL_LINE}\n"
    return (
        f"{lines}operator: {operator}\nsystem_account: {system}\nresolver:"
        f" MEMORY\nresolver_preload: {{\n{preload}}}\n"
    )


def _account(root: Keys, name: str, seed: str, fields: dict[str, Any], issued_s: float) -> str:
    limits = dict.fromkeys(
        ("subs", "data", "payload", "imports", "exports", "conn", "leaf"), UNLIMITED
    )
    stored = dict.fromkeys(
        ("mem_storage", "disk_storage", "streams", "consumer"), UNLIMITED if name == INSIDE else 0
    )
    nats = {"limits": {**limits, **stored, "wildcards": True}, **fields}
    claims = {"name": name, "sub": public_key(seed), "nats": nats}
    return sign_claims(claims, "account", issued_s, root.operator)


def _inside_exports() -> dict[str, Any]:
    return {
        "exports": [
            {
                "name": subject,
                "subject": subject,
                "type": "service",
                "response_type": "Stream" if many else "Singleton",
            }
            for subject, many in permissions.imported_subjects().items()
        ]
    }


def _outside_imports(root: Keys) -> dict[str, Any]:
    account = public_key(root.inside)
    scope = {"kind": "user_scope", "key": public_key(root.jobs), "role": JOB}
    return {
        "imports": [
            {
                "name": subject,
                "subject": subject,
                "local_subject": _numbered_subject(subject),
                "account": account,
                "type": "service",
            }
            for subject in permissions.imported_subjects()
        ],
        "signing_keys": [
            {**scope, "template": _user_limits(permissions.job_template(), OUTSIDE_LIMITS)}
        ],
    }


def _numbered_subject(subject: str) -> str:
    """Return the subject outside of a subject inside, with numbered wildcards as in the server's
    mappings.
    """
    tokens, number = permissions.outside_subject(subject).split("."), itertools.count(1)
    return ".".join(f"${next(number)}" if token == "*" else token for token in tokens)


# ---------------------------------------------------------------- users


def user_credentials(root: Keys, name: str, chance: bytes, issued_s: float) -> str:
    """Return credentials of a user inside."""
    return _credentials(
        root.inside, name, _user_limits(permissions.user_permissions(name)), chance, issued_s
    )


def submitter_credentials(root: Keys, namespace: str, chance: bytes, issued_s: float) -> str:
    """Return credentials of a submitter: they may request jobs in a namespace."""
    allowed = _user_limits(permissions.submitter_permissions(namespace), OUTSIDE_LIMITS)
    return _credentials(root.outside, f"{SUBMITTER}.{namespace}", allowed, chance, issued_s)


def job_credentials(
    by: Signer,
    namespace: str,
    name: str,
    meta: str,
    chance: bytes,
    issued_s: float,
    lasts_s: float = 0.0,
    reader_blocks: int = 1,
) -> str:
    """Return credentials of one job's trainers. Raises `ValueError` for a name that cannot be a
    token of a subject.

    `meta`: the last token of the subject with the description of the job's program. `lasts_s`:
    after this time the server closes their connections; 0: never. `reader_blocks`: the number of
    blocks of names for its consumers (`permissions.reader_blocks`).
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
    secret = create_seed("user", chance)
    ends = {"exp": int(issued_s + lasts_s)} if lasts_s else {}
    claims = {"name": name, "sub": public_key(secret), "nats": fields, **ends}
    return format_credentials(sign_claims(claims, "user", issued_s, issuer), secret)


NO_LIMITS = dict.fromkeys(("subs", "data", "payload"), UNLIMITED)
OUTSIDE_LIMITS = {"subs": 256, "data": UNLIMITED, "payload": 512 * 1024}
"""Subscriptions of a connection and bytes of a message, for credentials of users outside."""


def _user_limits(given: Permissions, limits: dict[str, int] = NO_LIMITS) -> dict[str, Any]:
    denied = {"deny": given.denied} if given.denied else {}
    return {"pub": {"allow": given.publish, **denied}, "sub": {"allow": given.subscribe}, **limits}
