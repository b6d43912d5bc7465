"""python -m services.launcher"""

from services.launcher.service import Settings, start
from shared import app

if __name__ == "__main__":
    app.run("launcher", Settings, start)
