"""Training programs in the object store: kept once, by digest. Edge."""

from __future__ import annotations

import hashlib
from pathlib import Path

from services.cli.trouble import FAILED, WRONG_USE, Trouble
from shared import programs
from shared.bus import Bus
from shared.messages import LARGEST_PROGRAM

MIB = 1 << 20


def read(path: Path) -> bytes:
    """The program's text; raises `Trouble` for what cannot be read or is too large to travel."""
    try:
        size = path.stat().st_size
        if size <= LARGEST_PROGRAM:
            return path.read_bytes()
    except OSError as error:
        hint = ONE_FILE if isinstance(error, IsADirectoryError) else RELATIVE
        raise Trouble(f"cannot read the program {path}: {error.strerror}; {hint}", WRONG_USE) from error
    raise Trouble(
        f"the program {path} has {size / MIB:.1f} MiB; at most {LARGEST_PROGRAM // MIB} MiB travel. {ADVICE}", FAILED
    )


ONE_FILE = "a program is one file of Python"
RELATIVE = "`program:` is relative to the job's file"
ADVICE = "Data belongs on a volume, not in the program."


def digest(body: bytes) -> str:
    return f"sha256-{hashlib.sha256(body).hexdigest()}"


async def keep(bus: Bus, body: bytes) -> str:
    """Upload, unless it is there; returns the digest."""
    name = digest(body)
    await programs.keep(bus, name, body)
    return name
