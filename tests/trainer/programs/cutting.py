"""`python cutting.py FOLDER`: cut, train on, write; spoil files and restore. FOLDER may be a URL.

Prints, as JSON, what was found. Servers live in this process.
"""

import json
import sys

import tensorflow as tf

from services.trainer import build, feed, files, passes, shards, step
from services.trainer.checkpoint import Checkpoint
from services.trainer.watchdog import Watchdog
from shared.checkpoints import CommitMark
from tests.trainer.programs.servers import hashes, module_of, started

TO = sys.argv[1]
gfile = tf.io.gfile


def spoil(name, where):
    """Turn a bit over in a file; where: from its end, if negative."""
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
strategy, servers = started(2)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
built = build.build(module, strategy, 2)
whole = Checkpoint(built)
feed.serve(module, Watchdog(module.__file__, 60.0, 60.0))
train = step.traced(module, strategy, built)
ledger = shards.fresh(module.examples(), 3)


def trained(ledger, steps):
    for _ in range(steps):
        ledger, shard = shards.take(ledger, 16)
        at = step.arguments(passes.split_passes([shards.examples_of(ledger, shard)], None))
        coordinator.schedule(train, args=at).fetch()
        ledger = shards.done(ledger, shard)
    return ledger


said = {"largest": whole.largest}
ledger = trained(ledger, 3)
whole.cut(ledger)
said["cut"] = hashes(built)
later = trained(ledger, 3)
said["later"] = hashes(built)
first, second = f"{TO}/gen-1/ckpt-3", f"{TO}/gen-1/ckpt-6"
whole.write_cut(first)
sealed = files.seal(first)
said["bytes"] = sealed.bytes
whole.write(second, later)
said["applied"] = [whole.read(second).applied, whole.read(first).applied]
said["restored"] = hashes(built)
said["sound"] = [files.wrong(first, sealed.digest), files.wrong(first, ""), refused(first)]

data = next(name for name in gfile.listdir(f"{TO}/gen-1") if name.startswith("ckpt-6.data-00000"))
of_second = files.seal(second).digest
spoil(f"{TO}/gen-1/{data}", 5)
trained(ledger, 1)
before = hashes(built)
said["bit"] = [files.wrong(second, of_second), refused(second)]
said["kept"] = hashes(built) == before != said["later"]
spoil(f"{second}.index", -60)
said["index"] = files.wrong(second, of_second)
said["other"] = files.wrong(first, of_second)
gfile.remove(f"{second}.index")
said["missing"] = files.wrong(second, of_second)

with gfile.GFile(f"{TO}/file", "wb") as file:
    file.write(b"no folder")
try:
    whole.write(f"{TO}/file/ckpt-9", later)
    said["unwritten"] = ""
except tf.errors.OpError as error:
    said["unwritten"] = type(error).__name__
whole.write(f"{TO}/gen-2/ckpt-9", later)
whole.write(f"{TO}/gen-2/ckpt-10", later)
named = files.seal(f"{TO}/gen-2/ckpt-9").digest
files.mark_committed(f"{TO}/gen-2/ckpt-9", CommitMark(digest=named, samples=144))
files.mark_committed(f"{TO}/gen-2/ckpt-9", CommitMark(digest="another"))
files.mark_committed(f"{TO}/gen-2/ckpt-8", CommitMark(digest="of one that is gone"))
said["marked"] = files.committed_in(TO) == {f"{TO}/gen-2/ckpt-9": named}
said["marks"] = [
    files.wrong(f"{TO}/gen-2/ckpt-9", named),
    gfile.exists(f"{TO}/gen-2/ckpt-8.committed"),
]
with gfile.GFile(f"{TO}/gen-2/ckpt-10.committed", "wb") as file:
    file.write(b'{"digest": "sha')
said["torn mark"] = len(files.committed_in(TO))
files.prune(TO, [f"{TO}/gen-2/ckpt-9"])
said["left"] = sorted(name.rstrip("/") for name in gfile.listdir(TO))
said["steps"] = sorted({name.split(".")[0] for name in gfile.listdir(f"{TO}/gen-2")})
files.remove(f"{TO}/gen-2/ckpt-10")
said["removed"] = sorted({name.split(".")[0] for name in gfile.listdir(f"{TO}/gen-2")})
print(json.dumps(said), flush=True)
