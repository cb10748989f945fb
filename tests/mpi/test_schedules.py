"""Every synchronous schedule of the registry, run for real: one copy of the parameters exactly, two copies to 1e-12."""

from __future__ import annotations

import pytest
from proof import compare, describe, run, serial

from hpcpar.errors import PlanError
from hpcpar.schedule.family import Synchronous
from hpcpar.schedule.generate import SCHEDULES

NAMES = [name for name, family in SCHEDULES.items() if isinstance(family, Synchronous)]


def plan_of(name: str, ranks: int, microbatches: int, **more):
    family = SCHEDULES[name]
    chunks = {"interleaved": 2}.get(name, family.chunks or 1)
    return {"pp": ranks, "schedule": name, "microbatches": microbatches, "chunks": chunks, **more}


def prove(world, style, plan, microbatches):
    """Equal to the serial run, or refused on every rank with a reason."""
    exact = SCHEDULES[plan["schedule"]].copies == 1 and plan.get("dp", 1) == 1
    try:
        got = run(describe(style, plan), world)
    except PlanError as e:
        return str(e)
    compare(got, serial(style, (("microbatches", microbatches),)), exact)
    return ""


@pytest.mark.mpi(sizes=(2, 3, 4))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("style", ("deep-tied", "deep-untied", "deep-llama"))
def test_every_schedule_is_the_serial_model(world, name, style):
    refused = prove(world, style, plan_of(name, world.size, 8), 8)
    if SCHEDULES[name].copies == 2 and world.size % 2:
        assert "even" in refused
    else:
        assert not refused


@pytest.mark.mpi(sizes=(2, 4))
@pytest.mark.parametrize("microbatches", (1, 2, 3, 6))
@pytest.mark.parametrize("name", NAMES)
def test_few_and_odd_microbatches_work_or_are_refused_with_the_reason(world, name, microbatches):
    refused = prove(world, "deep-tied", plan_of(name, world.size, microbatches), microbatches)
    assert not refused or ("microbatches" in refused and SCHEDULES[name].copies == 2) or name.startswith("dualpipe"), refused


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("recompute", ("none", "full"))
@pytest.mark.parametrize("name", NAMES)
def test_with_data_parallelism(world, name, recompute):
    assert not prove(world, "deep-tied", plan_of(name, 2, 4, dp=2, recompute=recompute, sync={"bucket_mb": 0.02}), 1)


@pytest.mark.mpi(sizes=(8,))
@pytest.mark.parametrize("name", NAMES)
def test_eight_ranks(world, name):
    style = "deepest-tied" if name != "interleaved" else "deepest-untied"
    assert not prove(world, style, plan_of(name, 8, 24), 24)
