"""Run the launcher: `python -m services.launcher`."""

from shared.runtime import process

if __name__ == "__main__":
    process.exit_on_signal()  # before the imports below, which take a while

    from services.launcher.service import start
    from services.launcher.settings import Settings
    from shared.runtime import app
    from shared.runtime.leadership import with_leadership

    app.run_service("launcher", Settings, with_leadership("launcher", start))
