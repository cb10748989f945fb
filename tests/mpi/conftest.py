"""Tests on several ranks: `mpirun -n N python tests/mpi/run.py`. A test says on how many ranks it runs: @pytest.mark.mpi(min_size=N).

Only the tests for this launch's size are collected. A test gets a communicator of its own; all ranks agree on its verdict, so that a
failure on one rank fails it on all and the next test starts in step. A rank that waits for one that failed gives up after a while.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mpi4py import MPI

from hpcpar.comm.world import World

PATIENCE_S = 60.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    size = MPI.COMM_WORLD.Get_size()
    marks = [item.get_closest_marker("mpi") for item in items]
    mine = [i for i, m in zip(items, marks, strict=True) if m is not None and size in _sizes(m)]
    config.hook.pytest_deselected(items=[i for i in items if i not in mine])
    items[:] = mine


def _sizes(mark: pytest.Mark) -> tuple[int, ...]:
    return tuple(mark.kwargs.get("sizes", (mark.kwargs.get("min_size"),)))


FAILED = pytest.StashKey[bool]()


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """All ranks, on a communicator of the test's own."""
    made = World(MPI.COMM_WORLD.Dup(), wait="auto", timeout_s=PATIENCE_S)
    yield made
    quiet = not (request.node.stash.get(FAILED, False) or made.outstanding or made.thread or made.alarm.rung)
    if MPI.COMM_WORLD.allreduce(quiet, MPI.LAND):  # a message that nobody took would come to the communicator's successor
        made.free()


@pytest.fixture
def shared_path(tmp_path_factory: pytest.TempPathFactory):
    """A folder that every rank sees."""
    comm = MPI.COMM_WORLD
    return comm.bcast(tmp_path_factory.mktemp("shared") if comm.Get_rank() == 0 else None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if report.when == "call":
        failed = MPI.COMM_WORLD.allgather(report.failed)
        item.stash[FAILED] = any(failed)
        if any(failed) and not report.failed:
            report.outcome = "failed"
            report.longrepr = f"failed on ranks {[r for r, f in enumerate(failed) if f]}"
    return report
