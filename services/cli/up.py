"""`weir up`: the whole system on this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from pathlib import Path

import msgspec
from nats.errors import Error as NatsError

from services.cli.examples import example
from services.cli.left_behind import GOING, Left, goes_on, left, told
from services.cli.other_cluster import said_of
from services.cli.page import PORT as PAGE_PORT
from services.cli.text_file import text_in
from services.cli.trouble import WRONG_USE, Trouble
from services.local.cluster_spec import ClusterSpec, InvalidClusterFile, parse_cluster
from services.local.stack import SERVICES, CannotStart, Stack, check_ports_free, is_listening
from shared.auth.permissions import OPERATOR
from shared.bus.bus import connect
from shared.runtime.process import free_port
from shared.text import format_count

EXAMPLES = ("weir up", "weir up --cluster nodes.yaml --nats-port 4223")
FOLDER = Path(".weir")
CONNECTION = FOLDER / "connection.json"
ANSWER_S = 10.0
UNREADABLE = (NatsError, OSError, TimeoutError)
CLUSTER = "nodes:\n  - {name: node, count: 4, cpu: 0.5, memory_gib: 4}\n"

LOOK = """weir is up: nats-server, a cluster of {nodes}, monitor, allocator, launcher, page. Ctrl-C ends it all;
jobs that run save first, and the next `weir up` in this folder goes on with them.

  look in a browser     {page}
  submit a job          weir submit {example}
  see the jobs          weir jobs
  tail the events       weir events --follow
  watch all of it       weir top
  look at the cluster   kubectl --kubeconfig={kube} get nodes,pods -A
  look at the bus       nats --server={nats} --creds={creds} sub 'weir.>'
  from another folder   WEIR_NATS_CREDENTIALS={creds} weir jobs --nats {nats}
  ask without weir      nats --server={nats} --creds={creds} req weir.job.requested.default.<job> '{{...}}'

Parameter servers and workers listen on this machine's ports without authentication, on all its interfaces
(that is TensorFlow's doing): use it on a network that you trust. Logs: {folder}
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    said = "nodes and tenants, YAML (default: 4 nodes of half a core)"
    parser.add_argument("--cluster", type=Path, metavar="FILE", help=said)
    said = f"where state and logs go (default: {FOLDER})"
    parser.add_argument("--data", type=Path, default=FOLDER, metavar="FOLDER", help=said)
    parser.add_argument(
        "--nats-port",
        type=int,
        default=4222,
        metavar="N",
        help="where NATS listens (default: 4222)",
    )
    parser.add_argument(
        "--kube-port",
        type=int,
        default=8001,
        metavar="N",
        help="the Kubernetes API (default: 8001)",
    )
    parser.add_argument(
        "--page-port",
        type=int,
        default=PAGE_PORT,
        metavar="N",
        help=f"the page (default: {PAGE_PORT})",
    )


def run(args: argparse.Namespace) -> int:
    if args.cluster is not None:
        spec_in(args.cluster)
    try:
        return asyncio.run(_up(args))
    except CannotStart as error:
        print(f"weir up: {error}", file=sys.stderr)
        return 1


async def _up(args: argparse.Namespace) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with cluster_file(args.cluster) as cluster:
        spec = spec_in(cluster)
        ports = {"nats_port": args.nats_port, "kube_port": args.kube_port}
        check_ports_free(
            **ports
        )  # first: if `weir up` runs already, it has the page's port as well
        page_port = _page_port(args.page_port)
        settings = limits(spec) | {"WEIR_PAGE_PORT": str(page_port)}
        stack = Stack(args.data, cluster, settings, **ports, services=(*SERVICES, "page"))
        async with stack:
            stack.write_connection(CONNECTION)
            nodes = format_count(len(spec.nodes_by_name()), "node")
            places = {
                "kube": stack.kubeconfig,
                "nats": stack.nats_url,
                "creds": stack.operator,
                "folder": args.data,
            }
            places["page"] = f"http://127.0.0.1:{page_port}/"
            first = f"{said_of(args.data, cluster)}{await _goes_on(stack)}"
            print(
                f"{first}{LOOK.format(nodes=nodes, example=example('digits.yaml'), **places)}",
                flush=True,
            )
            await stop.wait()
            print(f"\n{GOING}", flush=True)
            await stack.wind_down()
            await _tell_what_is_left(stack)
    CONNECTION.unlink(missing_ok=True)
    return 0


async def _goes_on(stack: Stack) -> str:
    """First of all, where the `weir up` before left something to do: a line, and an empty one."""
    try:
        line = goes_on(await _under_way(stack))
    except UNREADABLE:
        return ""
    return f"{line}\n\n" if line else ""


async def _tell_what_is_left(stack: Stack) -> None:
    try:
        under_way = await _under_way(stack)
    except UNREADABLE as error:
        print(
            f"weir is down. What is left could not be read ({error!r}); it lies in {stack.folder}.",
            flush=True,
        )
        return
    print("\n".join(told(under_way, stack.folder, Path.cwd())), flush=True)


async def _under_way(stack: Stack) -> Left:
    async with asyncio.timeout(ANSWER_S):
        bus = await connect(stack.nats_url, OPERATOR, stack.operator)
        under_way = await left(bus)
        await bus.close()
    return under_way


def _page_port(wanted: int) -> int:
    if wanted and is_listening(wanted):
        raise CannotStart(f"port {wanted} is taken; choose another with --page-port")
    return wanted or free_port()


def limits(spec: ClusterSpec) -> dict[str, str]:
    """The file's quotas, and the namespaces that this cluster has, as the services' settings."""
    spaces = {"WEIR_JOB_NAMESPACES": ",".join(dict.fromkeys(("default", *spec.quotas)))}
    return spaces | (
        {"WEIR_ALLOCATOR_QUOTAS": msgspec.json.encode(spec.quotas).decode()} if spec.quotas else {}
    )


def spec_in(cluster: Path) -> ClusterSpec:
    """Raises `Trouble` with every reason why the file describes no cluster."""
    try:
        return parse_cluster(text_in(cluster, "without --cluster it is four nodes of half a core"))
    except InvalidClusterFile as bad:
        reasons = (f"  {line}" for line in str(bad).splitlines())
        raise Trouble("\n".join([f"{cluster} describes no cluster:", *reasons]), WRONG_USE) from bad


@contextlib.contextmanager
def cluster_file(given: Path | None, text: str = CLUSTER):  # type: ignore[no-untyped-def]
    """The cluster file that was given, or one that holds `text`."""
    if given is not None:
        yield given
        return
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        yield Path(file.name)
