"""`python tables_deltas.py PS FROM TO`: train with divided tables, and write a base and deltas.

FROM: the checkpoints to read, the last one whole and only the tables of the others; "-": none. It
prints as JSON the hashes of all variables as restored and as written, the rows of each file that
was read, and the path and files of the last checkpoint.
"""

import json
import sys

from services.trainer.worker import (
    input_pipeline,
    program_data,
    remote_worker,
    shard_ledger,
    table_transfer,
    training_step,
)
from services.trainer.worker.checkpoint import Checkpoint
from services.trainer.worker.checkpoint_files import files_of_checkpoint, seal_checkpoint
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.lanes import rehearse_updates
from services.trainer.worker.watchdog import Watchdog
from tests.trainer.programs.contents import hashes
from tests.trainer.programs.servers import module_of, started

table_transfer.BLOCK_BYTES = 2**20
PS, FROM, TO = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]


def write_base(step):
    """Write a base and use it from the next checkpoint on."""
    path = f"{TO}/gen-{PS}/base-{step}"
    before = tables.write_base(path)
    assert tables.adopt_base(path, seal_checkpoint(path).digest, before)


def train():
    """Make an update."""
    global ledger
    ledger, shard = shard_ledger.take_shard(ledger, 16)
    worker.push(plan.portion((shard,)))
    worker.fetch(2, 0)  # its pass and the mark of its end
    worker.update(1, 1)
    ledger = shard_ledger.mark_applied(ledger, shard)


def save():
    path = f"{TO}/gen-{PS}/ckpt-{int(built.counters.step)}"
    whole.write(path, ledger)
    return path


module = module_of("two_tables.py")
strategy, servers = started(PS)
built = training_step.build_model(module, strategy, PS, seed=4)
whole = Checkpoint(built)
tables = whole.tables
ledger = shard_ledger.new_ledger(module.examples(), 2)
if FROM != ["-"]:
    for path in FROM[:-1]:
        tables.read(path)
    ledger = whole.read(FROM[-1])
restored = hashes(built)
read = [each.rows for each in tables.rounds]
watchdog = Watchdog(module.__file__, 60.0, 60.0)
input_pipeline.serve_portions(module, watchdog)
plan = input_pipeline.DataPlan(ExampleOrder(module.examples()), 16)
spec = program_data.element_spec(module, built.model)
(worker,) = remote_worker.trace_workers(module, strategy, built, plan, spec, 1)
with whole.rehearse(TO, lambda error: None):
    rehearse_updates([worker], plan)
rehearsed = hashes(built)

if not tables.files:
    write_base(int(built.counters.step))
train()
paths = [save()]
train()
if FROM == ["-"]:
    write_base(int(built.counters.step))  # it has rows that are newer than the checkpoint
train()
paths.append(save())
written = hashes(built)
print(
    json.dumps(
        {
            "restored": restored,
            "rehearsed": rehearsed,
            "written": written,
            "read": read,
            "paths": paths,
            "files": [each.path for each in files_of_checkpoint(paths[-1], "")],
            "rows": [each.rows for each in tables.files],
        }
    ),
    flush=True,
)
