"""`python across.py PS FROM TO`: restore FROM (or "-") under PS parameter servers, train a little, write TO.

Prints, as JSON: the bytes of every variable (hashed) as restored and as written, and the ps where each lies. All
servers live in this process, and each number of ps has a process, because one can connect to one cluster only.
"""

import hashlib
import json
import socket
import sys
from pathlib import Path

import tensorflow as tf

from services.trainer import build, feed, program, shards, step
from services.trainer.checkpoint import Checkpoint
from services.trainer.watchdog import Watchdog

PS, FROM, TO = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])


def addresses(count):
    held = [socket.socket() for _ in range(count)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    found = [f"127.0.0.1:{each.getsockname()[1]}" for each in held]
    for each in held:
        each.close()
    return found


def cluster():
    free = addresses(PS + 2)
    spec = tf.train.ClusterSpec({"chief": free[:1], "worker": free[1:2], "ps": free[2:]})
    servers = [tf.distribute.Server(spec, job_name="ps", task_index=n) for n in range(PS)]
    servers.append(tf.distribute.Server(spec, job_name="worker", task_index=0))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    return tf.distribute.ParameterServerStrategy(resolver), servers


def named(built):
    weights = [(f"model/{n}", v.value) for n, v in enumerate(built.model.variables)]
    slots = [(f"optimizer/{n}/{v.path}", v.value) for n, v in enumerate(built.optimizer.variables)]
    return [*weights, *slots, ("meter/applied", built.meter.applied), ("meter/step", built.meter.step)]


def hashes(built):
    return {name: hashlib.sha256(value.numpy().tobytes()).hexdigest() for name, value in named(built)}


def places(built):
    return {name: tf.DeviceSpec.from_string(value.device).task for name, value in named(built)}


path = Path(__file__).with_name("counting.py")
module = program.load(path, program.digest_of(path.read_bytes()))
strategy, servers = cluster()
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
built = build.build(module, strategy, PS)
whole = Checkpoint(built)
ledger = shards.fresh(module.examples(), 2) if FROM == "-" else whole.read(FROM)
restored = hashes(built)
feed.serve(module, Watchdog(module.__file__, 60.0, 60.0))
train = step.traced(module, strategy, built)
for _ in range(3):
    ledger, shard = shards.take(ledger, 16)
    at = tuple(tf.constant(n, tf.int64) for n in shards.examples_of(ledger, shard))
    coordinator.schedule(train, args=at).fetch()
    ledger = shards.done(ledger, shard)
path = whole.write(TO, int(built.meter.step), ledger)
said = {"restored": restored, "written": hashes(built), "places": places(built), "path": path}
print(json.dumps({**said, "applied": ledger.applied, "meter": int(built.meter.applied)}), flush=True)
