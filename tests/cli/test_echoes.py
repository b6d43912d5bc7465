"""A program's failure stands once in a log, without Weir's marks, however often TensorFlow repeats
it.
"""

from __future__ import annotations

from services.cli.echoes import once
from services.trainer import cause

CAUSE = """ValueError: seven is not a digit here
Traceback (most recent call last):
  File "digits.py", line 9, in check
ValueError: seven is not a digit here"""
MARKED = f"{cause.BEGINS}{CAUSE}{cause.ENDS}"
CLOSURE = f"""ERROR:tensorflow: /job:worker/task:0 encountered the following error when processing closure: Unknown:

Detected at node PyFunc defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  (0) UNKNOWN:   Failed: {MARKED}
Traceback (most recent call last):
services.trainer.cause.Failed: {cause.BEGINS}{CAUSE[:50]} ... [truncated]
Additional GRPC error information from remote target /job:worker/replica:0/task:0:
:UNKNOWN:Error received from peer  {{grpc_message:"Failed: {cause.BEGINS}ValueError: seven", grpc_status:2}}
"""
TRUNCATED = f"E0000 00:00:1795343823.913835    7528 grpc_util.h:104] Truncated error message: UNKNOWN: Failed: {MARKED}\n"
ENDED = '{"event": "ChildEnded", "level": "warning"}\n'


def shown(log: str) -> list[str]:
    return [
        line.decode().rstrip("\n")
        for line, is_shown in once(log.encode().splitlines(keepends=True))
        if is_shown
    ]


def test_of_a_failure_that_is_repeated_the_cause_is_shown_once() -> None:
    log = f"epoch 3\n{CLOSURE}{CLOSURE}{ENDED}"

    assert shown(log) == ["epoch 3", *CAUSE.splitlines(), ENDED.strip()]
    assert shown(f"{TRUNCATED}{TRUNCATED}") == CAUSE.splitlines()


def test_each_failure_is_shown_and_what_the_program_says_after_it() -> None:
    other = CLOSURE.replace("seven", "eight")

    assert shown(f"{CLOSURE}mine\n{other}") == [
        *CAUSE.splitlines(),
        "mine",
        *CAUSE.replace("seven", "eight").splitlines(),
    ]


def test_what_else_had_waited_for_what_failed_is_an_echo_as_well() -> None:
    """As TensorFlow 2.21 writes it where a worker's failure is heard by way of a ps, too."""
    heard = ':UNKNOWN:Error received from peer  {grpc_message:"Failed: ValueError: seven", grpc_status:2}\n'
    waited = f"\t [[sgd/IdentityN/_10]]\nAdditional GRPC error information from remote target /job:ps:\n{heard}"
    others = "  (1) UNKNOWN:  Failed\n\t [[{{node PyFunc}}]]\n0 successful operations.\n0 derived errors ignored.\n"

    assert shown(f"{CLOSURE}{waited}{others}{waited}mine\n\t [[sgd]]\n{ENDED}") == [
        *(*CAUSE.splitlines(), "mine", "\t [[sgd]]", ENDED.strip()),
    ], "and what the program says later is its own"


def test_a_program_that_prints_its_own_traceback_keeps_it() -> None:
    assert shown(f"{CAUSE}\n") == CAUSE.splitlines()


def test_no_line_is_lost_or_added() -> None:
    log = f"a\n{CLOSURE}{TRUNCATED}b"
    assert len([*once(log.encode().splitlines(keepends=True))]) == len(log.splitlines())
