"""A Slurm of two nodes for all tests of this folder; they are skipped, with the reason, where it cannot be had."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from two_nodes import TwoNodes, Unavailable, install

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))  # launch.py


@pytest.fixture(scope="session")
def slurm():
    try:
        install()
        with TwoNodes() as running:
            yield running
    except Unavailable as e:
        pytest.skip(f"no Slurm here: {e}")


@pytest.fixture(scope="session")
def slurm_without_pmi():
    """A site whose srun starts processes and tells them nothing of each other."""
    try:
        install()
        with TwoNodes(pmi=False) as running:
            yield running
    except Unavailable as e:
        pytest.skip(f"no Slurm here: {e}")
