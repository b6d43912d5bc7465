"""Run the monitor: `python -m services.monitor`."""

from shared import stopping

if __name__ == "__main__":
    stopping.end_when_told()  # before the imports below, which take a while

    from services.monitor.service import Settings, start
    from shared import app
    from shared.leadership import led

    app.run("monitor", Settings, led("monitor", start))
