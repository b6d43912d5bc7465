"""Run the allocator: `python -m services.allocator`."""

from services.allocator.service import Settings, start
from shared import app

app.run("allocator", Settings, start)
