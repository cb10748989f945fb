"""The benchmarks of several ranks measure every way that there is; what they find is no test's matter."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from hpcpar.cli.bench import _lines
from hpcpar.collectives import ALGORITHMS
from hpcpar.comm.world import World
from hpcpar.measure import allreduce, bench


@pytest.mark.mpi(sizes=(2, 4))
def test_the_allreduce_of_every_algorithm(world: World) -> None:
    found = allreduce.measure(world, 4096, rounds=3)
    assert set(found["ways"]) == {*allreduce.OWN, *ALGORITHMS} and found["ranks"] == world.size and found["auto"] == "doubling"
    assert all(w["seconds"] > 0 and w["against_mpi"] > 0 and w["copies"] > 0 for w in found["ways"].values())
    assert found["ways"]["ring"]["seconds"] == min(world.comm.allgather(found["ways"]["ring"]["seconds"]))  # that of the slowest rank
    assert len(_lines({"allreduce": found})) == 1 + len(found["ways"])


@pytest.mark.mpi(sizes=(2,))
def test_weak_scaling_of_every_variant(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MODEL", {"layers": 2, "width": 16, "heads": 2, "context": 16, "vocabulary": 256})
    found = bench.scaling(world, World(MPI.COMM_SELF.Dup()), ("auto", "mpi", "thread"), rounds=2)
    if world.rank == 0:
        assert set(found["variants"]) == {"auto", "mpi", "thread"}
        assert all(v["together_s"] > 0 and 0 < v["efficiency"] < 10 for v in found["variants"].values())
        assert len(_lines({"scaling": found})) == 4
