"""Tests that compare a program with its job: its variables and batches have to fit the tasks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.doctor.findings import Finding
from services.trainer.doctor.job_fit import (
    CHIEF_GIB,
    NEXT_PS_GIB,
    PS_GIB,
    SMALL_DELTA,
    WORKER_GIB,
    fullest_ps_bytes,
    job_findings,
    useful_ps,
)
from services.trainer.doctor.observations import Observations, VariableInfo
from shared.messages import GIB, Resources, RoleResources
from tests.allocator.builders import request, span

ROOMY = RoleResources(
    chief=Resources(memory_gib=9), ps=Resources(memory_gib=9), worker=Resources(memory_gib=9)
)


def variables(*gib: float) -> tuple[VariableInfo, ...]:
    return tuple(
        VariableInfo(name=f"table-{n}", shape=(1,), bytes=round(each * GIB))
        for n, each in enumerate(gib)
    )


def memory(role: str, gib: float) -> RoleResources:
    return RoleResources(
        **{
            **{f: getattr(ROOMY, f) for f in ("chief", "ps", "worker")},
            role: Resources(memory_gib=gib),
        }
    )


def found(seen: Observations, **fields: Any) -> list[Finding]:
    usual: dict[str, Any] = {
        "ps": span(1),
        "workers": span(1),
        "batch": span(32),
        "resources": ROOMY,
    }
    return list(job_findings(seen, request(**(usual | fields))))


def ill(seen: Observations, **fields: Any) -> Finding:
    (one,) = [each for each in found(seen, **fields) if each.weight != "fine"]
    return one


def test_a_small_model_fits() -> None:
    (told,) = found(Observations(examples=1000, variables=variables(0.1, 0.1)))

    assert told.weight == "fine" and told.what == (
        f"of 1 ps the fullest holds 0.20 GiB, besides TensorFlow's {PS_GIB} GiB: "
        "its 9 GiB have room for twice that, which a change of size needs"
    )


# ---------------------------------------------------------------- batches


def test_a_batch_larger_than_an_epoch_is_reported() -> None:
    told = ill(Observations(examples=353), batch=span(16, most=512))

    assert (
        told.what == "batch may grow to 512, and an epoch has 353 examples"
        and "at most 353" in told.remedy
    )


def test_workers_without_a_batch_are_reported() -> None:
    alone: dict[str, Any] = {"batch": span(32), "consistency": "async"}
    told = ill(Observations(examples=100), workers=span(1, most=6), **alone)

    assert told.what == "an epoch has 4 batches of 32, and workers.max is 6"
    assert found(Observations(examples=100), workers=span(1, most=4), **alone) == []


@pytest.mark.parametrize("consistency", [None, "global-batch", "exact"])
def test_workers_without_an_example_of_a_joint_update_are_reported(consistency: Any) -> None:
    joint: dict[str, Any] = {"batch": span(8), "consistency": consistency}
    told = ill(Observations(examples=16), workers=span(1, most=9), **joint)

    assert told.what == "an update has 8 examples, and workers.max is 9"
    assert found(Observations(examples=16), workers=span(1, most=8), **joint) == []


# ---------------------------------------------------------------- parameter servers


def test_useless_ps_are_reported() -> None:
    """tensorflow#37100: one variable has most of the bytes, so more than two ps do not help."""
    told = ill(Observations(variables=variables(1.0, 0.2, 0.2)), ps=span(1, most=4))

    assert (
        told.weight == "advice"
        and told.what == "ps.max is 4, and more than 2 do not reduce the load of the fullest ps"
    )
    assert told.remedy.startswith("ps.max of 2: ") and "table-0 has 1.07 GB" in told.remedy
    assert [
        f.weight for f in found(Observations(variables=variables(1, 1, 1, 1)), ps=span(1, most=4))
    ] == ["fine"]


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=12), st.integers(1, 8), st.integers(0, 2)
)
def test_more_ps_than_useful_do_not_reduce_the_load(
    sizes: list[int], most: int, copies: int
) -> None:
    held = tuple(VariableInfo(name="-", shape=(), bytes=each) for each in sizes)
    slots = copies * sum(sizes)

    useful = useful_ps(held, slots, most)

    assert 1 <= useful <= most
    assert fullest_ps_bytes(held, slots, useful) <= 1.05 * fullest_ps_bytes(held, slots, most)
    assert fullest_ps_bytes(held, slots, 1) == pytest.approx((1 + copies) * sum(sizes))
    assert fullest_ps_bytes(held, slots, most) >= (1 + copies) * max(sizes) * 0.999


def test_a_table_larger_than_a_ps_fits_on_no_number_of_ps() -> None:
    told = ill(
        Observations(variables=variables(1.0, 0.2)),
        ps=span(2, least=2),
        resources=memory("ps", 1.25),
    )

    assert (
        told.weight == "wrong"
        and told.what == f"table-0 alone needs {PS_GIB + 1:.2f} GiB on a ps, which has 1.25"
    )
    assert "several smaller tables" in told.remedy


def test_optimizer_slots_are_counted_beside_their_variable() -> None:
    seen = Observations(variables=variables(0.3), slots=round(0.6 * GIB))

    assert ill(seen, resources=memory("ps", 1.0)).what.startswith(
        f"table-0 alone needs {PS_GIB + 0.9:.2f} GiB"
    )


def test_tables_that_need_more_ps_have_the_number() -> None:
    told = ill(
        Observations(variables=variables(0.5, 0.5, 0.5)),
        ps=span(1, most=3),
        resources=memory("ps", 1.0),
    )

    assert told.weight == "wrong" and "of 1 ps the fullest holds 1.50 GiB" in told.what
    assert told.remedy == f"{PS_GIB + 1.5:.2f} GiB for ps, or ps.min of 3"


def test_without_memory_for_two_generations_a_resize_costs_a_restart() -> None:
    told = ill(Observations(variables=variables(0.1, 0.1, 0.1, 0.1)), resources=memory("ps", 1.0))

    assert told.weight == "advice" and ": its 1 GiB have no room for twice that" in told.what
    assert told.remedy.startswith(
        f"{PS_GIB + NEXT_PS_GIB + 0.8:.2f} GiB; with less, every change of size restarts"
    )


def test_a_ps_can_be_too_small_during_its_start() -> None:
    told = ill(Observations(variables=variables(0.25)), resources=memory("ps", 1.0))

    assert told.weight == "advice" and ": its 1 GiB may be too little at the start" in told.what
    assert told.remedy.startswith(
        f"{PS_GIB + 0.75:.2f} GiB, or create initial values in one tf.function"
    )


def test_divided_tables_are_spread_over_all_ps_and_not_on_the_chief() -> None:
    table = VariableInfo(name="table", shape=(1,), bytes=6 * GIB, divided=True)
    assert fullest_ps_bytes([table], 6 * GIB, 3) == pytest.approx(4 * GIB)
    assert useful_ps([table], 0, 5) == 5
    told = found(Observations(variables=(table,)), resources=memory("chief", 2.0))
    assert not [each for each in told if "the chief needs" in each.what]


def test_marks_of_rows_and_copies_of_changed_rows_need_memory() -> None:
    table = VariableInfo(name="table", shape=(GIB // 4, 1), bytes=GIB, divided=True)
    assert fullest_ps_bytes([table], GIB, 2) == pytest.approx(1.5 * GIB)
    seen = Observations(variables=(table,), slots=GIB)
    two_gib = PS_GIB + NEXT_PS_GIB
    (told,) = found(seen, ps=span(2, least=2, most=2), resources=memory("ps", two_gib + 3.5))
    assert told.weight == "fine"
    assert told.what.endswith("and 134 MB are left for the changed rows of tables in a save")
    tight = ill(seen, ps=span(2, least=2, most=2), resources=memory("ps", two_gib + 2.5))
    assert "no room for twice that" in tight.what


def test_little_memory_for_changed_rows_is_advised_against() -> None:
    table = VariableInfo(name="table", shape=(GIB // 4, 1), bytes=GIB, divided=True)
    seen = Observations(variables=(table,), slots=GIB)
    both_gib = PS_GIB + NEXT_PS_GIB + 3
    advice = ill(seen, ps=span(2, least=2, most=2), resources=memory("ps", both_gib + 0.1))
    assert advice.weight == "advice"
    assert advice.remedy.startswith(f"{both_gib + 4 * SMALL_DELTA * 1.5:.2f} GiB or more")


# ---------------------------------------------------------------- chief and workers


def test_the_chief_builds_the_model_by_itself_and_twice_to_evaluate() -> None:
    seen = Observations(variables=variables(1.0), evaluated=False)
    both = Observations(variables=variables(1.0), evaluated=True)

    assert ill(seen, resources=memory("chief", 1.5)).what.startswith(
        f"the chief needs {CHIEF_GIB + 1:.2f} GiB and has 1.5"
    )
    assert [f.weight for f in found(seen, resources=memory("chief", 2.0))] == ["fine"]
    assert ill(both, resources=memory("chief", 2.0)).what.endswith("and to evaluate it")


def test_data_loaded_on_import_is_counted_for_every_worker() -> None:
    assert ill(Observations(loaded_gib=1.0), resources=memory("worker", 1.4)).what.startswith(
        f"a worker needs {WORKER_GIB + 1:.2f} GiB"
    )
    tight = ill(Observations(loaded_gib=1.0), resources=memory("worker", 2.0))
    assert (
        tight.weight == "advice" and ": a worker's 2 GiB have no room for twice that" in tight.what
    )
    assert found(Observations(loaded_gib=1.0), resources=memory("worker", 3.0)) == []


def test_more_workers_than_files_is_advice() -> None:
    here = Observations(examples=100, files=3)
    (told,) = found(here, batch=span(32), workers=span(1, most=6))
    assert "workers.max is 6, and files() returns 3 files" in told.what
    assert found(here, batch=span(512), workers=span(1, most=3)) == []
