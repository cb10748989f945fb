"""The run again on an ideal network: what each rank did keeps its length, messages take no time, and nobody waits but for who comes late.

    measured   0  F F ~~s        B B       s: post, ~: in flight, w: wait       replayed   0  F F s   B B
               1  w w w w w w F F s                                                        1  w w F F s

The nodes of a rank, in the order of its program, are posts (a send leaves, a collective is entered) and needs (a receive or collective must
be complete), with the length of the rank's own work before each. A message is there when it is posted, a collective is complete when its
last rank has entered. Sends never wait: buffers are infinite. Waits for copies and of unknown cause stay as long as they were.

The walk is a list of ranks that can go on; each post and each need is visited once: linear in the calls, and no clock is asked.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from hpcpar.analyse import spans
from hpcpar.analyse.exchanges import Exchanges
from hpcpar.trace.schema import Kind

COMPILED = 20_000  # nodes from which compiling (or loading what was compiled) pays


def replay(found: Exchanges) -> float | None:
    """The time in s of the measured steps on an ideal network; None where the posts and needs wait for each other in a circle."""
    ranks = len(found.ranks)
    known = found.calls["kind"][found.instance >= 0]
    count = len(known) + int((known == Kind.COLLECTIVE).sum())  # a collective is a post and a need
    instance, post, before = np.empty(count, np.int32), np.empty(count, np.bool_), np.empty(count, np.int64)
    first, rest = np.zeros(ranks + 1, np.int64), np.empty(ranks, np.int64)
    for i in range(ranks):
        *nodes, rest[i] = _nodes(found, i)
        first[i + 1] = first[i] + len(nodes[0])
        instance[first[i] : first[i + 1]], post[first[i] : first[i + 1]], before[first[i] : first[i + 1]] = nodes
    missing = np.bincount(instance[post], minlength=len(found.size))
    walked = _compiled() if len(post) >= COMPILED else walk
    ends, reached = walked(first, instance, post, before, missing)
    return None if (reached < first[1:]).any() else float((ends + rest).max(initial=0)) / 1e9


def _nodes(found: Exchanges, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """instance (n,), post (n,) bool and the rank's own work before each (n,) in ns, in program order; and the work behind the last."""
    at = found.of(i)
    calls, instance = found.calls[at], found.instance[at]
    calls, instance = calls[instance >= 0], instance[instance >= 0]
    posts, needs = calls["kind"] != Kind.RECEIVE, calls["kind"] != Kind.SEND
    waited = calls["wait_end"] > calls["wait_start"]
    times = np.concatenate([calls["start"][posts], calls["needed"][needs]])
    post = np.arange(len(times)) < posts.sum()
    turn = np.where(post, 1, np.where(np.concatenate([waited[posts], waited[needs]]), 0, 2))  # at one instant: what a wait ended with first
    order = np.lexsort((turn, times))
    low, high = found.bounds[i]
    work = _work(found, i, np.clip(np.concatenate([[low], times[order], [high]]), low, high))
    steps = np.diff(work)
    return np.concatenate([instance[posts], instance[needs]])[order], post[order], steps[:-1], int(steps[-1])


def _work(found: Exchanges, i: int, times: np.ndarray) -> np.ndarray:
    """The rank's own time of the measured steps up to each of the times: all but what it waited for partners that are known."""
    at = found.of(i)
    calls = found.calls[at][found.instance[at] >= 0]
    still = found.time.cut(spans.union(np.stack([calls["wait_start"], calls["wait_end"]], axis=1)))
    if not len(still):
        return found.time.at(times)
    lengths = still[:, 1] - still[:, 0]
    before = np.concatenate([[0], np.cumsum(lengths)])
    k = np.searchsorted(still[:, 0], times, side="right")
    inside = np.where(k > 0, np.minimum(times - still[np.maximum(k - 1, 0), 0], lengths[np.maximum(k - 1, 0)]), 0)
    return found.time.at(times) - np.where(k > 0, before[np.maximum(k - 1, 0)] + inside, 0)


def walk(
    first: np.ndarray, instance: np.ndarray, post: np.ndarray, before: np.ndarray, missing: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The time (r,) at which each rank is through with its nodes, and the node (r,) that it reached: its last one but for a circle.

    first (r + 1,); of each node its instance, whether it is a post, and the work before it; missing (i,) posts of each instance.
    """
    ranks = len(first) - 1
    now, at = np.zeros(ranks, np.int64), first[:-1].copy()
    ready, missing = np.zeros(len(missing), np.int64), missing.copy()
    waits, after = np.full(len(missing), -1), np.full(ranks, -1)  # ranks that wait for an instance: a list through `after`
    asked = np.zeros(ranks, np.bool_)  # the work before the node is done already
    able, count = np.arange(ranks), ranks
    while count:
        count -= 1
        r = able[count]
        while at[r] < first[r + 1]:
            node = at[r]
            which = instance[node]
            if not asked[r]:
                now[r] += before[node]
            asked[r] = False
            if post[node]:
                ready[which] = max(ready[which], now[r])
                missing[which] -= 1
                if missing[which] == 0:
                    while waits[which] >= 0:
                        able[count] = waits[which]
                        count += 1
                        waits[which] = after[waits[which]]
            elif missing[which] > 0:
                asked[r] = True
                after[r], waits[which] = waits[which], r
                break
            else:
                now[r] = max(now[r], ready[which])
            at[r] = node + 1
    return now, at


@cache
def _compiled() -> Any:
    from numba import njit

    return njit(cache=True)(walk)
