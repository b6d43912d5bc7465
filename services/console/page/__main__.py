"""Run the page: `python -m services.console.page`."""

from shared.runtime import process

if __name__ == "__main__":
    process.exit_on_signal()  # before the imports below, which take a while

    from services.console.page.service import Settings, start
    from shared.runtime import app

    app.run_service("page", Settings, start)
