"""Run one task of a job: `python -m services.trainer`."""

from services.trainer.service import Settings, start
from shared import app

if __name__ == "__main__":
    app.run("trainer", Settings, start)
