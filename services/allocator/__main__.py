"""Run the allocator: `python -m services.allocator`."""

from services.allocator.service import Settings, start
from shared import app
from shared.leadership import led

app.run("allocator", Settings, led("allocator", start))
