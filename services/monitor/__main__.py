"""Run the monitor: `python -m services.monitor`."""

from services.monitor.service import Settings, start
from shared import app

app.run("monitor", Settings, start)
