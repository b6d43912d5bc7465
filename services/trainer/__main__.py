"""Run one task of a job: `python -m services.trainer`."""

import os

from services.trainer import sealed

if __name__ == "__main__":
    credentials = sealed.taken(os.environ)  # before all else: it may begin this process again

    from services.trainer.service import EXIT_BUS_LOST, EXIT_EVICTED, Settings, start
    from shared import app

    # a task that was stopped has not done its work
    app.run("trainer", Settings, start, stopped=EXIT_EVICTED, credentials=credentials, cut_off=EXIT_BUS_LOST)
