"""Tests of messages: each is read as it was written, and an invalid one has a clear error."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect
from msgspec.structs import replace

from shared.auth.permissions import JOB as JOB_USER
from shared.auth.permissions import PUBLISHED_BY
from shared.bus import subjects
from shared.bus.subjects import UnreadableMessage
from shared.messages import (
    CapacityChanged,
    CheckpointSaved,
    GenerationPrepared,
    JobRejected,
    JobRequested,
    Message,
    Resources,
    TaskPlan,
)
from tests.shared.sample_messages import (
    JOB,
    abandoned,
    one_of_each,
    request,
    spoken_again,
    with_fields,
)

EACH = pytest.mark.parametrize("message", one_of_each(), ids=lambda m: type(m).__name__)


@EACH
def test_every_message_round_trips(message: Message) -> None:
    assert (
        subjects.decode_message(subjects.subject_of(message), subjects.encode_message(message))
        == message
    )


@EACH
def test_a_body_is_plain_json_with_its_tag(message: Message) -> None:
    body = json.loads(subjects.encode_message(message))

    assert body["fact"] == subjects.tag_of(type(message))


@EACH
def test_a_repeated_message_has_the_same_id(message: Message) -> None:
    assert spoken_again(message).id() == message.id()


def test_a_message_with_another_meaning_has_another_id() -> None:
    """The server knows an id for two minutes: messages of different meaning need different ids.

    For example, a task that was prepared and then fails, or a chief that drains for another
    generation, must not be taken for a repetition.
    """
    prepared = next(m for m in one_of_each() if isinstance(m, GenerationPrepared))
    saved = next(m for m in one_of_each() if isinstance(m, CheckpointSaved))
    last_words = [
        replace(saved, final=final, successor=s)
        for final, s in ((False, None), (True, 2), (True, 3))
    ]

    assert len({replace(prepared, error=error).id() for error in (None, "killed")}) == 2
    assert len({message.id() for message in last_words}) == 3


def test_a_pods_name_is_job_name_and_task_name() -> None:
    task = TaskPlan(role="ps", index=0, serial=7, node="n1", resources=Resources())
    assert task.pod("mnist") == f"mnist-{task.name()}" == "mnist-ps-7"


def test_no_two_kinds_share_an_id() -> None:
    ids = [m.id() for m in one_of_each()]

    assert len(set(ids)) == len(ids)


@EACH
def test_a_messages_subject_has_its_tag_and_key(message: Message) -> None:
    subject = subjects.subject_of(message)

    assert subject == f"weir.{subjects.tag_of(type(message))}.{message.key()}"
    assert subjects.kind_of(subject) is type(message)


def test_dots_in_a_node_name_do_not_split_the_subject() -> None:
    node = next(m for m in one_of_each() if isinstance(m, CapacityChanged))

    assert subjects.subject_of(node) == "weir.capacity.changed.n1_example_org"


def test_every_kind_is_stored_in_one_stream_only() -> None:
    from shared.bus.streams import stream_configs
    from shared.bus.subjects import stream_holding

    areas = {s.name: [str(p).split(".")[1] for p in s.subjects or []] for s in stream_configs()}
    for message in one_of_each():
        subject = subjects.subject_of(message)
        assert subject.split(".")[1] in areas[stream_holding(subject)]


@EACH
def test_a_body_on_another_kinds_subject_is_unusable(message: Message) -> None:
    other = next(
        m for m in one_of_each() if type(m) is not type(message) and not isinstance(m, JobRejected)
    )

    with pytest.raises(UnreadableMessage):
        subjects.decode_message(subjects.subject_of(other), subjects.encode_message(message))


def test_a_body_that_names_another_job_than_its_subject_is_unusable() -> None:
    with pytest.raises(
        UnreadableMessage, match=r"belongs on weir\.job\.requested\.default\.digits"
    ):
        subjects.decode_message(
            "weir.job.requested.default.letters", subjects.encode_message(request())
        )


def test_a_body_that_names_another_namespace_than_its_subject_is_unusable() -> None:
    with pytest.raises(UnreadableMessage, match="belongs on"):
        subjects.decode_message(
            "weir.job.requested.team.digits", subjects.encode_message(request())
        )


def test_a_request_on_the_short_subject_is_for_the_default_namespace() -> None:
    assert (
        subjects.decode_message("weir.job.requested.digits", subjects.encode_message(request()))
        == request()
    )


def test_a_request_for_another_namespace_is_unusable_on_the_short_subject() -> None:
    with pytest.raises(UnreadableMessage):
        subjects.decode_message(
            "weir.job.requested.digits", subjects.encode_message(request(namespace="team"))
        )


def test_a_misspelt_field_of_a_request_is_named() -> None:
    body = with_fields(subjects.encode_message(request()), epoch=3)

    with pytest.raises(UnreadableMessage, match="epoch"):
        subjects.decode_message("weir.job.requested.digits", body)


def test_a_field_of_a_later_version_is_ignored_in_a_fact() -> None:
    body = with_fields(subjects.encode_message(abandoned()), mood="sad")

    assert subjects.decode_message(subjects.subject_of(abandoned()), body) == abandoned()


@pytest.mark.parametrize(
    "name",
    ["Digits", "-digits", "digits-", "a.b", "a*", "a>", "", "a" * 41, "a b", "ünder", "digits\n"],
)
def test_a_job_name_that_is_no_dns_label_is_unusable(name: str) -> None:
    body = with_fields(subjects.encode_message(request()), job=name)

    with pytest.raises(UnreadableMessage):
        subjects.decode_message(f"weir.job.requested.default.{name}", body)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"epochs": 2.5},
        {"batch": {"start": 0, "min": 1, "max": 2}},
        {"program": {"name": "x.py", "digest": "md5-1"}},
        {"handover": "whenever"},
        {"grace_s": -1},
        {"checkpoint": {"every_s": 0.1}},
    ],
    ids=lambda w: next(iter(w)),
)
def test_a_value_out_of_bounds_is_an_error_with_its_path(wrong: dict[str, object]) -> None:
    with pytest.raises(UnreadableMessage, match=next(iter(wrong))):
        subjects.decode_message(
            "weir.job.requested.digits", with_fields(subjects.encode_message(request()), **wrong)
        )


def unbounded(kind: inspect.Type, at: str) -> Iterator[str]:
    """Yield the places in a type where a text or a list has no maximum length."""
    if (
        isinstance(kind, inspect.StrType | inspect.VarTupleType | inspect.DictType)
        and kind.max_length is None
    ):
        yield at
    if isinstance(kind, inspect.VarTupleType):
        yield from unbounded(kind.item_type, f"{at}[]")
    if isinstance(kind, inspect.DictType):
        yield from unbounded(kind.key_type, f"{at} key")
        yield from unbounded(kind.value_type, f"{at} value")
    if isinstance(kind, inspect.UnionType):
        yield from (place for one in kind.types for place in unbounded(one, at))
    if isinstance(kind, inspect.StructType):
        yield from (
            place for field in kind.fields for place in unbounded(field.type, f"{at}.{field.name}")
        )


@pytest.mark.parametrize(
    "kind", [kind for kind, users in PUBLISHED_BY.items() if JOB_USER in users]
)
def test_every_text_and_list_of_a_job_message_has_a_maximum_length(kind: type[Message]) -> None:
    assert list(unbounded(inspect.type_info(kind), kind.__name__)) == []


def test_a_text_that_is_too_long_is_an_error_with_its_path() -> None:
    saved = next(m for m in one_of_each() if isinstance(m, CheckpointSaved))

    with pytest.raises(UnreadableMessage, match="path"):
        subjects.decode_message(
            subjects.subject_of(saved), subjects.encode_message(replace(saved, path="/" * 4_097))
        )


def test_an_unknown_subject_is_unusable() -> None:
    with pytest.raises(UnreadableMessage, match="no message is called"):
        subjects.decode_message("weir.job.wished.default.digits", b"{}")


BODIES = [subjects.encode_message(m) for m in one_of_each()]
SUBJECTS = [subjects.subject_of(m) for m in one_of_each()]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def _read(subject: str, body: bytes) -> None:
    try:
        message = subjects.decode_message(subject, body)
    except UnreadableMessage:
        return
    assert subject in (
        subjects.subject_of(message),
        subjects.subject_of(message).replace(".default.", "."),
    )


@given(
    st.sampled_from([*SUBJECTS, "weir.job.requested.digits", "weir", "", "weir.job"]), st.binary()
)
def test_any_bytes_are_read_or_unusable_and_nothing_else(subject: str, body: bytes) -> None:
    _read(subject, body)


def test_a_request_with_a_field_name_that_is_no_text_is_unusable() -> None:
    at = SUBJECTS.index("weir.job.requested.default.digits")
    with pytest.raises(UnreadableMessage, match="utf-8"):
        subjects.decode_message(SUBJECTS[at], BODIES[at].replace(b"{", b'{"\x80":1,', 1))


@given(st.sampled_from(SUBJECTS), st.sampled_from(BODIES), st.data())
def test_a_damaged_body_is_read_or_unusable_and_nothing_else(
    subject: str, body: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(body)))
    _read(
        subject,
        body[:at] + data.draw(st.binary(max_size=8)) + body[at + data.draw(st.integers(0, 8)) :],
    )


@given(st.sampled_from(list(zip(SUBJECTS, BODIES, strict=True))), st.data())
def test_any_json_in_any_field_is_read_or_unusable_and_nothing_else(
    said: tuple[str, bytes], data: st.DataObject
) -> None:
    fields = json.loads(said[1])
    field = data.draw(st.sampled_from(sorted(fields)))
    _read(said[0], json.dumps({**fields, field: data.draw(JSON)}).encode())


def test_a_request_holds_every_number_that_the_design_names() -> None:
    named = {
        "program",
        "epochs",
        "batch",
        "ps",
        "workers",
        "resources",
        "device_batch_max",
        "priority",
        "policy",
    }
    named |= {
        "image",
        "checkpoint",
        "grace_s",
        "handover",
        "learning_rate",
        "volumes",
        "job",
        "namespace",
    }

    assert named <= set(JobRequested.__struct_fields__)


def test_the_generation_is_part_of_an_id() -> None:
    assert abandoned(**{**JOB, "generation": 3}).id() != abandoned().id()


def test_other_parameters_entry_or_consistency_are_another_version_of_a_program() -> None:
    """A version of a single file without parameters is its digest, as in earlier snapshots."""
    plain = request()
    archive = replace(plain.program, entry="main.py")
    versions = [
        each.program_version
        for each in (
            plain,
            request(params={"width": 1}),
            request(params={"width": 2}),
            request(program=archive),
            request(program=replace(archive, entry="other.py")),
            request(consistency="global-batch"),
            request(consistency="exact"),
        )
    ]

    assert versions[0] == plain.program.digest and len(set(versions)) == 7
    one, other = request(params={"a": 1, "b": 2}), request(params={"b": 2, "a": 1})
    assert one.program_version == other.program_version


def test_staleness_is_limited_where_gradients_can_be_stale() -> None:
    own = request(consistency="async", max_staleness=2)
    assert (own.staleness_limit(1), own.staleness_limit(4)) == (None, 2)
    usual = request(consistency="async")
    assert (usual.staleness_limit(1), usual.staleness_limit(4)) == (None, 30)
    assert request(consistency="async", max_staleness="off").staleness_limit(4) is None
    assert request(consistency="global-batch", max_staleness=2).staleness_limit(4) is None


def test_a_job_of_an_earlier_version_makes_updates_of_each_worker_and_drops_none() -> None:
    earlier = request()
    assert earlier.consistency is None
    assert not earlier.makes_updates_together
    assert earlier.staleness_limit(4) is None
