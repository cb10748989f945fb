"""The traffic of offload where things go wrong: a copy that fails, one that never ends, and a pool that would be passed."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from hpcpar.comm.pending import Overdue, Waiter
from hpcpar.forms.accesses import Access, Buffer, Iteration
from hpcpar.forms.offload import Move, place
from hpcpar.parallel.offload import copies as copying
from hpcpar.parallel.offload.pool import Pool
from hpcpar.parallel.offload.traffic import Block, Traffic

SIZE = 8 * 1000
A, B = Buffer("weights", 0, 0), Buffer("weights", 0, 1)


def traffic(check: Any = lambda: None, timeout_s: float = 5.0, room: int = SIZE + 8) -> tuple[Traffic, list[tuple[str, dict[str, Any]]]]:
    """Two weights that are written in turn, and room for one of them unless there is more."""
    accesses = tuple(Access("U", 0, b.item, uses=(b,), writes=(b,)) for b in (A, B))
    plan = place(Iteration(accesses, {A: SIZE, B: SIZE}, {}), frozenset({"weights"}), room)
    events: list[tuple[str, dict[str, Any]]] = []
    blocks = {b: Block([np.full(1000, float(b.item))]) for b in (A, B)}

    def record(kind: str, start: int, end: int, **facts: Any) -> None:
        assert start <= end
        events.append((kind, facts))

    waiter = Waiter(True, timeout_s, check)
    return Traffic(plan, {}, blocks, copying.ThreadCopies(), np.empty, np.empty, lambda: record, waiter, lambda most: None), events


def round_of(t: Traffic) -> None:
    for b in (A, B):
        t.begin("U", 0, b.item)
        t.arrays(b)[0][...] += 1
        t.end()


def test_what_is_written_on_the_device_comes_home() -> None:
    t, events = traffic()
    round_of(t)
    round_of(t)
    assert t.pool.peak == SIZE
    t.bring_home()
    assert t.pool.used == 0 and [t.blocks[b].host[0][7] for b in (A, B)] == [2, 3]
    assert {kind for kind, _ in events} <= {"copy", "wait"}
    with pytest.raises(RuntimeError, match="foreseen"):
        t.begin("U", 0, 1)


def test_it_does_not_come_home_in_the_middle() -> None:
    t, _ = traffic()
    t.begin("U", 0, 0)
    t.end()
    with pytest.raises(RuntimeError, match="under way"):
        t.bring_home()


def test_a_copy_that_fails_is_the_runs_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    t, _ = traffic()
    round_of(t)

    def broken(pairs: Any) -> tuple[int, int]:
        raise OSError("the bus is gone")

    monkeypatch.setattr(copying, "copy", broken)
    with pytest.raises(OSError, match="the bus is gone"):
        round_of(t)


def test_a_copy_that_never_ends_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    t, _ = traffic(timeout_s=0.2)
    round_of(t)
    gate = threading.Event()
    monkeypatch.setattr(copying, "copy", lambda pairs: gate.wait(20) and (0, 0))
    try:
        with pytest.raises(Overdue, match=r"a copy \(to_device\) of stage 0: .*out Buffer"):
            round_of(t)
    finally:
        gate.set()


def test_who_waits_for_a_copy_hears_of_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Heard(Exception):
        pass

    def check() -> None:
        raise Heard

    t, _ = traffic(check)
    gate = threading.Event()
    monkeypatch.setattr(copying, "copy", lambda pairs: gate.wait(20) and (0, 0))
    try:
        with pytest.raises(Heard):
            round_of(t)
    finally:
        gate.set()


def test_the_pool_is_hard() -> None:
    pool = Pool(10)
    pool.take(7)
    assert pool.fits(3) and not pool.fits(4)
    with pytest.raises(RuntimeError, match="holds 7 of at most 10 bytes, and 4 more"):
        pool.take(4)
    pool.give(5)
    assert (pool.used, pool.peak, pool.recent(), pool.recent()) == (2, 7, 7, 2)
    with pytest.raises(RuntimeError, match="given back"):
        pool.give(3)


def test_moves_are_traced_in_order() -> None:
    t, events = traffic()
    round_of(t)
    plan = [m for slot in t.step.moves for m in slot if m.kind != "drop"]
    assert plan == [Move("out", B), Move("in", A), Move("out", A), Move("in", B)] and t.step.home == (B,)
    copies = [facts for kind, facts in events if kind == "copy"]
    assert [c["operation"] for c in copies][1:] == [{"in": "to_device", "out": "to_host"}[m.kind] for m in plan]
    assert all(c["bytes"] == SIZE and c["stage"] == 0 for c in copies)


def slowly(pairs: Any) -> tuple[int, int]:
    """A copy that takes its time."""
    start = time.perf_counter_ns()
    time.sleep(0.03)
    for source, target in pairs:
        target[...] = source
    return start, time.perf_counter_ns()


def test_a_round_ends_when_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "copy", slowly)
    accesses = (Access("U", 0, 0, uses=(A,), writes=(A,)), Access("U", 0, 1, uses=(B,), writes=(B,)), Access("F", 0, 0, 0, uses=(A,)))
    t, events = traffic()
    t.step = place(Iteration(accesses, {A: SIZE, B: SIZE}, {}), frozenset({"weights"}), SIZE, (B,))
    t.begin("U", 0, 0)
    t.end()
    t.begin("U", 0, 1)
    t.end()
    t.begin("F", 0, 0, 0)
    t.end()  # what began the round comes back behind it
    assert t.step.moves[-1] and t.step.moves[-1][-1] == Move("in", B)
    assert sum(kind == "copy" for kind, _ in events) == 1 + sum(m.kind != "drop" for slot in t.step.moves for m in slot)
    assert t.pool.used == SIZE and t.blocks[A].device is None and t.blocks[B].device is not None


def test_a_buffer_comes_back_only_when_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "copy", slowly)
    t, _ = traffic(room=4 * SIZE)
    round_of(t)
    t._issue((Move("out", B), Move("in", B)))
    t._drain()
    assert t.pool.used == 2 * SIZE and t.blocks[B].device is not None and t.blocks[B].device[0][3] == 2
