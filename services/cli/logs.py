"""`weir logs JOB [TASK]`: the output of a task, from the Kubernetes API. The cluster of `weir up`
also keeps the output of deleted pods, as many as `services/local/kubelet/kubelet.py` says:

    <folder>/<namespace>_<pod>_<uid>/<container>.log
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import urllib3
from kubernetes import client, config

from services.cli import connection
from services.cli.command_line import (
    Arguments,
    argument,
    command,
    flag,
    job_argument,
    namespace_option,
    nats_option,
    option,
)
from services.console.bus_reader import follow_views
from services.console.text.cells import Terminal
from services.console.text.log_lines import format_log_line, is_routine, without_repeated_failures
from services.console.text.sentences import describe_missing_log
from services.console.trouble import DONE, Trouble
from services.local.kubelet.kubelet import PODS
from shared.bus.bus import Bus
from shared.kube.objects import JOB_LABEL, ROLE_LABEL
from shared.text import format_count

EXAMPLES = ("weir logs digits", "weir logs digits worker-2 --follow")
NO_RETRIES = urllib3.Retry(0)
CHUNK = 4096
LEFT_OUT = (
    "weir logs: left out {lines} from Weir, TensorFlow's start and repetitions; --all shows them"
)
ELSEWHERE = (
    "`weir up` is found in its own folder and those below; elsewhere, give --kube URL "
    f"(usually {connection.KUBE})."
)


@command(EXAMPLES)
@nats_option
@namespace_option()
@job_argument
@argument(
    "task",
    required=False,
    metavar="[TASK]",
    help=(
        "a role, or one task of it by its pod's number: worker, worker-2 (default: chief); "
        f"with `weir up` also those of the last {format_count(PODS, 'deleted pod')}"
    ),
)
@flag("-f", "--follow", help="keep printing new output")
@flag("-a", "--all", help="also print lines of Weir, TensorFlow's start, repetitions")
@flag("--json", help="all output as it was printed: lines of Weir are JSON")
@option(
    "--kube",
    metavar="URL",
    help="the Kubernetes API (default: `weir up`'s, else by kubeconfig)",
)
def run(args: Arguments) -> int:
    here = connection.current_connection(args)
    gone = kept_pods("" if args.kube else here.pod_logs, args.namespace, args.job)
    with _explain_errors():
        api = client.CoreV1Api(client.ApiClient(_configuration(args.kube, here)))
        pods = _list_job_pods(api, args.namespace, args.job)
        if not pods and not gone:
            return connection.on_bus(args, _raise_missing_log)
        pod = choose_pod(pods, args.task, gone)
        task = pod.name.removeprefix(f"{args.job}-")
        put = _print_raw if args.json else _readable_printer(task)
        chunks = _kept_chunks(pod.kept) if pod.kept else _read_pod_log(api, args, pod.name)
        left_out = _print_lines(whole_lines(chunks), put, everything=args.all or args.json)
    if left_out:
        print(LEFT_OUT.format(lines=format_count(left_out, "line")), file=sys.stderr)
    return DONE


def _print_lines(lines: Iterable[bytes], put: Callable[[bytes], None], everything: bool) -> int:
    """Print the lines; return the number of lines left out."""
    if everything:
        for line in lines:
            put(line)
        return 0
    left_out = 0
    for line, shown in without_repeated_failures(lines):
        if shown and not is_routine(line):
            put(line)
        else:
            left_out += 1
    return left_out


def _kept_chunks(file: Path) -> Iterator[bytes]:
    print(f"weir logs: the pod is gone; this is {file}", file=sys.stderr)
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            yield chunk


def whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each line as soon as it is complete; the last one may have no line end."""
    rest = b""
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            yield line + b"\n"
    if rest:
        yield rest


def _print_raw(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _readable_printer(task: str) -> Callable[[bytes], None]:
    console = Terminal(highlight=False, soft_wrap=True)

    def put(line: bytes) -> None:
        for each in format_log_line(line, task, None):
            console.print(each)

    return put


async def _raise_missing_log(bus: Bus, args: Arguments) -> int:
    """Raise `Trouble` with the reason why the job has no pods, from the allocator's views."""
    async with aclosing(follow_views(bus, None)) as changes:
        raise Trouble(describe_missing_log(f"{args.namespace}.{args.job}", await anext(changes)))


def _configuration(url: str | None, here: connection.Connection) -> Any:
    """Return the client's configuration: for `url`, else of the `weir up` here, else from the usual
    kubeconfig.
    """
    chosen = client.Configuration()
    if url or (here.kube_url and not here.kubeconfig):
        chosen.host = url or here.kube_url
    else:
        config.load_kube_config(config_file=here.kubeconfig or None, client_configuration=chosen)
    chosen.retries = NO_RETRIES
    return chosen


def _list_job_pods(api: Any, namespace: str, job: str) -> list[Pod]:
    found = api.list_namespaced_pod(namespace, label_selector=f"{JOB_LABEL}={job}").items
    return [_pod_from_metadata(each.metadata) for each in found]


def _pod_from_metadata(meta: Any) -> Pod:
    return Pod(
        meta.name, (meta.labels or {}).get(ROLE_LABEL, ""), meta.creation_timestamp.timestamp()
    )


def _read_pod_log(api: Any, args: Arguments, pod: str) -> Iterator[bytes]:
    answer = api.read_namespaced_pod_log(
        pod, args.namespace, follow=args.follow, _preload_content=False
    )
    try:
        while chunk := answer.read1(CHUNK):
            yield chunk
    finally:
        answer.close()


@contextmanager
def _explain_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # of our own output
        raise
    except client.ApiException as error:
        raise Trouble(f"Kubernetes refuses the request: {_error_message(error)}") from error
    except config.ConfigException as error:
        raise Trouble(f"no Kubernetes API is configured: {error}\n{ELSEWHERE}") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Trouble(
            f"cannot reach Kubernetes: {getattr(error, 'reason', None) or error}\n{ELSEWHERE}"
        ) from error


def _error_message(error: Any) -> str:
    """Return the message of the Status object; the HTTP status if the answer has none."""
    try:
        return str(msgspec.json.decode(error.body or b"")["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"{error.status} {error.reason}"


TASK = re.compile(r"(chief|ps|worker)-\d+")


def kept_pods(folder: str, namespace: str, job: str) -> list[Pod]:
    """Return the pods of a job with a kept log; some may still run. `made_s` of each is the time of
    its last output.
    """
    try:
        folders = [*Path(folder).iterdir()] if folder else []
    except OSError:
        return []
    pods = [_pod_with_kept_log(each, namespace, job) for each in folders]
    return [pod for pod in pods if pod is not None]


def _pod_with_kept_log(folder: Path, namespace: str, job: str) -> Pod | None:
    """Return the pod of a folder; None if it is another job's, or has no log."""
    space, name, *_ = [*folder.name.split("_"), ""]
    if space != namespace or not name.startswith(f"{job}-"):
        return None
    task = TASK.fullmatch(name.removeprefix(f"{job}-"))
    files = sorted(folder.glob("*.log")) if task else []
    if not task or not files:
        return None
    return Pod(name, task[1], files[0].stat().st_mtime, files[0])


CHIEF = "chief"


@dataclass(frozen=True)
class Pod:
    """A pod of the job. `kept`: the file of its log, if it is read from there."""

    name: str
    role: str
    made_s: float
    kept: Path | None = None


def choose_pod(pods: Sequence[Pod], task: str | None, gone: Sequence[Pod] = ()) -> Pod:
    """Return the newest pod of a task (`worker-2`, or the pod's full name) or of a role (`worker`).
    Without a `task`, return the newest chief. A pod that is `gone` is chosen only if no other fits.
    """
    wanted = task or CHIEF
    fitting = _matching_pods(pods, wanted) or _matching_pods(gone, wanted)
    if not fitting:
        raise Trouble(f"there is no pod of {wanted!r}; there {_list_pods([*pods, *gone])}")
    return max(fitting, key=lambda pod: (pod.made_s, pod.name))


def _matching_pods(pods: Sequence[Pod], wanted: str) -> list[Pod]:
    return [
        pod for pod in pods if wanted in (pod.role, pod.name) or pod.name.endswith(f"-{wanted}")
    ]


def _list_pods(pods: Sequence[Pod]) -> str:
    names = sorted({pod.name for pod in pods})
    return f"are {', '.join(names)}" if names else "are no pods of this job (not yet, or no longer)"
