"""What kept a checkpoint from being written, for people: cause and remedy. Pure.

By the names of TensorFlow's errors and what file systems put into their texts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST = 500  # characters of what the file system says
NOISE = re.compile(
    r"\{\{function_node [^}]*\}\} ?|\{\{node [^}]*\}\} ?|\d+ root error\(s\) found\.\s+\(0\) [A-Z_]+:\s+"
)
REST = re.compile(r"\s+\[\[|\n\s*\[\[|\nAdditional GRPC error | \[Op:")


class Trouble(NamedTuple):
    cause: str
    remedy: str


KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"no space left|disk quota|ResourceExhausted",
        "the checkpoint folder is full",
        "make room there, or keep fewer checkpoints (checkpoint.keep)",
    ),
    (
        r"read-only|permission denied|PermissionDenied|Unauthenticated",
        "the checkpoint folder cannot be written",
        "let the job's pods write there (volume, owner, or the store's credentials)",
    ),
    (
        r"no such|not a directory|not found|NotFound|FailedPrecondition|AlreadyExists",
        "the checkpoint folder is not there, or is none",
        "see that it exists, and that every node of the job mounts it",
    ),
    (
        r"input/output error|stale file handle",
        "the disk under the checkpoint folder fails",
        "look at its volume",
    ),
    (
        r"Unavailable|DeadlineExceeded|Aborted",
        "the checkpoint store does not answer",
        "look at the store and the way to it",
    ),
)


def trouble(kind: str, text: str) -> Trouble:
    """`kind`: the error's class; `text`: what it says."""
    told = said(text)
    for pattern, cause, remedy in KNOWN:
        if re.search(pattern, f"{kind} {told}", re.IGNORECASE):
            return Trouble(f"{cause} ({told})", remedy)
    return Trouble(f"{kind}: {told}", "see what its file system says")


def said(text: str) -> str:
    """What an error of TensorFlow's says, without where in a graph it did so."""
    return REST.split(NOISE.sub("", text))[0].strip()[:LONGEST]
