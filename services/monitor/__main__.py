"""Run the monitor: `python -m services.monitor`."""

from shared.runtime import process

if __name__ == "__main__":
    process.exit_on_signal()  # before the imports below, which take a while

    from services.monitor.service import Settings, start
    from shared.runtime import app
    from shared.runtime.leadership import with_leadership

    app.run_service("monitor", Settings, with_leadership("monitor", start))
