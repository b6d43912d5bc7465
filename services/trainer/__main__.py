"""Run one task of a job: `python -m services.trainer`."""

import os

from services.trainer import credential_isolation
from shared.runtime import process

EVICTED = 143
"""The exit code of a task that was stopped; equal to `service.EXIT_EVICTED`, which is imported
later.
"""

if __name__ == "__main__":
    process.exit_on_signal(EVICTED)  # before the imports below, which take a while
    # First of all: it may restart this process.
    credentials = credential_isolation.take_credential(os.environ)

    from services.trainer.pod.service import EXIT_BUS_LOST, EXIT_EVICTED, start
    from services.trainer.settings import Settings
    from shared.runtime import app

    app.run_service(
        "trainer",
        Settings,
        start,
        stopped=EXIT_EVICTED,
        credentials=credentials,
        cut_off=EXIT_BUS_LOST,
    )
