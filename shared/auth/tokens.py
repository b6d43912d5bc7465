"""Keys and signed claims as nats-server knows them: nkeys and JWTs. Pure: chance and time are
arguments.

A claim is `header.claims.signature`, each in base64 without padding; the signature is ed25519 over
the first two.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Literal

import msgspec
import nkeys

Kind = Literal["operator", "account", "user"]
PREFIXES: dict[Kind, int] = {
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "user": nkeys.PREFIX_BYTE_USER,
}
CHANCE_BYTES = 32  # of an ed25519 seed
HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
VERSION = 2
BEGIN, END = "-----BEGIN {}-----", "------END {}------"
JWT, SEED = "NATS USER JWT", "USER NKEY SEED"


class BadCredentials(ValueError):
    """A text that holds no credentials."""


def seed(kind: Kind, chance: bytes) -> str:
    """The secret half of a key; `chance`: 32 random bytes."""
    return bytes(nkeys.encode_seed(chance, PREFIXES[kind])).decode()


def public(secret: str) -> str:
    """The public half."""
    return bytes(nkeys.from_seed(bytearray(secret.encode())).public_key).decode()


def signed(claims: dict[str, Any], kind: Kind, issued_s: float, secret: str) -> str:
    """`claims`: `name`, `sub` (a public key), what NATS wants to know, under `nats`; perhaps `exp`,
    their end (s).
    """
    nats = {**claims["nats"], "type": kind, "version": VERSION}
    body = {**claims, "nats": nats, "iat": int(issued_s), "iss": public(secret)}
    body["jti"] = (
        base64.b32encode(hashlib.sha256(msgspec.json.encode(body)).digest()).decode().rstrip("=")
    )
    text = f"{_text(msgspec.json.encode(HEADER))}.{_text(msgspec.json.encode(body))}"
    signature = nkeys.from_seed(bytearray(secret.encode())).sign(text.encode())
    return f"{text}.{_text(bytes(signature))}"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def credentials(token: str, secret: str) -> str:
    """What a NATS client takes as a user's credentials."""
    parts = ((JWT, token), (SEED, secret))
    return "".join(f"{BEGIN.format(name)}\n{text}\n{END.format(name)}\n\n" for name, text in parts)


def name_in(text: str) -> str:
    """The user's name in credentials; raises `BadCredentials`."""
    return _claims(text).name


def tags_in(text: str) -> list[str]:
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
        raise BadCredentials("these are no NATS credentials") from error
