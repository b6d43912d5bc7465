"""Which checkpoints stay: the newest few that the ledger has named; everything else of the job goes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path


def prune(folder: Path, kept: Sequence[str]) -> None:
    """Remove every checkpoint under `folder` that is not among `kept` paths, and the folders that this empties."""
    for index in folder.glob("gen-*/ckpt-*.index"):
        if str(index.with_suffix("")) not in kept:
            for part in index.parent.glob(f"{index.stem}.*"):
                part.unlink(missing_ok=True)
    for generation in folder.glob("gen-*"):
        with contextlib.suppress(OSError):
            generation.rmdir()
