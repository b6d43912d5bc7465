"""`weir credentials FOLDER`: who may do what on the bus, as files; for a server of one's own, or
for Secrets.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from services.cli import parameters
from services.console.trouble import DONE, FAILED, Trouble
from shared.auth import keyring

EXAMPLES = (
    "weir credentials deploy/credentials",
    "weir credentials keys --submitter team-a --tls server.crt server.key",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="where they go; keys that are there are used again",
    )
    said = "also for one who may ask for jobs in this namespace, and see them; may be repeated"
    parser.add_argument(
        "--submitter",
        type=parameters.name,
        action="append",
        default=[],
        metavar="NAMESPACE",
        help=said,
    )
    said = "the server's certificate and its key: with them it speaks over TLS only"
    parser.add_argument("--tls", type=Path, nargs=2, metavar=("CERT", "KEY"), help=said)


def run(args: argparse.Namespace) -> int:
    try:
        written = keyring.write_credentials(
            args.folder, time.time(), args.submitter, tuple(args.tls) if args.tls else None
        )
    except (keyring.BadKeys, OSError) as error:
        raise Trouble(
            f"cannot write credentials: {error}; give a folder that you may write to", FAILED
        ) from error
    for path in written:
        print(path)
    return DONE
