"""The replay against a network that is simulated: a trace made with any latencies replays to what the same program takes with none."""

import numpy as np
import pytest
from hand_made import collective, config, message, write
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcpar.trace
from hpcpar.analyse import replay as module
from hpcpar.analyse.critical import critical_path
from hpcpar.analyse.exchanges import exchanges
from hpcpar.analyse.late import waiting
from hpcpar.analyse.pop import efficiencies
from hpcpar.analyse.replay import replay, walk
from hpcpar.analyse.steps import steps
from hpcpar.trace.schema import Kind, Operation

RANKS = 3


def simulate(program, latency):
    """When each rank is through, and its events: a program is a list, in one global order that has no circle, of ("compute", rank, ms),
    ("send", source, destination, ms of latency), ("need", source, destination) and ("sum", ms of latency).

    `latency` scales the latencies. A receive is posted when the rank begins to wait for it.
    """
    now = [0.0] * RANKS
    sent: dict[tuple[int, int], list[tuple[float, float, int]]] = {}
    events: list[list[tuple]] = [[] for _ in range(RANKS)]
    for number, (what, *facts) in enumerate(program):
        if what == "compute":
            rank, length = facts
            events[rank].append((1, Kind.F, now[rank], now[rank] + length, {"stage": rank, "microbatch": number}))
            now[rank] += length
        elif what == "send":
            source, destination, delay = facts
            sent.setdefault((source, destination), []).append((now[source], now[source] + latency * delay, number))
            send = {**message(destination, 8, Operation.KEYS_VALUES)}
            events[source].append((1, Kind.SEND, now[source], now[source] + latency * delay, send))
        elif what == "need":
            source, destination = facts
            if not sent.get((source, destination)):
                continue
            there = max(sent[source, destination].pop(0)[1], now[destination])
            took = message(source, 8, Operation.KEYS_VALUES)
            events[destination].append((1, Kind.RECEIVE, now[destination], there, took))
            if there > now[destination]:
                events[destination].append((1, Kind.WAIT, now[destination], there, took))
            now[destination] = there
        else:
            (delay,) = facts
            end = max(now) + latency * delay
            for rank in range(RANKS):
                events[rank].append((1, Kind.COLLECTIVE, now[rank], end, collective(8)))
                if end > now[rank]:
                    events[rank].append((1, Kind.WAIT, now[rank], end, collective(8)))
                now[rank] = end
    for (source, destination), left in sent.items():  # what nobody asked for yet is taken at the end
        for _, there, _ in left:
            at = max(there, now[destination])
            took = message(source, 8, Operation.KEYS_VALUES)
            events[destination].append((1, Kind.RECEIVE, now[destination], at, took))
            if at > now[destination]:
                events[destination].append((1, Kind.WAIT, now[destination], at, took))
            now[destination] = at
    for rank in range(RANKS):
        events[rank].append((1, Kind.UPDATE, now[rank], now[rank] + 1, {"stage": 0}))
        now[rank] += 1
    return max(now), events


ranks = st.integers(0, RANKS - 1)
pairs = st.tuples(ranks, ranks).filter(lambda p: p[0] != p[1])
times = st.integers(1, 9)
actions = st.one_of(
    st.tuples(st.just("compute"), ranks, times),
    st.builds(lambda p, t: ("send", *p, t), pairs, times),
    st.builds(lambda p: ("need", *p), pairs),
    st.tuples(st.just("sum"), times),
)


@settings(max_examples=30, deadline=None)
@given(program=st.lists(actions, min_size=1, max_size=40))
def test_the_replay_is_the_program_on_a_network_without_latency(tmp_path_factory, program):
    runtime, events = simulate(program, 1)
    ideal, _ = simulate(program, 0)
    folder = write(tmp_path_factory.mktemp("run"), events, {"config": config(plan={"dp": RANKS}, train={"batch": RANKS})})
    trace = hpcpar.trace.open(folder)
    found = exchanges(trace, steps(trace))
    assert found.unknown_s() == 0
    assert replay(found) == pytest.approx(ideal / 1e3, abs=1e-12)
    got = efficiencies(trace, found)
    assert got["runtime_s"] == pytest.approx(runtime / 1e3) and got["transfer"] <= 1 + 1e-12 and got["serialisation"] <= 1 + 1e-12
    assert got["parallel"] == pytest.approx(got["load_balance"] * got["serialisation"] * got["transfer"])
    path = critical_path(trace, found)
    assert sum(path["parts"].values()) == pytest.approx(1) and min(path["parts"].values()) > -1e-12
    assert path["parts"]["wait"] == pytest.approx(0, abs=1e-12)  # every wait has a cause
    w = waiting(found, 1)
    waited = sum(e[3] - e[2] for rank in events for e in rank if e[1] == Kind.WAIT) / 1e3
    assert sum(w[k] for k in ("late_sender_s", "late_receiver_s", "late_collective_s", "transfer_s")) == pytest.approx(waited)


def random_nodes(seed, ranks=7, messages=400):
    """A program of posts and needs of messages and collectives with the work before each, as `walk` takes it."""
    rng = np.random.default_rng(seed)
    nodes = [[] for _ in range(ranks)]
    for instance in range(messages):
        if instance % 10:
            a, b = rng.choice(ranks, 2, replace=False)
            nodes[a].append((instance, True))
            nodes[b].append((instance, False))
        else:
            for mine in nodes:
                mine.append((instance, True))
            for mine in nodes:
                mine.append((instance, False))
    first = np.concatenate([[0], np.cumsum([len(n) for n in nodes])]).astype(np.int64)
    instance, post = (np.array([node[k] for mine in nodes for node in mine]) for k in range(2))
    before = rng.integers(0, 50, len(instance))
    return first, instance, post, before, np.bincount(instance[post], minlength=messages)


def test_the_compiled_walk_is_the_plain_one():
    program = random_nodes(3)
    plain, compiled = walk(*program), module._compiled()(*program)
    assert all(np.array_equal(a, b) for a, b in zip(plain, compiled, strict=True))
    assert (plain[1] == program[0][1:]).all() and plain[0].max() > 0


def test_a_walk_that_cannot_end_says_where_it_stands():
    first, post = np.array([0, 2, 4]), np.array([False, True, False, True])
    instance, before = np.array([0, 1, 1, 0]), np.array([5, 1, 7, 1])  # 0 waits for what 1 posts after waiting for 0
    for way in (walk, module._compiled()):
        ends, at = way(first, instance, post, before, np.array([1, 1]))
        assert at.tolist() == [0, 2] and ends.tolist() == [5, 7]
