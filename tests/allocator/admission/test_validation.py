"""Tests of the validation of requests: every reason is listed, and no input raises an exception.

A reason says which values are expected, in plain words.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.admission.validation import InvalidRequest, check_request
from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Limit, Rules
from shared.messages import JobRequested
from shared.runtime import config
from tests.allocator.builders import request, span

GOOD = msgspec.to_builtins(request())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def reasons(**changed: object) -> tuple[str, ...]:
    checked = check_request(
        msgspec.json.encode({k: v for k, v in (GOOD | changed).items() if v is not ...})
    )
    return checked.reasons if isinstance(checked, InvalidRequest) else ()


def test_a_valid_request_is_accepted():
    assert check_request(msgspec.json.encode(GOOD)) == request()
    assert (
        check_request(msgspec.json.encode({k: v for k, v in GOOD.items() if k != "fact"}))
        == request()
    )


def test_every_reason_is_listed():
    found = reasons(
        program=...,
        epochs=0,
        workrs=3,
        ps={"start": 3, "min": 1, "max": 2},
        workers={"start": "1", "min": 1, "max": 4, "step": 2},
        device_batch_max=8,
        policy="guess",
        checkpoint={"path": "/etc", "keep": 0},
        volumes=[{"name": "data", "mount_path": "/data"}],
    )
    assert found == (
        "workrs: no such field; did you mean 'workers'?",
        "program: is required",
        "epochs: Expected `int` >= 1, got 0",
        "workers.step: no such field",
        "workers.start: Expected `int`, got '1'",
        "checkpoint.keep: Expected `int` >= 1, got 0",
        "ps: min 1 <= start 3 <= max 2 does not hold",
        f"policy: 'guess' is not known; use one of {', '.join(sorted(POLICIES))}",
        "volumes[0]: needs one of claim, secret, config_map and host_path",
    )


def test_the_cluster_owners_limits_are_named_in_the_refusal():
    asked = msgspec.json.encode(
        request(namespace="team-a", priority=11, workers=span(1, most=9), batch=span(64))
    )
    free = Rules(max_priority=11)
    limited = Rules(
        max_priority=100, limits={"team-a": Limit(priority=10, ps=1, workers=8, batch=32)}
    )
    elsewhere = Rules(limits={"team-b": Limit(priority=0)})
    found = [
        check_request(asked, rules) for rules in (Rules(max_priority=10), limited, free, elsewhere)
    ]

    assert [each.reasons if isinstance(each, InvalidRequest) else () for each in found] == [
        (
            (
                "priority: 11 is more than 10, the highest in namespace 'team-a'"
                " (WEIR_ALLOCATOR_MAX_PRIORITY)"
            ),
        ),
        (
            (
                "priority: 11 is more than 10, the highest in namespace 'team-a'"
                " (WEIR_ALLOCATOR_LIMITS)"
            ),
            "ps.max: 2 is more than 1, the largest in namespace 'team-a' (WEIR_ALLOCATOR_LIMITS)",
            (
                "workers.max: 9 is more than 8, the largest in namespace 'team-a'"
                " (WEIR_ALLOCATOR_LIMITS)"
            ),
            (
                "batch.max: 64 is more than 32, the largest in namespace 'team-a'"
                " (WEIR_ALLOCATOR_LIMITS)"
            ),
        ),
        (),
        (),
    ]


def test_the_limits_are_settings():
    text = '{"team-a": {"priority": 10, "ps": 4}}'
    known = {"WEIR_ALLOCATOR_MAX_PRIORITY": "1000", "WEIR_ALLOCATOR_LIMITS": text}
    read = config.load_settings(Rules, "allocator", known)

    assert read.max_priority == 1000 and read.limits == {"team-a": Limit(priority=10, ps=4)}


def test_an_exact_job_has_one_batch() -> None:
    batch = {"start": 32, "min": 16, "max": 64}
    assert reasons(batch=batch, consistency="exact") == (
        "consistency: exact needs updates of the same size: let batch.min and batch.max be 32",
    )
    assert reasons(batch=batch, consistency="global-batch") == ()
    assert reasons(batch={"start": 32, "min": 32, "max": 32}, consistency="exact") == ()


def test_only_an_exact_job_has_virtual_workers() -> None:
    batch = {"start": 32, "min": 32, "max": 32}

    assert reasons(batch=batch, consistency="exact", virtual_workers=8) == ()
    assert reasons(virtual_workers=8) == (
        "virtual_workers: only a job with consistency: exact has them, not global-batch",
    )


def test_rules_between_fields_are_checked():
    assert reasons(batch={"start": 32, "min": 16, "max": 64}, device_batch_max=8) == (
        "device_batch_max: 8 is less than batch.min, 16",
    )
    assert "checkpoint.path: '../x'" in reasons(checkpoint={"path": "../x"})[0]
    assert reasons(checkpoint={"path": "gs://bucket/net"}) == ()
    for path in ("file:///etc", "ram://x", "gs://", "gs://b/../c", "a b://c"):
        assert "nor the URL of an object store" in reasons(checkpoint={"path": path})[0], path
    twice = {"name": "data", "mount_path": "/data", "claim": "c"}
    assert reasons(volumes=[twice, twice]) == (
        "volumes: name 'data' occurs twice",
        "volumes: mount_path '/data' occurs twice",
    )


def test_parameters_have_names_of_arguments_and_are_small():
    assert reasons(params={"learning_rate": 0.1, "layers": [1, {"a": None}]}) == ()
    assert reasons(params={"learning-rate": 0.1}) == (
        "params: Expected the name of a Python argument, at most 64 characters, got"
        " 'learning-rate'",
    )
    assert reasons(params=[1]) == ("params: Expected `object`, got [1]",)
    assert reasons(params={f"p{n}": n for n in range(101)}) == ("params: 101 are more than 100",)
    assert reasons(params={"text": "x" * 20_000}) == (
        "params: 20,011 bytes as JSON are more than 16,384",
    )


def test_an_unusable_name_is_answered_under_a_digest():
    for body in (
        b"{",
        b"\xff",
        b"[]",
        msgspec.json.encode(GOOD | {"job": "No.Good", "namespace": 7}),
    ):
        wrong = check_request(body)
        assert (
            isinstance(wrong, InvalidRequest)
            and wrong.job.startswith("invalid-")
            and wrong.namespace == "-"
        )


def test_the_number_of_trainers_is_limited_by_the_bus() -> None:
    assert (
        reasons(ps={"start": 1, "min": 1, "max": 100}, workers={"start": 1, "min": 1, "max": 799})
        == ()
    )
    assert reasons(
        ps={"start": 1, "min": 1, "max": 100}, workers={"start": 1, "min": 1, "max": 800}
    ) == ("ps.max + workers.max: 900 and a chief are more than 900 tasks",)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*GOOD, "extra"]), JSON, max_size=4))
def test_a_fuzzed_request_is_read_or_refused_with_reasons(changed):
    checked = check_request(msgspec.json.encode(GOOD | changed))
    assert isinstance(checked, JobRequested) or checked.reasons


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_get_an_answer(body):
    assert isinstance(check_request(body), InvalidRequest)


def test_a_grace_period_above_the_limit_names_the_setting() -> None:
    assert reasons(grace_s=601) == (
        "grace_s: 601 is more than 600, the limit of this cluster (WEIR_ALLOCATOR_GRACE_MAX_S)",
    )
    assert reasons(grace_s=600) == ()


SPAN = "Expected `{start, min, max}` (a job's file may have one number)"


def test_the_expected_format_of_a_field_is_explained() -> None:
    name = "Expected a name: lower-case letters, digits and -, beginning with a letter, not ending with -"
    volume = {"name": "Data", "mount_path": "data", "claim": "c"}

    assert reasons(job="My Job") == (f"job: {name}, at most 40 characters, got 'My Job'",)
    assert reasons(job=7) == ("job: Expected `str`, got 7",)
    assert reasons(namespace="Mine-") == (f"namespace: {name}, at most 63 characters, got 'Mine-'",)
    assert reasons(batch="many") == (
        "batch: Expected `{start, min, max}` (a job's file may have one number), got 'many'",
    )
    assert reasons(resources="small") == (
        "resources: Expected `{chief, ps, worker} | null`, got 'small'",
    )
    assert reasons(resources={"ps": 2}) == (
        "resources.ps: Expected `{cpu, memory_gib, gpu}`, got 2",
    )
    assert reasons(handover="fast") == (
        "handover: Invalid enum value 'fast'; use one of 'make-before-break', 'restart'",
    )
    assert reasons(program={"name": "a.py", "digest": "x"}) == (
        "program.digest: Expected `sha256-` and 64 hexadecimal digits, got 'x'",
    )
    assert reasons(volumes=[volume]) == (
        f"volumes[0].name: {name}, at most 63 characters, got 'Data'",
        "volumes[0].mount_path: Expected an absolute path, got 'data'",
    )


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("ten", "'ten'"),
        (True, "true"),
        (None, "null"),
        (1.5, "1.5"),
        ({"start": 1}, "{'start': 1}"),
        ([1], "[1]"),
    ],
)
def test_the_given_value_is_shown_as_written(value: object, told: str) -> None:
    assert reasons(epochs=value) == (f"epochs: Expected `int`, got {told}",)


def test_a_long_value_is_shortened() -> None:
    (text,), (deep,) = reasons(job="x" * 100_000), reasons(epochs=[["y" * 100] * 10] * 10)

    assert text.endswith(", got 'xxxxxxxxxxxx...xxxxxxxxxxxxx'")
    assert deep.endswith("...") and len(deep) < 100


def test_an_invalid_choice_is_shown_once() -> None:
    assert reasons(handover=7) == (
        "handover: Expected `str`, got 7; use one of 'make-before-break', 'restart'",
    )
