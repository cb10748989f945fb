"""Runs of one small model on four ranks, a strategy each, that memory.py and volumes.py read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import runs

STEPS = 3
DESCRIPTION: dict[str, Any] = {
    "model": {"layers": 4, "width": 64, "heads": 4, "vocabulary": 256, "context": 64},
    "train": {"batch": 16},
    "data": {"held_out": 0.0},
    "run": {"threads": 1},
}
PLANS: dict[str, dict[str, Any]] = {
    "dp": {"dp": 4, "microbatches": 2},
    "zero 1": {"dp": 4, "zero": 1, "microbatches": 2},
    "zero 2": {"dp": 4, "zero": 2, "microbatches": 2},
    "zero 3": {"dp": 4, "zero": 3, "microbatches": 2},
    "gpipe": {"pp": 4, "schedule": "gpipe", "microbatches": 8},
    "1f1b": {"pp": 4, "microbatches": 8},
    "interleaved": {"pp": 2, "dp": 2, "schedule": "interleaved", "chunks": 2, "microbatches": 8},
    "zb-h1": {"pp": 4, "schedule": "zb-h1", "microbatches": 8},
    "dp x pp, zero 1": {"dp": 2, "pp": 2, "zero": 1, "microbatches": 4},
    "recompute": {"dp": 4, "recompute": "full", "microbatches": 2},
    "tp": {"tp": 4, "microbatches": 2},
    "tp, sequence": {"tp": 4, "sequence": True, "microbatches": 2},
    "cp zig-zag": {"cp": 4, "microbatches": 2},
    "cp gather": {"cp": 4, "context": "gather", "microbatches": 2},
    "cp ulysses": {"cp": 4, "context": "ulysses", "microbatches": 2},
}


def make(folder: Path, steps: int) -> list[Path]:
    """Train each of PLANS into a folder of its own, and return those."""
    return [runs.train(folder, name, {**DESCRIPTION, "plan": plan}, steps) for name, plan in PLANS.items()]
