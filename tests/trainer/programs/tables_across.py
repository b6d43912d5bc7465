"""`python tables_across.py PS FROM TO [whole]`: as `across.py`, with divided tables, or with whole
ones as earlier versions do.

It prints as JSON the hashes of all variables as restored and as written, the bytes of tables and
slots on each ps, and what the evaluation returns.
"""

import json
import sys
from collections import Counter

from services.trainer.worker import (
    evaluation,
    input_pipeline,
    program_data,
    remote_worker,
    shard_ledger,
    table_division,
    training_step,
)
from services.trainer.worker.checkpoint import Checkpoint
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.sharded_table import ps_variables
from services.trainer.worker.watchdog import Watchdog
from tests.trainer.programs.contents import hashes
from tests.trainer.programs.servers import module_of, start_servers

PS, FROM, TO = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if "whole" in sys.argv[4:]:
    table_division.DIVIDED_BYTES = 2**40


def table_bytes_by_ps():
    """Return the bytes of divided tables and their slots on each ps."""
    sizes = Counter()
    for variable in [*built.model.variables, *built.optimizer.variables]:
        shards = ps_variables(variable)
        if len(shards) > 1:
            for each in shards:
                sizes[each.device] += each.shape.num_elements() * each.dtype.size
    return sorted(sizes.values())


module = module_of("two_tables.py")
strategy, servers = start_servers(PS)
built = training_step.build_model(module, strategy, PS, seed=4)
whole = Checkpoint(built)
ledger = shard_ledger.new_ledger(module.examples(), 2) if FROM == "-" else whole.read(FROM)
restored = hashes(built)
watchdog = Watchdog(module.__file__, 60.0, 60.0)
input_pipeline.serve_portions(module, watchdog)
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
if whole.tables is not None:
    whole.tables.forget_files()  # so that all rows are written
whole.write(path, ledger)
print(
    json.dumps(
        {
            "restored": restored,
            "written": hashes(built),
            "held": table_bytes_by_ps(),
            "path": path,
            "evaluation": evaluation.evaluation_metrics(module, built.model, watchdog),
        }
    ),
    flush=True,
)
