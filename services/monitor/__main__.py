"""Run the monitor: `python -m services.monitor`."""

from services.monitor.service import Settings, start
from shared import app
from shared.leadership import led

app.run("monitor", Settings, led("monitor", start))
