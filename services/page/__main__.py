"""Run the page: `python -m services.page`."""

from services.page.service import Settings, start
from shared import app

app.run("page", Settings, start)
