"""`python tables_deltas.py PS FROM TO`: train with divided tables, and write a base and deltas.

FROM: the checkpoints to read, the last one whole and only the tables of the others; "-": none. It
prints as JSON the hashes of all variables as restored and as written, the rows of each file that
was read, and the path and files of the last checkpoint.
"""

import json
import sys
from pathlib import Path

from services.trainer.worker.checkpoint_files import files_of_checkpoint
from tests.trainer.programs.contents import hashes
from tests.trainer.programs.table_training import TableTraining

PS, FROM, TO = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]

job = TableTraining(PS, f"{TO}/gen-{PS}")
tables = job.tables
if FROM != ["-"]:
    for path in FROM[:-1]:
        tables.read(path)
    job.ledger = job.whole.read(FROM[-1])
restored = hashes(job.built)
read = [each.rows for each in tables.rounds]
job.trace(TO)
rehearsed = hashes(job.built)

if not tables.files:
    job.write_base()
job.train()
paths = [job.save()]
job.train()
if FROM == ["-"]:
    job.write_base()  # it has rows that are newer than the checkpoint
job.train()
paths.append(job.save_with_rests(256))
written = hashes(job.built)
print(
    json.dumps(
        {
            "restored": restored,
            "rehearsed": rehearsed,
            "written": written,
            "read": read,
            "paths": paths,
            "data files": len(list(Path(job.folder).glob(f"ckpt-{job.step}.data-*"))),
            "files": [each.path for each in files_of_checkpoint(paths[-1], "")],
            "rows": [each.rows for each in tables.files],
        }
    ),
    flush=True,
)
