"""Bytes per pair of ranks: added up by step and block, kept by a resumed run up to its step, absent from older traces."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest

import hpcpar.trace
from hpcpar.run.recorder import Recorder
from hpcpar.trace.schema import Axis, Operation
from hpcpar.trace.writer import Writer

PLAN = {"config": {"plan": {"ep": 2}}}
DISPATCH, COMBINE = int(Operation.DISPATCH), int(Operation.COMBINE)


def test_exchanges_of_a_step_and_block_add_up(tmp_path: Path) -> None:
    recorder = Recorder(Writer(tmp_path, 0, 2, PLAN))
    recorder.begin(3)
    for sizes in ((10, 0), (5, 2**40)):
        recorder.pairs(1, "dispatch", "ep", (4, 6), sizes)
    recorder.pairs(1, "combine", "ep", (4, 6), [1, 2])
    recorder.flush()
    recorder.pairs(1, "dispatch", "ep", (4, 6), [7, 7])  # after a flush: a row of its own
    recorder.begin(4)
    recorder.pairs(2, "dispatch", "ep", (4, 6), [3, 3])
    recorder.close()
    rows = hpcpar.trace.open(tmp_path).pairs(0).tolist()
    ep = int(Axis.EP)
    assert rows == [
        (3, 1, DISPATCH, ep, 4, 2, 15),
        (3, 1, DISPATCH, ep, 6, 2, 2**40),
        (3, 1, COMBINE, ep, 4, 1, 1),
        (3, 1, COMBINE, ep, 6, 1, 2),
        (3, 1, DISPATCH, ep, 4, 1, 7),
        (3, 1, DISPATCH, ep, 6, 1, 7),
        (4, 2, DISPATCH, ep, 4, 1, 3),
        (4, 2, DISPATCH, ep, 6, 1, 3),
    ]
    with h5py.File(tmp_path / "trace.00000.h5") as file:
        assert h5py.check_enum_dtype(file["pairs"].dtype["operation"])["DISPATCH"] == DISPATCH
    Recorder().pairs(1, "dispatch", "ep", (4, 6), (10, 0))  # without a trace nothing is kept


def test_a_resumed_run_drops_later_steps(tmp_path: Path) -> None:
    for after in (None, 2):
        with Writer(tmp_path, 0, 1, PLAN, after) as writer:
            for step in (1, 2, 3):
                writer.step = step + (after or 0)
                writer.pairs(0, DISPATCH, int(Axis.EP), (0,), (step,))
    rows = hpcpar.trace.open(tmp_path).pairs(0)
    assert list(zip(rows["step"].tolist(), rows["bytes"].tolist(), strict=True)) == [(1, 1), (2, 2), (3, 1), (4, 2), (5, 3)]


@pytest.mark.parametrize("resumed", [False, True])
def test_a_trace_without_them_is_read(tmp_path: Path, resumed: bool) -> None:
    Writer(tmp_path, 0, 1, PLAN).close()
    with h5py.File(tmp_path / "trace.00000.h5", "a") as file:
        del file["pairs"]
    if resumed:
        Writer(tmp_path, 0, 1, PLAN, after=0).close()
    assert not len(hpcpar.trace.open(tmp_path).pairs(0))
