"""`python across.py PS FROM TO`: restore FROM (or "-") on PS parameter servers, train, write TO.

It prints as JSON the bytes of every variable (hashed) as restored and as written, and the ps of
each. All servers run in this process. Each number of ps needs its own process, because a process
can connect to one cluster only.
"""

import json
import sys

from services.trainer.worker import (
    input_pipeline,
    program_data,
    remote_worker,
    shard_ledger,
    training_step,
)
from services.trainer.worker.checkpoint import Checkpoint
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.watchdog import Watchdog
from tests.trainer.programs.servers import hashes, module_of, places, start_servers

PS, FROM, TO = int(sys.argv[1]), sys.argv[2], sys.argv[3]


module = module_of("counting.py")
strategy, servers = start_servers(PS)
built = training_step.build_model(module, strategy, PS)
whole = Checkpoint(built)
ledger = shard_ledger.new_ledger(module.examples(), 2) if FROM == "-" else whole.read(FROM)
restored = hashes(built)
input_pipeline.serve_portions(module, Watchdog(module.__file__, 60.0, 60.0))
plan = input_pipeline.DataPlan(ExampleOrder(module.examples()), 16)
spec = program_data.element_spec(module, built.model)
(worker,) = remote_worker.trace_workers(module, strategy, built, plan, spec, 1)
for _ in range(3):
    ledger, shard = shard_ledger.take_shard(ledger, 16)
    worker.push(plan.portion((shard,)))
    worker.fetch(2, 0)  # its pass and the mark of its end
    worker.update(1, 1)
    ledger = shard_ledger.mark_applied(ledger, shard)
path = f"{TO}/ckpt-{int(built.counters.step)}"
whole.write(path, ledger)
said = {"restored": restored, "written": hashes(built), "places": places(built), "path": path}
print(
    json.dumps({**said, "applied": ledger.applied, "meter": int(built.counters.applied)}),
    flush=True,
)
