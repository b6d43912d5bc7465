"""`weir up`: run the whole system on this machine until Ctrl-C.

At the end, pods are stopped as in the shutdown of a machine, and each chief saves a checkpoint
within that grace. The command then lists the open jobs and their checkpoints. The next `weir up` in
the same folder reads the same bus and starts new pods for these jobs. The folder also stores the
file of its cluster: a start with other nodes prints the difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

import msgspec
from nats.errors import Error as NatsError

from services.allocator.job_views import ENDED, JobView
from services.cli.command_line import FILE, Arguments, Value, command, option
from services.cli.page import PORT as PAGE_PORT
from services.console.bus_reader import follow_views
from services.console.job_file import example_path, read_text
from services.console.trouble import WRONG_USE, Trouble
from services.local.cluster_spec import (
    ClusterSpec,
    DataSource,
    InvalidClusterFile,
    NodeSpec,
    parse_cluster,
    parse_source,
    read_values,
    repeated_objects,
)
from services.local.kubelet.container import KubeletSettings
from services.local.stack import SERVICES, CannotStart, Stack, check_ports_free, is_listening
from shared.auth.permissions import OPERATOR
from shared.bus.bus import Bus, connect
from shared.messages import CheckpointSaved
from shared.runtime.process import free_port
from shared.text import format_count, format_names, format_some_names

EXAMPLES = (
    "weir up",
    "weir up --cluster nodes.yaml --nats-port 4223",
    "weir up --secret bucket=bucket.env",
)
FOLDER = Path(".weir")
CONNECTION = FOLDER / "connection.json"
ANSWER_S = 10.0
UNREADABLE = (NatsError, OSError, TimeoutError)
CLUSTER = "nodes:\n  - {name: node, count: 4, cpu: 0.5, memory_gib: 4}\n"

LOOK = """weir is up: nats-server, a cluster of {nodes}, monitor, allocator, launcher, page. Ctrl-C ends it all;
jobs that run save first, and the next `weir up` in this folder continues them.

  look in a browser     {page}
  submit a job          weir submit {example}
  see the jobs          weir jobs
  tail the events       weir events --follow
  watch all of it       weir top
  look at the cluster   kubectl --kubeconfig={kube} get nodes,pods -A
  look at the bus       nats --server={nats} --creds={creds} sub 'weir.>'
  from another folder   WEIR_NATS_CREDENTIALS={creds} weir jobs --nats {nats}
  submit without weir   nats --server={nats} --creds={creds} req weir.job.requested.default.<job> '{{...}}'

Parameter servers and workers listen on this machine's ports without authentication, on all its interfaces
(TensorFlow does not offer it): use Weir only on a network that you trust. Logs: {folder}
"""


@command(EXAMPLES)
@option(
    "--cluster",
    type=FILE,
    metavar="FILE",
    help="nodes and tenants, YAML (default: 4 nodes of half a core)",
)
@option(
    "--data",
    type=FILE,
    default=FOLDER,
    metavar="FOLDER",
    help=f"the folder for state and logs (default: {FOLDER})",
)
@option(
    "--nats-port",
    type=int,
    default=4222,
    metavar="N",
    help="the port of NATS (default: 4222)",
)
@option(
    "--kube-port",
    type=int,
    default=8001,
    metavar="N",
    help="the port of the Kubernetes API (default: 8001)",
)
@option(
    "--page-port",
    type=int,
    default=PAGE_PORT,
    metavar="N",
    help=f"the port of the page (default: {PAGE_PORT})",
)
@option(
    "--secret",
    type=Value(lambda text: parse_source(text, "Secret"), "source"),
    multiple=True,
    metavar="NAME=PATH",
    help="a Secret for pods, from a folder, a file, or a file of variables (*.env);"
    " NAMESPACE/NAME=PATH for another namespace than default; may be repeated",
)
@option(
    "--config-map",
    type=Value(lambda text: parse_source(text, "ConfigMap"), "source"),
    multiple=True,
    metavar="NAME=PATH",
    help="a ConfigMap for pods, in the same way",
)
def run(args: Arguments) -> int:
    if args.cluster is not None:
        read_cluster_file(args.cluster)
    check_data_sources((*args.secret, *args.config_map))
    try:
        return asyncio.run(_run_until_stopped(args))
    except CannotStart as error:
        print(f"weir up: {error}", file=sys.stderr)
        return 1


async def _run_until_stopped(args: Arguments) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with cluster_file(args.cluster) as cluster:
        spec = read_cluster_file(cluster)
        ports = {"nats_port": args.nats_port, "kube_port": args.kube_port}
        # First, because a running `weir up` also has the page's port.
        check_ports_free(**ports)
        page_port = _page_port(args.page_port)
        settings = service_settings(spec) | {"WEIR_PAGE_PORT": str(page_port)}
        stack = Stack(
            args.data,
            cluster,
            settings,
            **ports,
            services=(*SERVICES, "page"),
            data_sources=(*args.secret, *args.config_map),
        )
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
            news = f"{describe_cluster_change(args.data, cluster)}{await _continued_jobs(stack)}"
            look = LOOK.format(nodes=nodes, example=example_path("digits.yaml"), **places)
            print(f"{news}{look}", flush=True)
            await stop.wait()
            print(f"\n{GOING}", flush=True)
            await stack.wind_down()
            await _print_left_jobs(stack)
    CONNECTION.unlink(missing_ok=True)
    return 0


async def _continued_jobs(stack: Stack) -> str:
    """Return a line about the open jobs of the previous `weir up`, and an empty line; else an empty
    text.
    """
    try:
        line = describe_continued(await _read_open_jobs(stack))
    except UNREADABLE:
        return ""
    return f"{line}\n\n" if line else ""


async def _print_left_jobs(stack: Stack) -> None:
    try:
        under_way = await _read_open_jobs(stack)
    except UNREADABLE as error:
        error_text = f"The open jobs could not be read ({error!r}); they are in {stack.folder}."
        print(f"weir is down. {error_text}", flush=True)
        return
    print("\n".join(describe_left_behind(under_way, stack.folder, Path.cwd())), flush=True)


async def _read_open_jobs(stack: Stack) -> Left:
    async with asyncio.timeout(ANSWER_S):
        bus = await connect(stack.nats_url, OPERATOR, stack.operator)
        under_way = await read_left_behind(bus)
        await bus.close()
    return under_way


def _page_port(wanted: int) -> int:
    if wanted and is_listening(wanted):
        raise CannotStart(f"port {wanted} is taken; choose another with --page-port")
    return wanted or free_port()


def service_settings(spec: ClusterSpec) -> dict[str, str]:
    """Return the quotas and the namespaces of the cluster as settings of the services."""
    settings = {"WEIR_JOB_NAMESPACES": ",".join(dict.fromkeys(("default", *spec.quotas)))}
    if spec.quotas:
        settings["WEIR_ALLOCATOR_QUOTAS"] = msgspec.json.encode(spec.quotas).decode()
    return settings


def check_data_sources(sources: tuple[DataSource, ...]) -> None:
    """Raise `Trouble` with everything that is wrong with the files of Secrets and ConfigMaps."""
    faults = [*repeated_objects(sources)]
    for source in sources:
        try:
            read_values(source.path)
        except OSError as error:
            faults.append(f"cannot read {source.path}: {error.strerror}")
        except ValueError as error:
            faults += str(error).splitlines()
    if faults:
        raise Trouble("\n".join(faults), WRONG_USE)


def read_cluster_file(cluster: Path) -> ClusterSpec:
    """Return the cluster in the file. Raise `Trouble` with every error in the file."""
    try:
        return parse_cluster(
            read_text(cluster, "without --cluster it is four nodes of half a core")
        )
    except InvalidClusterFile as bad:
        reasons = [f"  {line}" for line in str(bad).splitlines()]
        raise Trouble("\n".join([f"{cluster} describes no cluster:", *reasons]), WRONG_USE) from bad


@contextlib.contextmanager
def cluster_file(given: Path | None, text: str = CLUSTER):  # type: ignore[no-untyped-def]
    """Yield the given cluster file, or a temporary one that holds `text`."""
    if given is not None:
        yield given
        return
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        yield Path(file.name)


GOING = f"weir is going down: running jobs save first, within {KubeletSettings().shutdown_s:g} s."
NOTHING = "weir is down; no job was open. The log stays in {folder}."
GOES_ON = "weir continues the jobs of the previous `weir up`: {jobs}."
LEFT = "weir is down. {jobs} not over; the next `weir up` with {folder} continues:"

NAMES_MOST = 8

Left = Mapping[str, tuple[JobView, CheckpointSaved | None]]
"""The open jobs by key, each with its last checkpoint."""


async def read_left_behind(bus: Bus) -> Left:
    async with aclosing(follow_views(bus, None)) as changes:
        views = await anext(changes)
    open_jobs = {}
    for key, view in sorted(views.items()):
        if view.phase not in ENDED.values():
            open_jobs[key] = (view, await _last_checkpoint(bus, key, view.uid))
    return open_jobs


async def _last_checkpoint(bus: Bus, key: str, uid: int) -> CheckpointSaved | None:
    found = await bus.last_message(CheckpointSaved, key)
    said = found.message if found else None
    return said if isinstance(said, CheckpointSaved) and said.uid == uid else None


def describe_continued(under_way: Left) -> str:
    """Return a line with the jobs that continue and their checkpoints; empty if there are none."""
    jobs = [
        f"{_short_path(key)} from {_starting_point(*found)}" for key, found in under_way.items()
    ]
    return GOES_ON.format(jobs=format_some_names(jobs, "job", NAMES_MOST)) if jobs else ""


def _starting_point(view: JobView, saved: CheckpointSaved | None) -> str:
    if saved is None:
        return "its beginning"
    return f"step {saved.step:,}{_format_share(view, saved, ' ({:.0f} %)')}"


def describe_left_behind(under_way: Left, folder: Path, here: Path) -> list[str]:
    """Return the lines about the open jobs. `folder`: the folder of the state; `here`: paths below
    this folder are shown relative to it.
    """
    if not under_way:
        return [NOTHING.format(folder=folder)]
    jobs = f"{format_count(len(under_way), 'job')} {'was' if len(under_way) == 1 else 'were'}"
    names = {key: _short_path(key) for key in under_way}
    width = max(map(len, names.values()))
    lines = [LEFT.format(jobs=jobs, folder=folder)]
    for key, found in under_way.items():
        lines.append(f"  {names[key]:<{width}}  {_describe_job(*found, here)}")
    return lines


def _short_path(key: str) -> str:
    return key.removeprefix("default.").replace(".", "/")


def _describe_job(view: JobView, saved: CheckpointSaved | None, here: Path) -> str:
    if saved is None:
        return "has no checkpoint yet: it starts from the beginning"
    path = Path(saved.path)
    where = path.relative_to(here) if path.is_relative_to(here) else saved.path
    return f"saved at step {saved.step:,}{_format_share(view, saved, ', {:.0f} % done')}: {where}"


def _format_share(view: JobView, saved: CheckpointSaved, words: str) -> str:
    """Return the share of examples done, in percent, formatted by `words`; empty if the total is
    unknown.
    """
    return words.format(100 * saved.samples / view.total_samples) if view.total_samples else ""


KEPT = "cluster.yaml"
OTHER = "The cluster differs from that of the previous `weir up`: {now}; it was {before}."
KINDS_MOST = 3


def describe_cluster_change(folder: Path, cluster: Path) -> str:
    """Return a line about the other nodes of the previous cluster in this folder; empty if they are
    the same or unknown. Store the cluster file for the next start.
    """
    before, text = _previous_cluster(folder), cluster.read_text()
    now = parse_cluster(text)
    (folder / KEPT).write_text(text)
    if before is None or _node_sizes(before) == _node_sizes(now):
        return ""
    return f"{OTHER.format(now=_describe_nodes(now), before=_describe_nodes(before))}\n"


def _previous_cluster(folder: Path) -> ClusterSpec | None:
    try:
        return parse_cluster((folder / KEPT).read_text())
    except (OSError, UnicodeDecodeError, InvalidClusterFile):
        return None


def _node_sizes(spec: ClusterSpec) -> dict[str, tuple[float, float, int]]:
    return {
        name: (node.cpu, node.memory_gib, node.gpu) for name, node in spec.nodes_by_name().items()
    }


def _describe_nodes(spec: ClusterSpec) -> str:
    return format_names([_describe_node_kind(node) for node in spec.nodes], KINDS_MOST)


def _describe_node_kind(node: NodeSpec) -> str:
    devices = f", {format_count(node.gpu, 'GPU')}" if node.gpu else ""
    return (
        f"{format_count(node.count, 'node')} of {node.cpu:g} cpu, {node.memory_gib:g} GiB{devices}"
    )
