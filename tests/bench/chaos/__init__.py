"""Chaos: train real TensorFlow jobs while faults are injected. `make chaos` (at most an hour).

    schedule    the faults, as a function of a seed; printed before anything starts
    world       the stack on this machine, with means to inject faults; `put_up` starts it
    injectors   one function for each kind of fault; `commits`, `drains`, `intakes` and `stores`
                have the longer ones
    standing    the state of a job, from its messages
    probes      check that a service answers
    doubling    messages published again, late and out of order, with new ids
    tallies     the result: from the streams, the counts on the ps and the process table
    play        the run: provoke, inject, wait for recovery, next fault

One fault at a time: the next one is injected after recovery from the last (updates are applied
again, and the target of the fault answers), or after `LIMIT_S`; then the run reports what did not
recover, and continues.

The bus is a cluster of three servers with a replica of each stream on each. `nats-server killed`
and `nats-server frozen` hit all three at once, so that there is no bus; `nats killed in commit` and
`nats frozen in commit` hit one of them while a checkpoint is being saved. `bus set back` kills all
three, and starts them with the contents that their disks had a minute before: what they
acknowledged since then is lost.

The workers of every second job make each update together (`consistency: global-batch`). Such a job
must have the updates of one process, whatever was lost: `updates_wrong` has those that do not.

Of eight jobs, two have a table that is divided among the ps. Each update of an example adds to its
row; `rows_wrong` has the rows that do not have what was added.

"Restarts": `weir up` starts a service or a server again as soon as it exits, like Kubernetes. The
stand-in of the cluster keeps its objects in memory. If it is killed, all pods end with it and no
object is left. This is a cluster that is lost and comes back empty, which is more than an API
server that cannot be reached (`API cut off`).

Environment, for shorter runs: CHAOS_FAULTS (92), CHAOS_SEED (1), CHAOS_NAIVE (2: restarts of
everything, to compare), CHAOS_KINDS (comma-separated: only these), CHAOS_MINUTES (50: no further
fault after that), CHAOS_KEEP=1 (keep all logs), CHAOS_EVERY_S (4: seconds between checkpoints; 0:
the default of a job).
"""
