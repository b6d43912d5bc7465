"""Run the allocator: `python -m services.allocator`."""

from shared.runtime import process

if __name__ == "__main__":
    process.exit_on_signal()  # before the imports below, which take a while

    from services.allocator.service import Settings, collect_garbage_seldom, start
    from shared.runtime import app
    from shared.runtime.leadership import with_leadership

    collect_garbage_seldom()
    app.run_service("allocator", Settings, with_leadership("allocator", start))
