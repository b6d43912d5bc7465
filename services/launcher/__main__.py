"""Run the launcher: `python -m services.launcher`."""

from shared import stopping

if __name__ == "__main__":
    stopping.end_when_told()  # before the imports below, which take a while

    from services.launcher.service import Settings, start
    from shared import app
    from shared.leadership import led

    app.run("launcher", Settings, led("launcher", start))
