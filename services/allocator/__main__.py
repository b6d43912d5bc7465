"""Run the allocator: `python -m services.allocator`."""

from shared import stopping

if __name__ == "__main__":
    stopping.end_when_told()  # before the imports below, which take a while

    from services.allocator.collecting import collect_seldom
    from services.allocator.service import Settings, start
    from shared import app
    from shared.leadership import led

    collect_seldom()
    app.run("allocator", Settings, led("allocator", start))
