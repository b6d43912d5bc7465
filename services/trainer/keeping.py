"""What a chief keeps beside its checkpoints once the ledger has named them
(`shared/checkpoints.py`). Edge.
"""

from __future__ import annotations

import threading

import msgspec
import structlog
import tensorflow as tf

from services.trainer import disk, files
from services.trainer.orders import Assignment, Kept
from shared.checkpoints import CommitMark

logger = structlog.get_logger()


def keep(assignment: Assignment, named: Kept, total_samples: int) -> None:
    """Mark the checkpoints that the ledger names, and remove those that it names no more."""
    mark(assignment, named, total_samples)
    files.prune(assignment.checkpoint_dir, named.paths)


def mark(assignment: Assignment, named: Kept, total_samples: int) -> None:
    """Mark the checkpoints that the ledger names; keep the job's request and program with them.

    What cannot be written is written at the next time.
    """
    try:
        request = msgspec.json.encode(assignment.request)
        files.keep_job(assignment.checkpoint_dir, request, assignment.program)
        for path in named.paths:
            if digest := named.digests.get(path):
                samples = named.samples if path == named.paths[0] else None
                files.mark_committed(
                    path, CommitMark(digest=digest, samples=samples, total_samples=total_samples)
                )
    except tf.errors.OpError as error:
        logger.warning("CheckpointNotMarked", error=disk.said(error.message))


def keep_beside(assignment: Assignment, named: Kept, total_samples: int) -> None:
    """Do as `keep`, while training goes on."""
    threading.Thread(
        target=keep, args=(assignment, named, total_samples), name="keeping", daemon=True
    ).start()


def mark_beside(assignment: Assignment, named: Kept, total_samples: int) -> None:
    """Do as `mark`, while training goes on."""
    threading.Thread(
        target=mark, args=(assignment, named, total_samples), name="marking", daemon=True
    ).start()
