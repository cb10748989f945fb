"""The file of a machine, and the pairs of ranks whose messages are timed."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from hpcpar.comm.launcher import find
from hpcpar.errors import PlanError
from hpcpar.machine import Machine
from hpcpar.measure.network import SIZES, _slope, pairs


@pytest.mark.parametrize(
    ("nodes", "inside", "across"),
    [
        ([0], (None, []), (None, [])),
        ([0, 0], ((0, 1), [(0, 1)]), (None, [])),
        ([0, 1], (None, []), ((0, 1), [(0, 1)])),
        ([0, 0, 0, 3, 3], ((0, 1), [(0, 1), (3, 4)]), ((0, 3), [(0, 3), (1, 4)])),
        ([0, 1, 0, 1], ((0, 2), [(0, 2), (1, 3)]), ((0, 1), [(0, 1), (2, 3)])),  # one after the other round the nodes
        ([0, 1, 2], (None, []), ((0, 1), [(0, 1)])),
    ],
)
def test_pairs(nodes, inside, across):
    found = pairs(nodes)
    assert found == (inside, across)
    for _, every in found:
        ranks = [r for pair in every for r in pair]
        assert len(ranks) == len(set(ranks))


def test_bandwidth_is_that_of_the_bytes_between():
    assert math.isclose(_slope((1000, 9000), [1e-5 + 1000 / 2e9, 1e-5 + 9000 / 2e9]), 2e9)
    assert _slope((1, 100), [1e-6, 1e-6]) == 1e8


@pytest.mark.skipif(find() is None, reason="no mpirun")
def test_two_ranks_write_a_file_that_reads_back(tmp_path):
    path = tmp_path / "a [b] c" / "machine.toml"
    command = [str(find()), "-n", "2", sys.executable, "-m", "hpcpar", "bench", "--out", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and "inside a node" in done.stderr
    found = Machine.read(path)
    assert (found.ranks, found.nodes, found.network.across) == (2, 1, None)
    link = found.network.inside
    assert link.sizes == SIZES and len(link.seconds) == len(SIZES) and link.latency_s == link.seconds[0]
    found.write(path)
    assert Machine.read(path) == found


def test_refusals(tmp_path):
    with pytest.raises(PlanError, match="cannot read the machine"):
        Machine.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text('name = "x"\n')
    with pytest.raises(PlanError, match="damaged"):
        Machine.read(tmp_path / "bad.toml")
