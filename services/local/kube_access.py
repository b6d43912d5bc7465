"""Who may use the API of the cluster stand-in: holders of a token that only its owner's files
contain. Edge.

The API runs commands as its owner for anybody who may create pods, and every local user reaches its
port. So each request carries a bearer token, random for each folder and kept for the next start.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from shared.auth.keyring import write_private

TOKEN, KUBECONFIG = "cluster.token", "kubeconfig"
TOKEN_BYTES = 32
NAME = "weir-up"


def token_file(credentials: Path) -> Path:
    """Return the file with the token; write one at random if it is not there yet."""
    path = credentials / TOKEN
    if not path.exists():
        write_private(path, secrets.token_urlsafe(TOKEN_BYTES))
    return path


def write_kubeconfig(credentials: Path, url: str) -> Path:
    """Write a kubeconfig for kubectl and for `weir logs`; return its path. JSON is YAML.

    The token is in the server's URL, too: over http kubectl sends no bearer token.
    """
    token = token_file(credentials).read_text()
    scheme, _, address = url.partition("://")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {"server": f"{scheme}://{NAME}:{token}@{address}"}}],
        "users": [{"name": NAME, "user": {"token": token}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    }
    path = credentials / KUBECONFIG
    write_private(path, json.dumps(config, indent=1))
    return path
