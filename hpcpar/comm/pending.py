"""A message or collective on its way, and how a rank waits for it.

    post ----------- test, test, ... ----------- complete        one event: post to complete
                                 wait +++++++++++++++            a second one, only where the rank stood still

Waiting polls: on ranks that outnumber the cores it sleeps between polls, so that a waiting rank leaves its core to one that computes.
Every wait ends: by the message, or by a timeout that says what was missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

NAP_S = 20e-6  # with the system's timer slack this sleeps 70 to 120 us
NAP_SHARE = 0.005  # of the time waited so far: many ranks that wait on few cores poll less
LONGEST_NAP_S = 400e-6  # what a message may lie there before it is seen
SPINS = 200  # polls before the first nap


class Record(Protocol):
    """Writes one event of a trace; times in ns; facts are operation, axis, peer, bytes, stage and microbatch."""

    def __call__(self, kind: str, start: int, end: int, **facts: Any) -> None: ...


class Overdue(Exception):
    """A wait lasted longer than run.timeout_s."""


class Waiter:
    """How this rank waits: `naps` between polls or not, for at most `timeout_s`."""

    def __init__(self, naps: bool, timeout_s: float, check: Callable[[], None]):
        self.naps = naps
        self.timeout_s = timeout_s
        self.check = check  # raises if another rank has failed
        self.awaited: Callable[[], str] | None = None  # what this rank waits for now, for another thread to ask

    def until(self, done: Callable[[], bool], what: Callable[[], str]) -> None:
        """Poll until done; raises Overdue, which says `what` was awaited, and Aborted if another rank has failed."""
        polls, start, waited = 0, time.perf_counter(), 0.0
        while not done():
            polls += 1
            if polls <= SPINS:
                continue
            self.awaited = what
            if self.naps:
                time.sleep(min(LONGEST_NAP_S, max(NAP_S, NAP_SHARE * waited)))
            elif polls % 64:
                continue
            waited = time.perf_counter() - start
            self.check()
            if waited > self.timeout_s:
                raise Overdue(f"waited {self.timeout_s:g} s (run.timeout_s) for {what()}")
        self.awaited = None


class Pending:
    """One non-blocking operation: `test` and `wait`, each of which may complete it, from one thread at a time."""

    __slots__ = ("_array", "_done", "_finish", "_lock", "_outstanding", "_record", "_request", "_start", "_waiter", "facts", "kind")

    def __init__(
        self,
        request: Any,
        kind: str,
        facts: dict[str, Any],
        record: Record,
        waiter: Waiter,
        outstanding: list[Pending],
        keep: Any,
        finish: Callable[[], None] | None = None,
        start: int | None = None,
    ):
        self.kind = kind
        self.facts = facts
        self._request = request
        self._record = record
        self._waiter = waiter
        self._array = keep  # MPI reads or writes it until completion
        self._finish = finish
        self._start = time.perf_counter_ns() if start is None else start
        self._done = False
        self._lock = threading.Lock()
        self._outstanding = outstanding
        outstanding.append(self)

    @property
    def request(self) -> Any:
        """MPI's request, or what is tested like one."""
        return self._request

    def test(self) -> bool:
        """Whether it is complete; lets MPI make progress. False too while another thread (progress.py) is at it."""
        if self._done:
            return True
        if not self._lock.acquire(blocking=False):
            time.sleep(0)  # whoever is at it may need the interpreter
            return self._done
        try:
            if not self._done and self._request.Test():
                self._complete()
        finally:
            self._lock.release()
        return self._done

    def wait(self) -> None:
        """Return when it is complete; the time that the rank stood still is an event of its own.

        Meanwhile all that is on its way moves: an all-reduce by rounds does so by tests alone, and another rank may wait for it.
        """
        if self.test():
            return
        start = time.perf_counter_ns()
        self._waiter.until(self._test_all, self.describe)
        self._record("wait", start, time.perf_counter_ns(), **self.facts)

    def _test_all(self) -> bool:
        for other in tuple(self._outstanding):
            other.test()
        return self.test()

    def describe(self) -> str:
        """What is awaited, in words."""
        f = self.facts
        peer = f" with rank {f['peer']}" if f.get("peer", -1) >= 0 else ""
        where = f" of stage {f['stage']}" if f.get("stage", -1) >= 0 else ""
        where += f", microbatch {f['microbatch']}" if f.get("microbatch", -1) >= 0 else ""
        return f"{self.kind} {f.get('operation', '')}{peer}{where} ({f.get('bytes', 0)} bytes, axis {f.get('axis', '?')})"

    def _complete(self) -> None:
        if self._finish:
            self._finish()
        self._outstanding.remove(self)
        self._array = None
        self._record(self.kind, self._start, time.perf_counter_ns(), **self.facts)
        self._done = True  # last: from here on another thread uses the array and goes on to the next step of the trace
