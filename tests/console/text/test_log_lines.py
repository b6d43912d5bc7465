"""Tests of the readable lines of a task's log.

A failure of the program is shown once, however often TensorFlow repeats it.
"""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any

from services.console.text.log_lines import format_log_line, is_routine, without_repeated_failures
from services.trainer.worker import failure_cause


def shown(raw: bytes | dict[str, Any], task: str = "worker-2") -> list[str]:
    said = raw if isinstance(raw, bytes) else json.dumps(raw).encode() + b"\n"
    return [line.plain for line in format_log_line(said, task, UTC)]


SAID = {
    "of": None,
    "cause": "10.cluster.published.2.-.2",
    "event": "StartChild",
    "generation": 2,
    "service": "trainer",
    "job": "digits",
    "level": "info",
    "timestamp": "2026-11-22T02:46:11.549478Z",
}


def test_a_log_line_is_time_level_task_event_and_fields() -> None:
    (line,) = shown(SAID)

    assert (
        line == "02:46:11.549 info    worker-2   StartChild             generation=2"
        " cause=10.cluster.published.2.-.2"
    )


def test_other_output_is_unchanged_without_control_characters() -> None:
    assert shown(b"epoch 3:  loss 0.25\n") == ["epoch 3:  loss 0.25"]
    assert shown(b"\x1b[2J cleared\r\n") == [" [2J cleared"]
    assert shown(b'{"loss": 0.25}\n') == ['{"loss": 0.25}'], "JSON of the program's own"
    assert shown(b"\xff\xfe") == ["\ufffd\ufffd"] and shown(b"[1, 2]") == ["[1, 2]"]


def test_routine_lines_are_weirs_and_tensorflows_and_never_the_programs() -> None:
    assert is_routine(json.dumps(SAID).encode())
    assert not is_routine(json.dumps({**SAID, "level": "warning"}).encode())
    assert is_routine(
        b"I0000 00:00:1795326885.475742   25375 port.cc:153] oneDNN custom operations are on.\n"
    )
    assert is_routine(
        b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    )
    assert is_routine(
        b"E0000 00:00:1795326922.9   25375 cuda_platform.cc:52] failed call to cuInit: INTERNAL\n"
    )
    for own in (
        b"epoch 3\n",
        b'{"loss": 0.25}\n',
        b'{"event": "mine"}\n',
        b"I think\n",
        b"WARNING: mine\n",
    ):
        assert not is_routine(own)


def test_settings_are_shown_only_in_json() -> None:
    (line,) = shown({**SAID, "event": "Starting", "settings": {"a": 1}, "text": "x"})

    assert "settings" not in line and line.endswith("text=x")


def test_a_long_value_is_cut_in_the_middle() -> None:
    frames = "\n".join(f'  File "net.py", line {at}, in loss' for at in range(100))
    cause = (
        "net.py:99: ValueError: no such row\nTraceback (most recent call"
        f" last):\n{frames}\nValueError: no such row"
    )

    (line,) = shown({**SAID, "event": "ChildEnded", "cause": cause})

    assert (
        " cause=net.py:99: ValueError: no such row Traceback (most recent" in line
        and " [...] " in line
    )
    assert (
        line.endswith('File "net.py", line 99, in loss ValueError: no such row') and len(line) < 600
    )


def test_an_exception_is_shown_below_with_its_traceback() -> None:
    frames = [{"filename": "train.py", "lineno": 7, "name": "loss"}]
    error = {"exc_type": "ValueError", "exc_value": "shapes differ\nby one", "frames": frames}

    first, *below = shown({**SAID, "level": "error", "exception": [error]})

    assert first.startswith("02:46:11.549 error ")
    assert below == ["    train.py:7 in loss", "    ValueError: shapes differ by one"]


def test_an_odd_line_is_shown_without_columns() -> None:
    (line,) = shown(
        {"event": 7, "timestamp": "yesterday", "level": None, "exception": [3, {"frames": "x"}]}
    )[:1]

    assert line.split() == ["None", "worker-2", "7"]


CAUSE = """ValueError: seven is not a digit here
Traceback (most recent call last):
  File "digits.py", line 9, in check
ValueError: seven is not a digit here"""
MARKED = f"{failure_cause.BEGINS}{CAUSE}{failure_cause.ENDS}"
CLOSURE = f"""ERROR:tensorflow: /job:worker/task:0 encountered the following error when processing closure: Unknown:

Detected at node PyFunc defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  (0) UNKNOWN:   Failed: {MARKED}
Traceback (most recent call last):
services.trainer.worker.failure_cause.Failed: {failure_cause.BEGINS}{CAUSE[:50]} ... [truncated]
Additional GRPC error information from remote target /job:worker/replica:0/task:0:
:UNKNOWN:Error received from peer  {{grpc_message:"Failed: {failure_cause.BEGINS}ValueError: seven", grpc_status:2}}
"""
TRUNCATED = (
    "E0000 00:00:1795343823.913835    7528 grpc_util.h:104] Truncated error message: UNKNOWN:"
    f" Failed: {MARKED}\n"
)
ENDED = '{"event": "ChildEnded", "level": "warning"}\n'


def filtered_lines(log: str) -> list[str]:
    return [
        line.decode().rstrip("\n")
        for line, is_shown in without_repeated_failures(log.encode().splitlines(keepends=True))
        if is_shown
    ]


def test_a_repeated_failure_is_shown_once() -> None:
    log = f"epoch 3\n{CLOSURE}{CLOSURE}{ENDED}"

    assert filtered_lines(log) == ["epoch 3", *CAUSE.splitlines(), ENDED.strip()]
    assert filtered_lines(f"{TRUNCATED}{TRUNCATED}") == CAUSE.splitlines()


def test_each_failure_and_the_output_after_it_are_shown() -> None:
    other = CLOSURE.replace("seven", "eight")

    assert filtered_lines(f"{CLOSURE}mine\n{other}") == [
        *CAUSE.splitlines(),
        "mine",
        *CAUSE.replace("seven", "eight").splitlines(),
    ]


def test_failures_of_dependent_operations_are_echoes() -> None:
    """TensorFlow 2.21 prints this if the error of a worker also arrives through a ps."""
    heard = (
        ':UNKNOWN:Error received from peer  {grpc_message:"Failed: ValueError: seven",'
        " grpc_status:2}\n"
    )
    waited = (
        "\t [[sgd/IdentityN/_10]]\nAdditional GRPC error information from remote target"
        f" /job:ps:\n{heard}"
    )
    others = (
        "  (1) UNKNOWN:  Failed\n\t [[{{node PyFunc}}]]\n0 successful operations.\n0 derived errors"
        " ignored.\n"
    )

    assert filtered_lines(f"{CLOSURE}{waited}{others}{waited}mine\n\t [[sgd]]\n{ENDED}") == [
        *(*CAUSE.splitlines(), "mine", "\t [[sgd]]", ENDED.strip()),
    ], "and what the program says later is its own"


def test_a_program_that_prints_its_own_traceback_keeps_it() -> None:
    assert filtered_lines(f"{CAUSE}\n") == CAUSE.splitlines()


def test_no_line_is_lost_or_added() -> None:
    log = f"a\n{CLOSURE}{TRUNCATED}b"
    assert len([*without_repeated_failures(log.encode().splitlines(keepends=True))]) == len(
        log.splitlines()
    )
