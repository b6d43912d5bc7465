"""`weir credentials FOLDER`: write the users, keys and permissions of the bus as files, for a
server of one's own or for Secrets.
"""

from __future__ import annotations

import time

from services.cli.command_line import FILE, Arguments, Value, argument, command, option, parse_name
from services.console.trouble import DONE, FAILED, Trouble
from shared.auth import keyring

EXAMPLES = (
    "weir credentials deploy/credentials",
    "weir credentials keys --submitter team-a --tls server.crt server.key",
)


@command(EXAMPLES)
@argument(
    "folder",
    type=FILE,
    metavar="FOLDER",
    help="the folder for the files; existing keys in it are kept",
)
@option(
    "--submitter",
    type=Value(parse_name),
    multiple=True,
    metavar="NAMESPACE",
    help="also for a user who submits and reads jobs of this namespace only; may be repeated",
)
@option(
    "--tls",
    type=FILE,
    nargs=2,
    metavar="CERT KEY",
    help="the server's certificate and its key: with them it accepts TLS only",
)
def run(args: Arguments) -> int:
    try:
        tls = tuple(args.tls) if args.tls else None
        paths = keyring.write_credentials(args.folder, time.time(), args.submitter, tls)
    except (keyring.BadKeys, OSError) as error:
        raise Trouble(
            f"cannot write credentials: {error}; give a folder that you may write to", FAILED
        ) from error
    for path in paths:
        print(path)
    return DONE
