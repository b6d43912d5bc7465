"""The checkpoint folder of a job: no two jobs ever have the same one. Pure.

Law: the folder names the namespace, the job, its uid and the time of its acceptance. A uid is the
sequence number of a stream, so it repeats after the bus was lost; together with the time it does
not. Namespaces are the first part, so that no request can name a folder of another namespace.
"""

from __future__ import annotations

import posixpath
import re
from datetime import UTC, datetime

from shared.messages import JobRequested

EXAMPLE = "digits-12-20261123t043512"
STAMP = "%Y%m%dt%H%M%S"
OWN_FOLDER = re.compile(r"[a-z][-a-z0-9]*-\d+(-\d{8}t\d{6})?")
"""The last part of a job's folder. Version 0.1.0 wrote no time."""


def new_folder(request: JobRequested, uid: int, accepted_s: float) -> str:
    """Return the folder of a job that is accepted now, relative to the cluster's folder or to the
    URL of its path.
    """
    path = request.checkpoint.path or ""
    below = "" if "://" in path else path
    stamp = datetime.fromtimestamp(accepted_s, UTC).strftime(STAMP)
    return posixpath.join(request.namespace, below, f"{request.job}-{uid}-{stamp}")


def location(request: JobRequested, uid: int, folder: str) -> str:
    """Return where a job's checkpoints are: a path relative to the cluster's folder, or a URL.

    `folder`: as the job was accepted with; empty for one that version 0.1.0 accepted, which used
    the path itself.
    """
    path = request.checkpoint.path or ""
    if not folder:
        return path or f"{request.namespace}/{request.job}-{uid}"
    return posixpath.join(path, folder) if "://" in path else folder


def is_in_namespace(folder: str, namespace: str) -> bool:
    """Return whether a path or URL names a job's folder in this namespace."""
    _, _, below = folder.rpartition("://")
    parts = below.strip("/").split("/")
    if not OWN_FOLDER.fullmatch(parts[-1]):
        return False
    if "://" in folder:
        return len(parts) > 2 and parts[-2] == namespace
    return len(parts) > 1 and parts[0] == namespace
