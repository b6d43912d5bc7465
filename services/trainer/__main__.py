"""Run one task of a job: `python -m services.trainer`."""

from services.trainer.service import EXIT_EVICTED, Settings, start
from shared import app

if __name__ == "__main__":
    app.run("trainer", Settings, start, stopped=EXIT_EVICTED)  # a task that was stopped has not done its work
