"""Run the allocator: `python -m services.allocator`."""

from services.allocator.collecting import collect_seldom
from services.allocator.service import Settings, start
from shared import app
from shared.leadership import led

collect_seldom()
app.run("allocator", Settings, led("allocator", start))
