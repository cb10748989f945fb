"""Copies between host and device in a trace: hidden, waited for, counted."""

import pytest
from hand_made import write

import hpcpar.trace
from hpcpar.analyse.overlap import overlap
from hpcpar.analyse.shares import shares
from hpcpar.analyse.steps import steps
from hpcpar.analyse.volumes import volumes
from hpcpar.trace.schema import Kind, Operation


def opened(folder):
    trace = hpcpar.trace.open(folder)
    return trace, steps(trace)


def close(row, **expected):
    assert {k: row[k] for k in expected} == pytest.approx(expected, abs=1e-12)


def test_copies_hide_behind_compute_and_are_waited_for(tmp_path):
    """F from 0 to 6 and an update from 8 to 10 ms; copies from 2 to 5 and 5 to 9, the wait for the second lasts from 6 to 8."""
    here, there = ({"operation": o, "stage": 0, "bytes": 7} for o in (Operation.TO_DEVICE, Operation.TO_HOST))
    found = opened(
        write(
            tmp_path,
            [
                [
                    (1, Kind.F, 0, 6),
                    (1, Kind.COPY, 2, 5, there),
                    (1, Kind.WAIT, 6, 8, here),
                    (1, Kind.COPY, 5, 9, here),
                    (1, Kind.UPDATE, 8, 10),
                ]
            ],
        )
    )
    (row,) = overlap(*found)
    close(row, copy_s=0.007, copy_hidden=5 / 7)
    (row,) = shares(*found)
    close(row, F=0.6, update=0.2, wait=0.2, wait_copies=0.2, wait_collectives=0, wait_messages=0, copy=0)
    rows = {r["operation"]: r for r in volumes(*found)["operations"]}
    counted = {"calls": 1, "bytes": 7, "bytes_per_step": 7, "ring_bytes_per_step": None}
    assert rows["to_device"] == {"kind": "copy", "operation": "to_device", "axis": "none", **counted}
    assert rows["to_host"]["bytes"] == 7 and not volumes(*found)["pairs"]
