"""`python tables_damaged.py FOLDER`: bases that end between a cut and its write, damaged files, and
the removal of old ones. It prints as JSON what was restored and which files are left.
"""

import json
import sys
from pathlib import Path
from threading import Timer

import tensorflow as tf
from tensorflow.python.training import py_checkpoint_reader

from services.trainer.protocol import Begin
from services.trainer.worker import checkpoint
from services.trainer.worker.checkpoint import restore_newest
from services.trainer.worker.checkpoint_files import (
    files_of_checkpoint,
    mark_committed,
    prune_checkpoints,
    remove_temporary_files,
    seal_checkpoint,
)
from services.trainer.worker.failure_cause import StorageUnavailable
from services.trainer.worker.table_transfer import ROWS
from shared.checkpoints import CommitMark
from tests.trainer.file_size import file_size_limit
from tests.trainer.programs.contents import hashes
from tests.trainer.programs.table_training import TableTraining

FOLDER = sys.argv[1]
said, contents = {}, {}


def names(paths):
    return [path.rpartition("/")[2] for path in paths]


def save():
    path = job.save()
    contents[path] = hashes(job.built)
    return path


def is_restored(path):
    """Read a checkpoint. Return whether all variables are as they were when it was cut."""
    job.whole.read(path)
    return hashes(job.built) == contents[path]


def spoil(path, tensor):
    """Change a byte of a tensor in a checkpoint's files."""
    rows = py_checkpoint_reader.NewCheckpointReader(path).get_tensor(tensor).tobytes()
    for file in Path(path).parent.glob(f"{Path(path).name}.data-*"):
        at = file.read_bytes().find(rows)
        if at >= 0:
            spoil_byte(file, at)
            return
    raise AssertionError(f"{tensor} is not in {path}")


def spoil_byte(file, at):
    body = bytearray(file.read_bytes())
    body[at] ^= 255
    file.write_bytes(body)


def restore_newest_of(*paths):
    """Return the name of the checkpoint that was restored, whether it is as it was cut, and the
    names of those that were skipped.
    """
    skipped = []
    digests = {path: digest_of[path] for path in paths}
    found = restore_newest(
        job.whole, Begin(paths=paths, digests=digests), FOLDER, skipped.append, list
    )
    if found is None:
        return None, hashes(job.built) == initial, names([each.path for each in skipped])
    (path,) = [path for path in step_of if int(job.built.counters.step) == step_of[path]]
    same = hashes(job.built) == contents[path]
    return names([path])[0], same, names([each.path for each in skipped])


job = TableTraining(2, f"{FOLDER}/gen-1")
initial = hashes(job.built)
job.trace(FOLDER)
job.write_base()
job.train()
first = save()
job.train()
second = save()
job.train()

# A base with rows that are newer than the cut is complete before the cut is written.
contents[third := f"{job.folder}/ckpt-{job.step}"] = hashes(job.built)
job.whole.cut(job.ledger)
job.train()
job.write_base()
job.whole.write_cut(third)
job.whole.on_saved(third, seal_checkpoint(third).digest)
job.train()
fourth = save()
saved = (fourth, third, second, first)
step_of = {path: int(path.rpartition("-")[2]) for path in saved}
digest_of = {path: seal_checkpoint(path).digest for path in saved}
said["files"] = {
    names([path])[0]: names([each.path for each in files_of_checkpoint(path, "")]) for path in saved
}
said["restored"] = [is_restored(path) for path in (second, third, first, fourth)]

# The last checkpoint with an earlier base stays.
job.train()
fifth = save()
job.write_base()
job.train()
sixth = save()
job.train()
seventh = save()
for path in (fifth, sixth, seventh):
    step_of[path] = int(path.rpartition("-")[2])
    digest_of[path] = seal_checkpoint(path).digest
for path, digest in digest_of.items():
    mark_committed(path, CommitMark(digest=digest))
prune_checkpoints(FOLDER, [seventh, sixth])
said["kept"] = sorted({file.name.split(".")[0] for file in Path(job.folder).iterdir()})

# A storage that does not answer: a symbolic link to itself takes the place of the folder.
place, aside = Path(job.folder), Path(FOLDER) / "aside"


def hide():
    place.rename(aside)
    place.symlink_to(place.name)


def show():
    place.unlink()
    aside.rename(place)


before = sorted(place.iterdir())
hide()
prune_checkpoints(FOLDER, [f"{FOLDER}/gen-2/ckpt-99"])
checkpoint.STORAGE_PATIENCE_S, checkpoint.STORAGE_RETRY_S = 0.2, 0.1
try:
    said["unreadable"] = restore_newest_of(seventh, sixth)
except StorageUnavailable as error:
    said["unreadable"] = str(error)
checkpoint.STORAGE_PATIENCE_S = 60.0
timer = Timer(0.5, show)
timer.start()
said["readable again"] = restore_newest_of(seventh, sixth)
timer.join()
said["newest"] = names([seventh])[0]
said["nothing removed"] = sorted(place.iterdir()) == before

# Some rows of a damaged checkpoint are set before the damage is found.
keys = [each for group in job.tables.transfer.groups for each in group.keys]
said["restored"].append(is_restored(fifth))
spoil(seventh, f"{ROWS}/1/{keys[-1]}")
said["newest damaged"] = restore_newest_of(seventh, sixth)
base = f"{FOLDER}/{files_of_checkpoint(sixth, '')[0].path}"
largest = max(Path(base).parent.glob(f"{Path(base).name}.data-*"), key=lambda f: f.stat().st_size)
spoil_byte(largest, largest.stat().st_size // 2)
job.tables.forget_files()
said["base damaged"] = restore_newest_of(seventh, sixth)  # the ledger names no older one

# A ps lacks the memory for the rows that have changed: all are written.
job.train()
contents[last := f"{job.folder}/ckpt-9"] = hashes(job.built)
job.whole.cut(job.ledger, most_bytes=0)
said["is delta"] = job.whole.is_written_beside
job.whole.write_cut(last)
job.whole.on_saved(last, seal_checkpoint(last).digest)
said["whole"] = names([each.path for each in files_of_checkpoint(last, "")])
said["is late base used"] = job.tables.adopt_base("base-8", "sha256-0", ())
job.tables.forget_files()
said["restored"].append(is_restored(last))

# All rows are written at the step of a delta, which stays until they are complete.
job.train()
delta = save()
contents[delta] = hashes(job.built)
step_of[delta], digest_of[delta] = int(delta.rpartition("-")[2]), seal_checkpoint(delta).digest
job.whole.cut(job.ledger, most_bytes=-1)
said["full"] = ""
with file_size_limit(1024):
    try:
        job.whole.write_cut(delta)
    except tf.errors.OpError as error:
        said["full"] = error.message
remove_temporary_files(delta)
said["delta after a full disk"] = is_restored(delta)
job.whole.cut(job.ledger, most_bytes=-1)
job.whole.write_cut(delta)
said["in its place"] = names([each.path for each in files_of_checkpoint(delta, "")])
job.tables.forget_files()
digest_of[delta] = seal_checkpoint(delta).digest
said["restored"].append(is_restored(delta))
print(json.dumps(said), flush=True)
