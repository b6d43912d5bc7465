"""Tests of the answer to a request: defaults for open fields, and the reasons of a refusal."""

from __future__ import annotations

import msgspec
import pytest

from services.allocator.admission.requests import ProgramFault, answer_request, with_defaults
from services.allocator.policies.contract import Quota
from services.allocator.settings import Rules
from services.allocator.state.state import State, apply
from services.allocator.steps.verdict import Rationale, next_decision
from shared.messages import (
    LARGEST_PROGRAM,
    CheckpointRule,
    JobAccepted,
    JobRejected,
    JobRequested,
    Resources,
    RoleResources,
)
from tests.allocator.builders import AT_ONCE, request, span

DEFAULT = RoleResources()


def asked(resources: dict[str, dict[str, float]] | None) -> RoleResources:
    """Return the resources that a request with these resources (as JSON) is accepted with."""
    said = msgspec.convert({**msgspec.to_builtins(request()), "resources": resources}, JobRequested)
    answered = answer_request(apply(State(), said, "weir-orders", 1, 0.0), 1, 0, 0.0, AT_ONCE)
    assert isinstance(answered, JobAccepted) and answered.request.resources
    return answered.request.resources


def test_a_partial_role_gets_defaults() -> None:
    given = asked({"worker": {"cpu": 4}, "ps": {"memory_gib": 3}, "chief": {"gpu": 1}})

    assert given.worker == Resources(cpu=4, memory_gib=DEFAULT.worker.memory_gib)
    assert given.ps == Resources(cpu=DEFAULT.ps.cpu, memory_gib=3)
    assert given.chief == Resources(
        cpu=DEFAULT.chief.cpu, memory_gib=DEFAULT.chief.memory_gib, gpu=1
    )


def test_missing_resources_get_defaults_and_complete_ones_are_kept() -> None:
    whole = {role: {"cpu": 2.0, "memory_gib": 5.0} for role in ("chief", "ps", "worker")}

    assert asked(None) == DEFAULT
    assert asked(whole) == msgspec.convert(whole, RoleResources)


def accepted_request(asked: JobRequested, rules: Rules = AT_ONCE) -> JobRequested:
    there = apply(State(), asked, "weir-orders", 1, 0.0)
    answered = answer_request(there, 1, 0, 0.0, rules)
    assert isinstance(answered, JobAccepted)
    return answered.request


def test_a_new_job_gets_the_consistency_of_the_cluster_unless_it_names_one() -> None:
    in_cluster = msgspec.structs.replace(AT_ONCE, consistency="async")

    assert accepted_request(request()).consistency == "global-batch"
    assert accepted_request(request(), in_cluster).consistency == "async"
    named = accepted_request(request(consistency="global-batch"), in_cluster)
    assert named.consistency == "global-batch"


@pytest.mark.parametrize(("most", "virtual"), [(1, 4), (4, 4), (5, 8), (9, 16), (100, 16)])
def test_an_exact_job_has_about_as_many_virtual_workers_as_it_may_have_workers(
    most: int, virtual: int
) -> None:
    asked = request(consistency="exact", batch=span(32, 32, 32), workers=span(1, most=most))

    assert accepted_request(asked).virtual_workers == virtual
    assert accepted_request(msgspec.structs.replace(asked, virtual_workers=3)).virtual_workers == 3
    assert accepted_request(request()).virtual_workers is None


def test_an_exact_cluster_refuses_a_batch_that_may_change() -> None:
    exact = msgspec.structs.replace(AT_ONCE, consistency="exact")
    varying = request(batch=span(32, most=64))
    answered = answer_request(apply(State(), varying, "weir-orders", 1, 0.0), 1, 0, 0.0, exact)

    assert isinstance(answered, JobRejected)
    assert "updates of the same size" in answered.reasons[0]


def test_a_simulation_may_ignore_memory() -> None:
    weightless = RoleResources(chief=Resources(), ps=Resources(cpu=1), worker=Resources(cpu=1))

    assert with_defaults(request(resources=weightless), AT_ONCE).resources == weightless


def test_a_minimum_above_the_quota_is_rejected_with_other_reasons() -> None:
    rules = msgspec.structs.replace(AT_ONCE, quotas={"default": Quota(cpu=3)})
    there = apply(State(), request(workers=span(4, least=3)), "weir-orders", 1, 0.0)
    answered = answer_request(there, 1, ProgramFault.MISSING, 0.0, rules)
    assert isinstance(answered, JobRejected)
    why = (
        "quota of namespace default: needs at least 5 cpu, and the limit is 3 (a chief, 1 ps and 3"
        " workers)"
    )
    assert answered.reasons[0] == why and len(answered.reasons) == 2
    just = answer_request(
        apply(State(), request(workers=span(4)), "weir-orders", 1, 0.0), 1, 0, 0.0, rules
    )
    assert isinstance(just, JobAccepted)


def test_a_missing_or_too_large_program_is_listed_with_other_reasons() -> None:
    rules = msgspec.structs.replace(AT_ONCE, job_namespaces=("team-a",))
    there = apply(State(), request(), "weir-orders", 1, 0.0)

    def reasons(program: int | ProgramFault) -> tuple[str, ...]:
        answered = answer_request(there, 1, program, 0.0, rules)
        assert isinstance(answered, JobRejected)
        return answered.reasons

    forbidden = "namespace: jobs may not run in 'default'; allowed are team-a"
    assert reasons(LARGEST_PROGRAM) == (forbidden,)
    assert reasons(LARGEST_PROGRAM + 1) == (
        forbidden,
        "program: 16,777,217 bytes are more than 16,777,216",
    )
    assert reasons(ProgramFault.MISSING)[1].startswith("program.digest: the store has no program")
    assert "has other content" in reasons(ProgramFault.OTHER)[1]
    assert reasons(ProgramFault.NO_BUCKET)[1].startswith("namespace: 'default' is not provisioned")


def test_an_accepted_job_has_its_own_checkpoint_folder() -> None:
    asked_for = apply(State(), request(), "weir-orders", 12, 0.0)
    accepted = answer_request(asked_for, 12, 0, 86_400.0, AT_ONCE)
    assert (
        isinstance(accepted, JobAccepted)
        and accepted.checkpoint_folder == "default/mnist-12-19700102t000000"
    )

    job = apply(asked_for, accepted, "weir-orders", 13, 86_400.0).jobs[accepted.key()]

    decided = next_decision(job, [], 1, 86_401.0, Rationale(reason="", cause="-"))
    assert decided.checkpoint_folder == accepted.checkpoint_folder


def test_a_job_may_continue_only_from_a_finished_job() -> None:
    asked_for = apply(State(), request(), "weir-orders", 12, 0.0)
    running = answer_request(asked_for, 12, 0, 86_400.0, AT_ONCE)
    assert isinstance(running, JobAccepted)
    state = apply(asked_for, running, "weir-orders", 13, 86_400.0)

    def answered(folder: str) -> JobAccepted | JobRejected:
        wanted = msgspec.structs.replace(
            request(), job="next", checkpoint=CheckpointRule(continue_from=folder)
        )
        return answer_request(
            apply(state, wanted, "weir-orders", 14, 86_500.0), 14, 0, 86_500.0, AT_ONCE
        )

    refused = answered(running.checkpoint_folder)
    assert isinstance(refused, JobRejected) and "which is not finished" in refused.reasons[0]
    assert isinstance(answered("default/net-3-19700101t000000"), JobAccepted)
    foreign = answered("team-a/net-3-19700101t000000")
    assert (
        isinstance(foreign, JobRejected)
        and "is not the folder of a job in namespace 'default'" in foreign.reasons[0]
    )
