"""A sharded parameter server: every rank is a worker and owns a shard of the flat weights, with its optimizer state.

    owner's window   version | readers | posted[N] | applied[N]     words
                     scale[N] | gradient[N][n] | weights[n]         a mailbox a worker, then the shard itself

    worker w    push    gradient and scale into mailbox w of every owner, then posted[w] = c: the mailbox is full
    owner       apply   a full mailbox, posted[w] > applied[w]: version odd, update in place, applied[w] = c, version even
    worker w    pull    readers + 1; the weights between two readings of one even version; readers - 1

Nothing is lost or applied twice: a worker fills its mailbox only once its last push is applied, and the owner empties each of them once, on
its own thread, in the order of the workers. The owner does nothing but load and store in its own memory, and lets MPI move.

A pull is atomic a shard (a seqlock): weights, and clocks of the workers, as they stood between two updates. Shards of one pull may be of
different moments. A reader that has announced itself holds the next update off, so that owners with much to do starve nobody.

    clock of a worker      how many of its pushes the owner has applied; read together with the weights
    staleness of a pull    the worker's own clock - the least clock of any worker in any of its shards

asp  each push is an update by itself; a worker waits for its own push, never for another worker.
ssp  a worker that has finished clock c goes on once the least clock is c - staleness or more, so that the fastest is at most `staleness`
     clocks ahead of the slowest. Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel parameter server",
     section 3. With staleness 0 an owner adds the gradients of a clock in rank order and makes one update of the sum: bulk synchronous.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcpar.comm import device
from hpcpar.comm.window import Courier, Window, nap
from hpcpar.comm.world import World
from hpcpar.layout import cut
from hpcpar.ops.update import add_

VERSION, READERS, POSTED = 0, 1, 2  # words; applied[0] follows posted[N - 1]
SWITCH_S = 5e-4  # an owner's thread gets the interpreter after this long: its workers wait for it
SKIP = float("nan")  # the scale of a push that changes nothing


@dataclass
class Shard:
    """This rank's part of the weights: places [start, stop), the update rule, its state (host arrays) and segments."""

    start: int
    stop: int
    rule: Any
    state: dict[str, Any]
    segments: Sequence[Any]
    applied: int = 0  # updates, without those that were skipped

    @property
    def held_bytes(self) -> int:
        """Bytes of the optimizer state."""
        return sum(a.nbytes for a in self.state.values())


@dataclass
class Pulled:
    """What a pull found: updates included, by owner, and the least clock of any worker in any shard."""

    versions: list[int] = field(default_factory=list)
    slowest: int = sys.maxsize


class Server:
    """The server during one stretch of clocks first + 1, first + 2, ...; every rank makes one, starts, and closes it.

    `rate` is the learning rate of one update of a clock. `decide` says what to multiply the sum of a clock's gradients by (None: skip it):
    it is given the clock and the shard's sum, and may ask other owners. None makes each push an update by itself.
    `watch` sees (worker, clock, gradient, scale) of each update before it is made; worker -1 is the sum of all.
    """

    def __init__(
        self,
        world: World,
        size: int,
        dtype: Any,
        shard: Shard,
        first: int,
        rate: Callable[[int], float],
        decide: Callable[[int, Any], float | None] | None = None,
        watch: Callable[[int, int, Any, float | None], None] | None = None,
    ):
        self.world, self.shard, self.rate, self.decide, self.watch = world, shard, rate, decide, watch
        n = world.size
        self._cuts = [cut(size, n, r) for r in range(n)]
        self._order = [(world.rank + i) % n for i in range(n)]  # no two workers begin at the same owner
        item = np.dtype(dtype).itemsize
        share = [(c.stop - c.start) * item for c in self._cuts]
        self._mailbox = [[8 * n + w * s for w in range(n)] for s in share]  # the gradient's place by owner and worker
        self._weights = [8 * n + n * s for s in share]
        mine = share[world.rank]
        world.barrier()  # so that the call below, which blocks, is short
        self.window = Window(world, 2 + 2 * n, 8 * n + (n + 1) * mine)
        self._posted, self._applied = slice(POSTED, POSTED + n), slice(POSTED + n, POSTED + 2 * n)
        self.window.words[POSTED:] = first
        held = self.window.bytes
        self._scales = held[: 8 * n].view(np.float64)
        self._gradients = [held[at : at + mine].view(dtype) for at in self._mailbox[world.rank]]
        self.weights = held[8 * n + n * mine :].view(dtype)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    @property
    def held_bytes(self) -> int:
        """Bytes of this rank's window."""
        return self.window.words.nbytes + self.window.bytes.nbytes

    def start(self) -> None:
        """Serve; `weights` holds the shard's first values."""
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        self.window.fence()
        self.world.barrier()
        self.courier = Courier(self.world.waiter, self.world.record)
        self._thread.start()

    def stop(self) -> None:
        """End the threads; nothing is served any more."""
        self._stop.set()
        self.courier.close()
        self._thread.join(1.0)
        sys.setswitchinterval(self._interval)

    def close(self) -> None:
        """End the threads and free the window; collective, after a barrier behind which nobody pushes or pulls."""
        self.stop()
        del self._scales, self._gradients, self.weights
        self.window.close()

    # a worker's side: on the courier's thread

    def push(self, clock: int, gradient: Any, scale: float | None, acknowledged: bool) -> None:
        """Send this worker's gradient (size,) of a clock to all owners; `acknowledged` waits until each has made its update.

        The owner multiplies it by `scale`; None changes nothing, but the clock goes on.
        """
        host = device.send_buffer(gradient, False)

        def work() -> None:
            me, given = self.world.rank, np.array([SKIP if scale is None else scale])
            for owner in self._order:
                self._until(owner, lambda words: words[self._posted][me] == words[self._applied][me])
                start = time.perf_counter_ns()
                self.window.put(owner, host[self._cuts[owner]], self._mailbox[owner][me])
                self.window.put(owner, given, 8 * me)
                self.window.write(owner, POSTED + me, clock)
                self._record("send", owner, start, "push", host[self._cuts[owner]].nbytes + given.nbytes + 8)
            for owner in self._order if acknowledged else ():
                self._until(owner, lambda words: words[self._applied][me] >= clock)

        self._carried(work, "push", lambda: f"the updates of clock {clock} by all owners")

    def wait(self, clock: int, operation: str = "clock") -> None:
        """Wait until every owner has applied clock `clock` of every worker."""
        behind: list[str] = []

        def work() -> None:
            for owner in self._order:

                def there(words: np.ndarray, owner: int = owner) -> bool:
                    found = words[self._applied]
                    behind[:] = [f"worker {int(found.argmin())}, at clock {int(found.min())} on rank {owner}"]
                    return bool(found.min() >= clock)

                self._until(owner, there, operation)

        self._carried(work, operation, lambda: f"clock {clock} of {' '.join(behind) or 'all workers'}")

    def pull(self, into: Any) -> Pulled:
        """Fill the weights `into` (size,) with the newest of each shard."""
        host, finish = device.receive_buffer(into, False)
        found = Pulled(versions=[0] * self.world.size)

        def work() -> None:
            for owner in self._order:
                start, before = time.perf_counter_ns(), np.empty(0)
                self.window.add(owner, READERS, 1)

                def whole(owner: int = owner) -> bool:
                    nonlocal before
                    before = self.window.read(owner)
                    if before[VERSION] % 2:
                        return False
                    self.window.get(owner, host[self._cuts[owner]], self._weights[owner])
                    return bool(self.window.read(owner)[VERSION] == before[VERSION])

                self.courier.until(whole)
                self.window.add(owner, READERS, -1)
                found.versions[owner] = int(before[VERSION]) // 2
                found.slowest = min(found.slowest, int(before[self._applied].min()))
                self._record("receive", owner, start, "pull", host[self._cuts[owner]].nbytes, found.versions[owner])

        self._carried(work, "pull", lambda: "the weights of all owners")
        finish()
        return found

    def _carried(self, work: Callable[[], None], operation: str, what: Callable[[], str]) -> None:
        self.courier.wait(self.courier.start(work, what), self.check, operation)

    def _until(self, owner: int, there: Callable[[np.ndarray], bool], operation: str = "clock") -> None:
        """Poll the words of an owner; all polls together are one event."""
        start, polls = time.perf_counter_ns(), 0

        def done() -> bool:
            nonlocal polls
            polls += 1
            return there(self.window.read(owner))

        self.courier.until(done)
        self._record("receive", owner, start, operation, polls * self.window.words.nbytes)

    def _record(self, kind: str, peer: int, start: int, operation: str, nbytes: int, version: int = -1) -> None:
        if peer != self.world.rank:  # within a rank nothing is sent
            facts = {"operation": operation, "axis": "dp", "peer": peer, "bytes": nbytes, "version": version}
            self.world.record(kind, start, time.perf_counter_ns(), **facts)

    def gather(self, values: np.ndarray) -> np.ndarray:
        """values (k,) float64 of every owner, (N, k): for `decide`, on the owners' threads, each of which comes to the same clocks."""
        start = time.perf_counter_ns()
        found = self.window.gather(values, self._stop.is_set)
        self.world.record("collective", start, time.perf_counter_ns(), operation="norm", axis="dp", bytes=found.nbytes)
        return found

    def check(self) -> None:
        """Raise what has ended the owner's thread of this rank."""
        if self._error is not None:
            raise self._error

    # the owner's side: on a thread of its own

    def _run(self) -> None:
        try:
            serve, idle = self._each if self.decide is None else self._round, 0
            while not self._stop.is_set():
                if serve():
                    idle = 0
                else:  # whoever has no work lets MPI bring some
                    self.window.progress()
                    nap(idle)
                    idle += 1
        except BaseException as e:  # the rank hears of it at its next wait
            self._error = e

    def _each(self) -> bool:
        """Apply every full mailbox; whether there was one."""
        words, found = self.window.words, False
        for worker in self._full():
            if words[READERS]:
                break
            self._apply([worker], int(words[POSTED + worker]), self._gradients[worker], float(self._scales[worker]))
            found = True
        return found

    def _full(self) -> list[int]:
        """The workers whose mailboxes are full, and have been written before what is read of them now."""
        full = np.flatnonzero(self.window.words[self._posted] > self.window.words[self._applied]).tolist()
        self.window.fence()
        return full

    def _round(self) -> bool:
        """Apply the sum of a clock once all mailboxes are full; whether they were."""
        words = self.window.words
        if words[READERS] or len(self._full()) < self.world.size:
            return False
        clock = int(words[POSTED])
        total = self._gradients[0].copy()
        for g in self._gradients[1:]:
            add_(total, g)
        assert self.decide is not None
        scale = self.decide(clock, total)
        self._apply(list(range(self.world.size)), clock, total, SKIP if scale is None else scale)
        return True

    def _apply(self, workers: list[int], clock: int, gradient: Any, scale: float) -> None:
        words, shard, start = self.window.words, self.shard, time.perf_counter_ns()
        skipped = scale != scale
        peer = workers[0] if self.decide is None else -1
        if self.watch:
            self.watch(peer, clock, gradient, None if skipped else scale)
        words[VERSION] += 1
        self.window.fence()
        if not skipped:
            shard.applied += 1
            shard.rule.step(self.weights, gradient, shard.state, shard.segments, shard.applied, self.rate(clock), scale)
        for worker in workers:
            words[self._applied][worker] = clock
        self.window.fence()
        words[VERSION] += 1
        self.window.fence()
        version = int(words[VERSION]) // 2
        self.world.record("update", start, time.perf_counter_ns(), operation="push", axis="dp", peer=peer, version=version)
