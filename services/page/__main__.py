"""Run the page: `python -m services.page`."""

from shared import stopping

if __name__ == "__main__":
    stopping.end_when_told()  # before the imports below, which take a while

    from services.page.service import Settings, start
    from shared import app

    app.run("page", Settings, start)
