"""A training with divided tables on parameter servers of its own, without a chief."""

from services.trainer.worker import (
    input_pipeline,
    program_data,
    remote_worker,
    shard_ledger,
    table_transfer,
    training_step,
)
from services.trainer.worker.checkpoint import Checkpoint
from services.trainer.worker.checkpoint_files import seal_checkpoint
from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.rehearsal import rehearse_updates
from services.trainer.worker.watchdog import Watchdog
from services.trainer.worker.write_pace import WritePace
from tests.trainer.programs.servers import module_of, start_servers

table_transfer.BLOCK_BYTES = 2**20


class TableTraining:
    """`folder`: of the generation's files."""

    def __init__(self, ps, folder):
        self.ps, self.folder = ps, folder
        self.module = module_of("two_tables.py")
        self.strategy, self.servers = start_servers(ps)
        self.built = training_step.build_model(self.module, self.strategy, ps, seed=4)
        self.whole = Checkpoint(self.built)
        self.tables = self.whole.tables
        self.ledger = shard_ledger.new_ledger(self.module.examples(), 2)

    def trace(self, folder):
        """Trace an update. The rehearsal's checkpoint is written into `folder`."""
        watchdog = Watchdog(self.module.__file__, 60.0, 60.0)
        input_pipeline.serve_portions(self.module, watchdog)
        self.plan = input_pipeline.DataPlan(ExampleOrder(self.module.examples()), 16)
        spec = program_data.element_spec(self.module, self.built.model)
        (self.worker,) = remote_worker.trace_workers(
            self.module, self.strategy, self.built, self.plan, spec, 1
        )
        with self.whole.rehearse(folder, lambda error: None):
            rehearse_updates([self.worker], self.plan)

    @property
    def step(self):
        return int(self.built.counters.step)

    def train(self):
        """Make an update."""
        self.ledger, shard = shard_ledger.take_shard(self.ledger, 16)
        self.worker.push(self.plan.portion((shard,)))
        self.worker.fetch(2, 0)  # its pass and the mark of its end
        self.worker.update(1, 1)
        self.ledger = shard_ledger.mark_applied(self.ledger, shard)

    def save(self):
        path = f"{self.folder}/ckpt-{self.step}"
        self.whole.write(path, self.ledger)
        return path

    def save_with_rests(self, block_bytes):
        """Save as beside training: with rests between blocks of changed rows."""
        path = f"{self.folder}/ckpt-{self.step}"
        table_transfer.LEAST_PACED_BYTES = table_transfer.PACED_BLOCK_BYTES = block_bytes
        self.whole.cut(self.ledger)
        self.whole.write_cut(path, WritePace(0.1))
        self.whole.on_saved(path, seal_checkpoint(path).digest)
        return path

    def write_base(self):
        """Write a base and use it from the next checkpoint on."""
        path = f"{self.folder}/base-{self.step}"
        before = self.tables.write_base(path)
        assert self.tables.adopt_base(path, seal_checkpoint(path).digest, before)
