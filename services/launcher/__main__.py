"""Run the launcher: `python -m services.launcher`."""

from shared.runtime import process

if __name__ == "__main__":
    process.end_when_told()  # before the imports below, which take a while

    from services.launcher.service import Settings, start
    from shared.runtime import app
    from shared.runtime.leadership import led

    app.run("launcher", Settings, led("launcher", start))
