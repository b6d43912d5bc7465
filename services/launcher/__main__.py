"""python -m services.launcher"""

from services.launcher.service import Settings, start
from shared import app
from shared.leadership import led

if __name__ == "__main__":
    app.run("launcher", Settings, led("launcher", start))
