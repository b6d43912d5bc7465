"""`python cutting.py FOLDER`: take a snapshot, train on, write it; damage files and restore.

FOLDER may be a URL. It prints the results as JSON. The servers run in this process.
"""

import json
import sys

import tensorflow as tf

from services.trainer.worker import (
    checkpoint_files,
    input_pipeline,
    program_data,
    remote_worker,
    shard_ledger,
    training_step,
)
from services.trainer.worker.checkpoint import Checkpoint
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.watchdog import Watchdog
from shared.checkpoints import CommitMark
from tests.trainer.programs.servers import hashes, module_of, start_servers

TO = sys.argv[1]
gfile = tf.io.gfile


def spoil(name, where):
    """Flip a bit of a file. A negative `where` counts from the end."""
    with gfile.GFile(name, "rb") as file:
        body = bytearray(file.read())
    body[where] ^= 1
    gfile.remove(name)  # some file systems append
    with gfile.GFile(name, "wb") as file:
        file.write(bytes(body))


def refused(path):
    try:
        whole.read(path)
    except tf.errors.OpError as error:
        return type(error).__name__
    return ""


module = module_of("counting.py")
strategy, servers = start_servers(2)
built = training_step.build_model(module, strategy, 2)
whole = Checkpoint(built)
input_pipeline.serve_portions(module, Watchdog(module.__file__, 60.0, 60.0))
plan = input_pipeline.DataPlan(ExampleOrder(module.examples()), 16)
spec = program_data.element_spec(module, built.model)
(worker,) = remote_worker.trace_workers(module, strategy, built, plan, spec, 1)
ledger = shard_ledger.new_ledger(module.examples(), 3)


def trained(ledger, steps):
    for _ in range(steps):
        ledger, shard = shard_ledger.take_shard(ledger, 16)
        worker.push(plan.portion((shard,)))
        worker.fetch(2, 0)  # its pass and the mark of its end
        worker.update(1, 1)
        ledger = shard_ledger.mark_applied(ledger, shard)
    return ledger


said = {"largest": whole.largest_cut_bytes}
ledger = trained(ledger, 3)
whole.cut(ledger)
said["cut"] = hashes(built)
later = trained(ledger, 3)
said["later"] = hashes(built)
first, second = f"{TO}/gen-1/ckpt-3", f"{TO}/gen-1/ckpt-6"
whole.write_cut(first)
sealed = checkpoint_files.seal_checkpoint(first)
said["bytes"] = sealed.bytes
whole.write(second, later)
said["applied"] = [whole.read(second).applied, whole.read(first).applied]
said["restored"] = hashes(built)
said["sound"] = [
    checkpoint_files.checkpoint_fault(first, sealed.digest),
    checkpoint_files.checkpoint_fault(first, ""),
    refused(first),
]

data = next(name for name in gfile.listdir(f"{TO}/gen-1") if name.startswith("ckpt-6.data-00000"))
of_second = checkpoint_files.seal_checkpoint(second).digest
spoil(f"{TO}/gen-1/{data}", 5)
trained(ledger, 1)
before = hashes(built)
said["bit"] = [checkpoint_files.checkpoint_fault(second, of_second), refused(second)]
said["kept"] = hashes(built) == before != said["later"]
spoil(f"{second}.index", -60)
said["index"] = checkpoint_files.checkpoint_fault(second, of_second)
said["other"] = checkpoint_files.checkpoint_fault(first, of_second)
gfile.remove(f"{second}.index")
said["missing"] = checkpoint_files.checkpoint_fault(second, of_second)

with gfile.GFile(f"{TO}/file", "wb") as file:
    file.write(b"no folder")
try:
    whole.write(f"{TO}/file/ckpt-9", later)
    said["unwritten"] = ""
except tf.errors.OpError as error:
    said["unwritten"] = type(error).__name__


def rehearse(folder, beside):
    """Return the number of errors, and whether values changed inside, and are as before after it."""
    errors, before = [], hashes(built)
    with whole.rehearse(folder, errors.append, beside):
        trained(ledger, 1)
        inside = hashes(built)
    return [len(errors), inside != before, hashes(built) == before]


said["rehearsed"] = [rehearse(f"{TO}/gen-1", beside) for beside in (False, True)]
said["rehearsed unwritten"] = [rehearse(f"{TO}/file", beside) for beside in (False, True)]
whole.write(f"{TO}/gen-2/ckpt-9", later)
whole.write(f"{TO}/gen-2/ckpt-10", later)
named = checkpoint_files.seal_checkpoint(f"{TO}/gen-2/ckpt-9").digest
checkpoint_files.mark_committed(f"{TO}/gen-2/ckpt-9", CommitMark(digest=named, samples=144))
checkpoint_files.mark_committed(f"{TO}/gen-2/ckpt-9", CommitMark(digest="another"))
checkpoint_files.mark_committed(f"{TO}/gen-2/ckpt-8", CommitMark(digest="of one that is gone"))
said["marked"] = checkpoint_files.committed_digests(TO) == {f"{TO}/gen-2/ckpt-9": named}
said["marks"] = [
    checkpoint_files.checkpoint_fault(f"{TO}/gen-2/ckpt-9", named),
    gfile.exists(f"{TO}/gen-2/ckpt-8.committed"),
]
with gfile.GFile(f"{TO}/gen-2/ckpt-10.committed", "wb") as file:
    file.write(b'{"digest": "sha')
said["torn mark"] = len(checkpoint_files.committed_digests(TO))
checkpoint_files.prune_checkpoints(TO, [f"{TO}/gen-2/ckpt-9"])
said["left"] = sorted(name.rstrip("/") for name in gfile.listdir(TO))
said["steps"] = sorted({name.split(".")[0] for name in gfile.listdir(f"{TO}/gen-2")})
checkpoint_files.remove_checkpoint(f"{TO}/gen-2/ckpt-10")
said["removed"] = sorted({name.split(".")[0] for name in gfile.listdir(f"{TO}/gen-2")})
print(json.dumps(said), flush=True)
