"""Run the set-up: `python -m services.setup`."""

from shared.runtime import process

if __name__ == "__main__":
    process.exit_on_signal()  # before the imports below, which take a while

    from services.setup.service import Settings, start
    from shared.runtime import app

    app.run_service("setup", Settings, start)
