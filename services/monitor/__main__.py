"""Run the monitor: `python -m services.monitor`."""

from shared.runtime import process

if __name__ == "__main__":
    process.end_when_told()  # before the imports below, which take a while

    from services.monitor.service import Settings, start
    from shared.runtime import app
    from shared.runtime.leadership import led

    app.run("monitor", Settings, led("monitor", start))
