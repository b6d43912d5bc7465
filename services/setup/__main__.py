"""Run the set-up: `python -m services.setup`."""

from shared import stopping

if __name__ == "__main__":
    stopping.end_when_told()  # before the imports below, which take a while

    from services.setup.service import Settings, start
    from shared import app

    app.run("setup", Settings, start)
