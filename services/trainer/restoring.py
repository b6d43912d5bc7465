"""From which checkpoint a generation goes on: the newest that is whole. Edge.

What is torn or missing is said and skipped, and the next older one that the ledger names is tried.
Model and ledger of examples come from the same one, so whichever it is, every example still counts
once; only work is done again.

A bus that lost its last minute has an old ledger: what it names may be gone, and newer ones lie in
the job's folder. A mark beside each says that the ledger has named it once
(`shared/checkpoints.py`); those come first.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

import msgspec
import structlog
import tensorflow as tf

from services.trainer import disk, files
from services.trainer.checkpoint import Checkpoint
from services.trainer.orders import Begin, Line, Skipped
from services.trainer.shards import Ledger
from shared.checkpoints import restore_candidates

logger = structlog.get_logger()


def restored(
    checkpoint: Checkpoint,
    order: Begin,
    folder: str,
    say: Callable[[Line], None],
    lost: Callable[[], list[str]],
) -> Ledger | None:
    """None where there is none, or none is left: then everything is as it was. Raises where one of
    the ps is `lost`.
    """
    marked = files.committed_in(folder)
    digests, paths = {**marked, **order.digests}, restore_candidates(order.paths, marked)
    if paths[:1] != order.paths[:1]:
        logger.warning("LedgerWasSetBack", newest=paths[0], named=order.paths)
    for path, instead in zip_longest(paths, paths[1:], fillvalue=""):
        why = files.wrong(path, digests.get(path, ""))
        if not why:
            try:
                return checkpoint.read(path)
            except (tf.errors.OpError, msgspec.DecodeError) as error:
                if lost():
                    raise
                why = f"it is torn: {disk.said(str(error))}"
        say(Skipped(path=path, cause=why, instead=instead))
    return None
