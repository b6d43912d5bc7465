"""`weir page`: serve the page for a running system until Ctrl-C. The page only reads."""

from __future__ import annotations

import asyncio

from services.cli import connection
from services.cli.command_line import Arguments, command, nats_option, option
from services.console.trouble import DONE, Trouble
from shared.auth.permissions import PAGE
from shared.bus.bus import Bus

EXAMPLES = ("weir page", "weir page --port 9000")
HOST, PORT = "127.0.0.1", 8002


@command(EXAMPLES)
@nats_option
@option(
    "--host",
    default=HOST,
    metavar="HOST",
    help=f"the address to listen on (default: {HOST}, this machine only)",
)
@option("--port", type=int, default=PORT, metavar="N", help=f"default: {PORT}; 0: any free port")
def run(args: Arguments) -> int:
    return connection.on_bus(args, serve_page, user=PAGE)


async def serve_page(bus: Bus, args: Arguments) -> int:
    from services.console.page.service import Page, Settings
    from services.console.page.watch import Watch

    watch = Watch(bus)
    served = Page(watch, Settings(host=args.host, port=args.port))
    try:
        runner = await served.open()
    except (OSError, OverflowError) as error:
        raise Trouble(
            f"cannot listen on {args.host}:{args.port}: {error}; choose another --port"
        ) from error
    print(f"the page is at {served.url}; Ctrl-C ends it", flush=True)
    try:
        await watch.run()
    finally:
        await asyncio.shield(runner.cleanup())
    return DONE
