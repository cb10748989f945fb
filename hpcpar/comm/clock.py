"""The offset between this rank's clock and rank 0's, by ping-pong.

    rank 0   t0 ----.            .---- t3        offset of r = r's time - rank 0's time
    rank r           '-- t1, t1-'                at the middle of the round trip: t1 - (t0 + t3)/2

The round with the shortest trip is the best: its error is at most half the trip.
"""

from __future__ import annotations

import time

import numpy as np

from hpcpar.comm.world import World

TAG = 30000


def offset_ns(world: World, rounds: int = 8) -> tuple[int, int, int]:
    """(local time, this rank's clock minus rank 0's, half the shortest round trip), ns; every rank takes part."""
    comm, now = world.comm, time.perf_counter_ns
    world.barrier()
    if world.rank == 0:
        for r in range(1, world.size):
            token, answer = np.zeros(1, np.int64), np.zeros(1, np.int64)
            for _ in range(rounds):
                comm.Sendrecv(token, r, TAG, answer, r, TAG)
                token[0] = now()  # the other side learns when its answer came
                comm.Send(token, r, TAG)
        world.barrier()
        return now(), 0, 0
    best = (1 << 62, 0)
    token, answer = np.zeros(1, np.int64), np.zeros(1, np.int64)
    ahead = [comm.Irecv(token, 0, TAG)]
    world.waiter.until(ahead[0].Test, lambda: "the clock of rank 0")
    for i in range(rounds):
        if i:
            comm.Recv(token, 0, TAG)
        sent = now()
        answer[0] = sent
        comm.Send(answer, 0, TAG)
        comm.Recv(token, 0, TAG)
        trip = now() - sent
        best = min(best, (trip, sent + trip // 2 - int(token[0])))
    world.barrier()
    return now(), best[1], best[0] // 2
