"""A schedule written by hand, as a file: checked, then run, and equal to what it must be equal to."""

from __future__ import annotations

import pytest
from proof import compare, describe, run, serial
from test_asynchronous import prove

from hpcpar.errors import PlanError
from hpcpar.run.streams import flow_of
from hpcpar.schedule import text

HAND = "0F0,0F1,0F2,0I0,0I1,0W0,0I2,0W1,0W2,0U\n1F0,1I0,1F1,1I1,1W0,1F2,1W1,1I2,1W2,1U\n"


def shared_file(world, folder, content, name="mine.csv"):
    path = folder / name
    if world.rank == 0:
        path.write_text(content)
    world.barrier()
    return str(path)


@pytest.mark.mpi(sizes=(2,))
def test_a_synchronous_list(world, shared_path):
    plan = {"pp": 2, "schedule": shared_file(world, shared_path, HAND), "microbatches": 3}
    compare(run(describe("gpt-tied", plan), world), serial("gpt-tied", (("microbatches", 3),)), exact=True)


@pytest.mark.mpi(sizes=(2,))
def test_a_list_that_is_wrong_is_refused(world, shared_path):
    for i, (good, bad) in enumerate((("0I1,0W0", "0W0,0I1,0W0"), ("1F2,", ""), ("0I0,0I1", "0I1,0I0"), ("1F0,1I0,1F1", "1F0,1F1,1I0,1I0"))):
        plan = {"pp": 2, "schedule": shared_file(world, shared_path, HAND.replace(good, bad), f"{i}.csv"), "microbatches": 3}
        with pytest.raises(PlanError):
            run(describe("gpt-tied", plan), world)


@pytest.mark.mpi(sizes=(2,))
@pytest.mark.parametrize("name, microbatches, style, clip", (("pipedream-2bw", 3, "gpt-tied", 0.5), ("pipedream", 1, "gpt-untied", 0.0)))
def test_an_asynchronous_list(world, shared_path, monkeypatch, name, microbatches, style, clip):
    """The generated list, written to a file and read again, against the same oracle."""
    cfg = describe(style, {"pp": 2, "schedule": name, "microbatches": microbatches}, {"steps": 7, "batch": 6, "clip": clip})
    path = shared_file(world, shared_path, text.dumps(flow_of(cfg, 0, 7).schedule()))
    import oracle

    monkeypatch.setattr(oracle, "RULES", {**oracle.RULES, path: oracle.RULES[name]})
    prove(world, style, {"pp": 2, "schedule": path, "microbatches": microbatches}, {"clip": clip})


@pytest.mark.mpi(sizes=(2,))
def test_an_asynchronous_list_of_another_length_is_refused(world, shared_path):
    cfg = describe("gpt-untied", {"pp": 2, "schedule": "pipedream"}, {"steps": 5, "clip": 0.0})
    path = shared_file(world, shared_path, text.dumps(flow_of(cfg, 0, 5).schedule()))
    with pytest.raises(PlanError, match=r"train.steps = 5"):
        run(describe("gpt-untied", {"pp": 2, "schedule": path}, {"steps": 6, "clip": 0.0}), world)
