"""Where the ranks are: which host, cores, threads and GPU each has, in a line a node where its ranks are alike.

n1   ranks 0-3   cores 0-15 | 16-31 | 32-47 | 48-63   16 threads each   GPUs 0-3
n2   ranks 4-7   cores 0-63 together                  16 threads each
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MOST = 8  # nodes that are listed; a table of thousands helps nobody


def lines(hosts: Sequence[dict[str, Any]]) -> list[str]:
    """The lines for the hosts of all ranks, as run.host says them, in rank order."""
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        nodes.setdefault(host["name"], []).append(rank)
    out = [_line(name, ranks, hosts) for name, ranks in list(nodes.items())[:MOST]]
    more = len(nodes) - MOST
    return [*out, f"… and {more} more node{'s' * (more > 1)}; the trace has them all"] if more > 0 else out


def _line(name: str, ranks: list[int], hosts: Sequence[dict[str, Any]]) -> str:
    masks = [ranges(hosts[r]["cores"]) for r in ranks]
    if len(set(masks)) == 1:
        cores = f"cores {masks[0]}" + " together" * (len(ranks) > 1)
    else:
        cores = "cores " + " | ".join(masks)
    threads = [hosts[r]["threads"] for r in ranks]
    many = sorted(set(threads))
    each = f"{many[0]} thread{'s' * (many[0] > 1)} each" if len(many) == 1 else f"threads {' '.join(map(str, threads))}"
    gpus = [hosts[r].get("gpu") for r in ranks]
    on = "" if gpus[0] is None else f"  GPU{'s' * (len(gpus) > 1)} {' '.join(str(g) for g in gpus)}"
    return f"{name}  rank{'s' * (len(ranks) > 1)} {ranges(ranks)}  {cores}  {each}{on}"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges: [0, 1, 2, 5] -> "0-2,5"."""
    out: list[list[int]] = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in out)
