"""A cluster in one process, and the contents of its variables, for the programs beside it."""

import hashlib
from pathlib import Path

import tensorflow as tf

from services.trainer import program
from shared.runtime.process import free_port


def addresses(count):
    return [f"127.0.0.1:{free_port()}" for _ in range(count)]


def start_servers(ps, workers=1):
    """Return a strategy over so many ps and workers, and the servers.

    The servers run as long as the list exists.
    """
    tf.config.threading.set_inter_op_parallelism_threads(workers + 4)
    free = addresses(1 + ps + workers)
    spec = tf.train.ClusterSpec(
        {"chief": free[:1], "worker": free[1 : 1 + workers], "ps": free[1 + workers :]}
    )
    # with fewer threads, the tasks of one process wait for each other without end
    threads = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=workers + 4)
    tasks = [("ps", n) for n in range(ps)] + [("worker", n) for n in range(workers)]
    servers = [
        tf.distribute.Server(spec, job_name=job, task_index=n, config=threads) for job, n in tasks
    ]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    strategy.extended._allow_run_without_coordinator = True
    return strategy, servers


def module_of(name):
    path = Path(__file__).with_name(name)
    return program.load(path, program.program_digest(path.read_bytes()))


def named(built):
    weights = [(f"model/{n}", v.value) for n, v in enumerate(built.model.variables)]
    slots = [(f"optimizer/{n}/{v.path}", v.value) for n, v in enumerate(built.optimizer.variables)]
    return [
        *weights,
        *slots,
        ("meter/applied", built.counters.applied),
        ("meter/step", built.counters.step),
    ]


def hashes(built):
    return {
        name: hashlib.sha256(value.numpy().tobytes()).hexdigest() for name, value in named(built)
    }


def places(built):
    return {name: tf.DeviceSpec.from_string(value.device).task for name, value in named(built)}
