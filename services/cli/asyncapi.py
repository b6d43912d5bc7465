"""`weir asyncapi`: every subject and message, as an AsyncAPI 3 document or a page. Needs no bus."""

from __future__ import annotations

import sys

import msgspec

from services.cli.asyncapi_document import build_document, build_page
from services.cli.command_line import Arguments, command, flag
from services.console.trouble import DONE

EXAMPLES = ("weir asyncapi > weir.json", "weir asyncapi --page > deploy/events.md")


@command(EXAMPLES)
@flag("--page", help="a page for people, in Markdown")
def run(args: Arguments) -> int:
    if args.page:
        text = build_page()
    else:
        text = msgspec.json.format(msgspec.json.encode(build_document()), indent=2).decode() + "\n"
    sys.stdout.write(text)
    return DONE
