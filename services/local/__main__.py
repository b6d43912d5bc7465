"""`python -m services.local --cluster FILE --data DIR [--port 0] [--port-file FILE] [--token-file
FILE] [--image NAME=FOLDER] [--secret NAME=PATH] [--config-map NAME=PATH]`
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from services.local.cluster_spec import (
    FORM,
    DataSource,
    InvalidClusterFile,
    parse_cluster,
    parse_source,
)
from services.local.kubelet.container import KubeletSettings
from services.local.service import Settings, local_cluster
from shared.runtime import log

BAD_SETTINGS = 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="services.local", description="a Kubernetes cluster on one machine"
    )
    parser.add_argument(
        "--cluster", type=Path, required=True, help="YAML file with nodes and tenants"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder for logs and pods")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0: any that is free")
    parser.add_argument("--port-file", type=Path, help="where to write the port, once it is open")
    parser.add_argument(
        "--token-file", type=Path, help="file with a token that every request must carry"
    )
    about = "run containers of this image with the Python packages of this folder; may be repeated"
    parser.add_argument(
        "--image", type=image, action="append", default=[], metavar="NAME=FOLDER", help=about
    )
    for option, kind in (("--secret", "Secret"), ("--config-map", "ConfigMap")):
        parser.add_argument(
            option,
            type=data_source(kind),
            action="append",
            default=[],
            metavar=FORM,
            help=f"a {kind} with the values of a file or folder; may be repeated",
        )
    return parser.parse_args()


def data_source(kind: str) -> Callable[[str], DataSource]:
    """Return the function that reads an option of this kind."""

    def read(text: str) -> DataSource:
        try:
            return parse_source(text, kind)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def image(text: str) -> tuple[str, str]:
    """Split NAME=FOLDER into its two parts."""
    name, _, folder = text.partition("=")
    if not (name and Path(folder).is_dir()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER with an existing folder")
    return name, folder


async def serve(chosen: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    spec = parse_cluster(chosen.cluster.read_text())
    token = chosen.token_file.read_text().strip() if chosen.token_file is not None else ""
    settings = Settings(
        port=chosen.port,
        token=token,
        kubelet=KubeletSettings(images=dict(chosen.image)),
        data_sources=(*chosen.secret, *chosen.config_map),
    )
    cluster_here = local_cluster(
        spec.nodes, chosen.data, tenants=spec.tenants, quotas=spec.quotas, settings=settings
    )
    async with cluster_here as cluster:
        if chosen.port_file is not None:
            chosen.port_file.write_text(cluster.url.rpartition(":")[2])
        await stop.wait()


def main() -> None:
    log.configure_logging("local")
    try:
        asyncio.run(serve(arguments()))
    except (InvalidClusterFile, OSError, ValueError) as error:
        print(f"cannot start the cluster: {error}", file=sys.stderr)
        sys.exit(BAD_SETTINGS)


if __name__ == "__main__":
    main()
