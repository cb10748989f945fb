"""Traces whose waits have partners, and what reads them."""

import pytest
from hand_made import collective, config, message, write

import hpcpar.trace
from hpcpar.analyse.exchanges import exchanges
from hpcpar.analyse.steps import steps
from hpcpar.trace.schema import Kind, Operation

F, B, I, W, U = Kind.F, Kind.B, Kind.I, Kind.W, Kind.UPDATE
SEND, RECEIVE, WAIT, COLLECTIVE = Kind.SEND, Kind.RECEIVE, Kind.WAIT, Kind.COLLECTIVE
GRADIENT = Operation.GRADIENT


def opened(folder):
    trace = hpcpar.trace.open(folder)
    return trace, exchanges(trace, steps(trace))


def described(**plan):
    return {"config": config(model={"layers": 4}, plan={"microbatches": 1, **plan}, train={"batch": 6})}


def there_and_back(folder, step=1, at=0.0):
    """An activation takes 1 ms from rank 0 to rank 1, its gradient 1 ms back.

       0  1  2  3  4  5  6  7  8  9 10 11
    0  F  F  F  F  w  w  w  w  w  B  B             sends at 2
    1  w  w  w  F  F  I  I  I  W  W                sends at 8
    """

    def to(peer, stage, operation=Operation.ACTIVATION):
        return {**message(peer, 100, operation), "stage": stage, "microbatch": 0}

    here = {"stage": 0, "microbatch": 0}
    there = {"stage": 1, "microbatch": 0}
    first = [
        (F, 0, 2, here),
        (F, 2, 4, {"stage": 0, "microbatch": 1}),
        (SEND, 2, 3, to(1, 0)),
        (RECEIVE, 4, 9, to(1, 0, GRADIENT)),
        (WAIT, 4, 9, to(1, 0, GRADIENT)),
        (B, 9, 11, here),
    ]
    second = [
        (RECEIVE, 0, 3, to(0, 1)),
        (WAIT, 0, 3, to(0, 1)),
        (F, 3, 5, there),
        (I, 5, 8, there),
        (SEND, 8, 9, to(0, 1, GRADIENT)),
        (W, 8, 10, there),
    ]
    ranks = [[(step, kind, at + a, at + b, facts) for kind, a, b, facts in rank] for rank in (first, second)]
    return ranks if folder is None else write(folder, ranks, described(pp=2))


def one_late(folder):
    """Ranks 0, 1, 2 enter an all-reduce at 4, 2, 3 ms; it is complete at 5; then each updates for 1 ms."""
    ranks = [
        [
            (1, F, 0, entered),
            (1, COLLECTIVE, entered, 5, {**collective(300), "stage": 0}),
            (1, WAIT, entered, 5, {**collective(300), "stage": 0}),
            (1, U, 5, 6, {"stage": 0}),
        ]
        for entered in (4, 2, 3)
    ]
    return write(folder, ranks, described(dp=3))


def exactly(found, **expected):
    assert {k: found[k] for k in expected} == pytest.approx(expected, rel=1e-12, abs=1e-15)
