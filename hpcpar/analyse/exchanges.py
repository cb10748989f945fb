"""The calls of all ranks, each with its partners: who came last, and when.

    rank 0   send    |--------|              sent at 1          the receive of rank 1 depends on rank 0 at 1
    rank 1     receive |------|              posted at 3        the send of rank 0 depends on rank 1 at 3
    rank 2   collective |=====|
    rank 3   collective    |==|              both depend on rank 3, where the last one entered

MPI's own rule matches them: the k-th send with the k-th receive of a channel, the k-th collective of a communicator on each of its ranks.
One-sided accesses (push, pull, clock) have no partner; a call whose partner is not in the trace has none either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcpar.analyse import spans
from hpcpar.analyse.calls import CALL, KINDS, calls, grouped, pack
from hpcpar.analyse.shares import ORDER
from hpcpar.analyse.step_time import StepTime
from hpcpar.analyse.steps import Steps, training
from hpcpar.groups import groups
from hpcpar.trace import Trace
from hpcpar.trace.schema import Kind, Operation

ONE_SIDED = (Operation.PUSH, Operation.PULL, Operation.CLOCK)
UNEVEN = (Operation.ALLTOALL, Operation.DISPATCH, Operation.COMBINE, Operation.TO_HEADS, Operation.TO_SEQUENCE)  # bytes differ by rank


@dataclass(frozen=True)
class Exchanges:
    """The calls (n,) CALL of `ranks`, rank after rank, each ascending in its start; times of `time` are ns of the measured steps.

    first      (r + 1,)  where each rank's calls begin
    instance   (n,)      the same number for partners, counted from 0; -1 where they are not known
    size       (i,)      how many calls an instance has
    cause, came (n,)     the rank that a call depends on and when that one came; -1 and 0 where it is not known
    alone      [(k, 2)]  by rank, waits that belong to no call
    busy       [(k, 2)]  by rank, all its time in communication and in waits for copies: disjoint, ascending
    bounds     (r, 2)    from when to when a rank is at work in the measured steps, ns of the clock of the run
    computed   (r,)      ns of the measured steps in which a rank computed and did not wait
    """

    ranks: tuple[int, ...]
    calls: np.ndarray
    first: np.ndarray
    instance: np.ndarray
    size: np.ndarray
    cause: np.ndarray
    came: np.ndarray
    alone: list[np.ndarray]
    busy: list[np.ndarray]
    bounds: np.ndarray
    computed: np.ndarray
    time: StepTime

    def of(self, i: int) -> slice:
        """The calls of the i-th rank."""
        return slice(int(self.first[i]), int(self.first[i + 1]))

    @cached_property
    def waited(self) -> np.ndarray:
        """(n,) ns of the measured steps that each call was waited for."""
        out = np.empty(len(self.calls), np.int64)
        for i in range(len(self.ranks)):  # rank by rank: what lies between is small
            c = self.calls[self.of(i)]
            out[self.of(i)] = self.time.at(c["wait_end"]) - self.time.at(c["wait_start"])
        return out

    @cached_property
    def late(self) -> np.ndarray:
        """(n,) that part of the wait in which the partner had not come yet; 0 where the partner is not known."""
        out = np.empty(len(self.calls), np.int64)
        for i in range(len(self.ranks)):
            c, came, cause = (x[self.of(i)] for x in (self.calls, self.came, self.cause))
            came = np.clip(came, c["wait_start"], c["wait_end"])
            out[self.of(i)] = np.where(cause >= 0, self.time.at(came) - self.time.at(c["wait_start"]), 0)
        return out

    def unknown_s(self) -> float:
        """Time in s that ranks waited, all together, for partners that are not known."""
        alone = sum(_inside(self.time, a) for a in self.alone)
        return float(self.waited[self.cause < 0].sum() + alone) / 1e9


def exchanges(trace: Trace, found: Steps) -> Exchanges:
    """All calls of the readable ranks, matched; reads each rank's events once."""
    time = StepTime(found.windows[found.measured])
    alone, busy, bounds, computed = [], [], [], []
    every = np.empty(sum(int(np.isin(trace.events(rank)["kind"], KINDS).sum()) for rank in trace.present), CALL)  # room for all at most
    ends = [0]
    for rank in trace.present:
        events = training(trace.events(rank))
        starts = trace.sessions(rank)["events"]  # counted from the last one, which all ranks have: a file that was lost began anew
        session = np.searchsorted(starts, events["sequence"] - 1, side="right") - len(starts)
        mine, apart = calls(events, rank, session)
        stood = np.stack([mine["wait_start"], mine["wait_end"]], axis=1)
        still = spans.union(spans.of(events, Kind.WAIT), stood)
        ends.append(ends[-1] + len(mine))
        every[ends[-2] : ends[-1]] = mine
        alone.append(apart)
        busy.append(still)
        bounds.append(_bounds(np.concatenate([spans.of(events[~np.isin(events["kind"], KINDS)]), still]), time))
        computed.append(_inside(time, spans.of(events, *ORDER.values()), still) - _inside(time, still))
    every, first = every[: ends[-1]], np.array(ends, np.int64)
    instance, size = _instances(every, first, trace)
    cause, came = _causes(every, instance, size)
    return Exchanges(
        trace.present,
        every,
        first,
        instance,
        size,
        cause,
        came,
        alone,
        busy,
        np.array(bounds, np.int64).reshape(-1, 2),
        np.array(computed, np.int64),
        time,
    )


def _inside(time: StepTime, *sets: np.ndarray) -> int:
    """The ns of the measured steps that the sets cover together."""
    return spans.length(time.cut(spans.union(*sets)))


def _bounds(own: np.ndarray, time: StepTime) -> tuple[int, int]:
    """From the first start to the last end of spans (n, 2) in the windows; (0, 0) without one there."""
    if not len(time.windows):
        return 0, 0
    low, high = time.windows[0, 0], time.windows[-1, 1]
    inside = own[(own[:, 1] > low) & (own[:, 0] < high)]
    if not len(inside):
        return 0, 0
    return max(low, int(inside[:, 0].min())), min(high, int(inside[:, 1].max()))


def _instances(every: np.ndarray, first: np.ndarray, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """The instance of each call, -1 without one, and the size of each instance."""
    if not len(every):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    collective = every["kind"] == Kind.COLLECTIVE
    group, sizes = _groups(every, first, trace)
    able = np.where(collective, group >= 0, (every["peer"] != every["rank"]) & ~np.isin(every["operation"], ONE_SIDED))
    key = pack(_columns(every, able, group))
    order = np.argsort(key, kind="stable")  # within a key by rank, and by start on each: the calls are in this order
    key, rank = key[order], every["rank"][order]
    channel = np.concatenate([[True], key[1:] != key[:-1]])
    begins = np.flatnonzero(channel | np.concatenate([[True], rank[1:] != rank[:-1]]))
    lengths = np.diff(np.append(begins, len(key)))  # calls of a channel on one rank
    number = np.arange(len(key)) - np.repeat(begins, lengths)
    of_channel = np.cumsum(channel[begins]) - 1
    most = np.zeros(of_channel[-1] + 1, np.int64)
    np.maximum.at(most, of_channel, lengths)
    number += np.repeat((np.cumsum(most) - most)[of_channel], lengths)
    instance = np.empty(len(key), np.int64)
    instance[order] = number
    del key, rank, order, number
    count = np.bincount(instance, minlength=int(most.sum()))
    wanted = np.empty(len(count), np.int64)
    wanted[instance] = np.where(collective, sizes[group], 2)
    whole = count == wanted
    known = able & whole[instance]
    return np.where(known, (np.cumsum(whole) - 1)[instance], -1), count[whole]


def _columns(every: np.ndarray, able: np.ndarray, group: np.ndarray) -> Iterator[np.ndarray]:
    """What the calls of a channel or a communicator have in common, one column (n,) after the other: all at once take gigabytes."""
    collective, send = every["kind"] == Kind.COLLECTIVE, every["kind"] == Kind.SEND
    yield from (able, collective, every["session"], every["operation"], every["axis"])
    yield np.where(collective, group, np.where(send, every["rank"], every["peer"]))
    yield np.where(collective, 0, np.where(send, every["peer"], every["rank"]))
    activation, gradient = every["operation"] == Operation.ACTIVATION, every["operation"] == Operation.GRADIENT
    at_border = (activation | gradient) & (every["stage"] >= 0)
    border = np.where(at_border, every["stage"] - ((activation & ~send) | (gradient & send)), -1)
    yield np.where(collective, every["stage"], border)
    size_of_array = np.where(np.isin(every["operation"], UNEVEN), 0, every["bytes"])
    yield np.where(collective, size_of_array, every["microbatch"])


def _groups(every: np.ndarray, first: np.ndarray, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """The number of each collective's communicator, -1 where it is not known, and the sizes; the last size is that of -1."""
    of = groups(trace.description, trace.ranks)
    out = np.full(len(every), -1, np.int32)
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    at = np.flatnonzero(every["kind"] == Kind.COLLECTIVE)
    found, which = grouped(*(every[f][at] for f in ("rank", "axis", "stage", "operation")))
    known = []
    for rank, axis, stage, operation in found:
        members = of(rank, axis, stage, operation)
        known.append(-1 if members is None else numbers.setdefault((axis, members), len(numbers)))
    out[at] = np.array(known, np.int64)[which]
    return out, np.array([*(len(members) for _, members in numbers), 0])


def _causes(every: np.ndarray, instance: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """On whom each call depends, and when that one came."""
    cause, came = np.full(len(every), -1, np.int32), np.zeros(len(every), np.int64)
    kind = np.where(instance >= 0, every["kind"], 0)
    call_of = np.empty(len(size), np.int64)
    for mine, others in ((Kind.RECEIVE, Kind.SEND), (Kind.SEND, Kind.RECEIVE), (Kind.COLLECTIVE, Kind.COLLECTIVE)):
        at, of = np.flatnonzero(kind == mine), np.flatnonzero(kind == others)
        if mine == Kind.COLLECTIVE:
            latest = np.full(len(size), np.iinfo(np.int64).min)
            np.maximum.at(latest, instance[of], every["start"][of])
            of = of[every["start"][of] == latest[instance[of]]]
        call_of[instance[of]] = of
        other = call_of[instance[at]]
        cause[at], came[at] = every["rank"][other], every["start"][other]
    return cause, came
