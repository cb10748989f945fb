"""A sweep of settings as points: every combination, each a run of its own.

--sweep plan.pp=1,2 --sweep plan.microbatches=4,8   ->   plan.pp=1 plan.microbatches=4 | plan.pp=1 plan.microbatches=8 | ...
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from hpcpar.errors import PlanError

Point = tuple[str, ...]  # settings, as --set takes them


def points(sweeps: Sequence[str]) -> list[Point]:
    """Every combination of the values of each `key=a,b,c`; one point without settings for no sweep. Raises PlanError for another form.

    A comma inside brackets or braces belongs to a value: plan.stages=[1,2],[2,1] has two.
    """
    axes = []
    for sweep in sweeps:
        key, sign, text = sweep.partition("=")
        values = [v.strip() for v in _split(text)]
        if not sign or "." not in key or not all(values):
            raise PlanError(f"--sweep {sweep}: expected table.key=value,value, as in plan.pp=1,2,4")
        axes.append([f"{key.strip()}={value}" for value in values])
    keys = [axis[0].split("=")[0] for axis in axes]
    if twice := [k for k in keys if keys.count(k) > 1]:
        raise PlanError(f"--sweep {twice[0]} is given twice; give all values of a key at once")
    return list(itertools.product(*axes))


def name(point: Point) -> str:
    """A folder's name for a point: plan.pp=2,plan.tp=1 without characters that a shell or a file system minds."""
    return re.sub(r"[^A-Za-z0-9=.,_-]+", "-", ",".join(point)).strip("-") or "run"


def _split(text: str) -> list[str]:
    out, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            out.append("")
        else:
            out[-1] += letter
    return out
