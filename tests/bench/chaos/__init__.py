"""Chaos: real TensorFlow jobs, while everything that can break does. `make chaos` (at most an
hour).

    schedule    what is to happen, from a seed: printed before anything starts
    world       the stack on this machine, with what is needed to hurt it; `put_up` puts it up
    injectors   one function a kind of fault; `commits`, `drains`, `intakes` and `stores` hold the longer ones
    standing    where a job stands, from what was heard of it
    probes      whether a service answers
    doubling    messages said again, late and out of order, with new ids
    tallies     what it came to: from the streams, the ps' own counts and the process table
    play        the run: provoke, strike, wait until it has recovered, next

One fault at a time: the next waits until the one before has recovered (updates are applied again,
and what was struck answers), for `LIMIT_S` at most; after that the run says what did not recover,
and goes on.

The bus is a cluster of three servers with a replica of each stream on each. `nats-server killed`
and `nats-server frozen` strike all three at once, so that there is no bus; `nats killed in commit`
and `nats frozen in commit` strike one of them while a checkpoint is being saved. `bus set back`
kills all three, and starts them with what they had on their disks a minute before: what they
acknowledged since is lost.

"Restarts": `weir up` starts a service or a server that has died at once, as Kubernetes would. The
cluster's stand-in keeps its objects in memory, so where it is killed all pods end with it and
nothing is left: that is a cluster that is lost and comes back empty, which is more than an API
server that is away (`API cut off`).

Environment, for shorter runs: CHAOS_FAULTS (92), CHAOS_SEED (1), CHAOS_NAIVE (2: restarts of
everything, to compare), CHAOS_KINDS (comma-separated: only these), CHAOS_MINUTES (50: then no
further fault), CHAOS_KEEP=1 (leave all logs), CHAOS_EVERY_S (4: seconds between checkpoints; 0: as
a job has it by default).
"""
