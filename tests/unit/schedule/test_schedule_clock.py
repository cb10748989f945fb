"""The clock: closed forms in their domains, a naive simulation elsewhere, and the published numbers."""

from __future__ import annotations

import itertools

import pytest
from schedule_naive import simulate, spans

from hpcpar.errors import PlanError
from hpcpar.schedule import SCHEDULES, Times, check, clock, closed_forms, flow, generate, lower
from hpcpar.schedule.lifetimes import lifetimes
from hpcpar.schedule.steady import bubble_steady

EQUAL, UNEQUAL = (1.0, 1.0, 1.0), (1.25, 1.25, 0.5)
FORWARD_AS_BACKWARD = (2.0, 1.5, 0.5)


def schedules(name, ps, ms, chunks=(1, 2, 3)):
    """(p, m minibatches in all, v, schedule) for all that are not refused."""
    for p, m, v in itertools.product(ps, ms, chunks if name == "interleaved" else (1,)):
        try:
            schedule = generate(name, stages=p, microbatches=m, chunks=v, batches=2)
        except PlanError:
            continue
        yield p, schedule.microbatches, v, schedule


@pytest.mark.parametrize("name", SCHEDULES)
def test_closed_forms_hold_in_their_domains(name):
    times = FORWARD_AS_BACKWARD if name == "chimera" else UNEQUAL
    seen = 0
    for p, m, v, schedule in schedules(name, range(2, 9), range(1, 33)):
        program = lower(schedule)
        for t in (EQUAL, times):
            idle = closed_forms.idle(name, p, m, v, *t)
            if idle is None:
                continue
            seen += 1
            timing = clock(program, Times(*t))
            assert timing.work == pytest.approx(m * sum(t))
            assert timing.cost - timing.work == pytest.approx(idle, abs=1e-9), (p, m, v, t)
            assert timing.makespan == pytest.approx(closed_forms.makespan(name, p, m, v, *t))
            assert timing.bubble_total == pytest.approx(closed_forms.bubble_total(name, p, m, v, *t), abs=1e-12)
            assert timing.bubble_ideal == pytest.approx(closed_forms.bubble_ideal(name, p, m, v, *t), abs=1e-12)
            assert timing.bubble_total == pytest.approx(timing.bubble_ideal / (1 + timing.bubble_ideal))
        for rank, found in enumerate(lifetimes(schedule)):
            stash = closed_forms.peak_stash(name, p, m, rank, v)
            assert stash is None or found.peak_stash == stash, (p, m, v, rank)
            if len(schedule.stages_of(rank)) == 1:
                versions = closed_forms.weight_versions(name, p, m, rank)
                assert versions is None or found.weight_versions == versions, (p, m, rank)
    assert seen >= 24


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_clock_is_the_naive_simulation(name):
    """Times by stage and by kind, with latency, m below p, m = 1 and m that p does not divide included."""
    for p, m, v, schedule in schedules(name, (1, 2, 3, 4, 7, 8), (1, 2, 3, 5, 7, 8, 13, 19, 32), (1, 3)):
        S = schedule.stages
        F = [1.0 + 0.25 * ((3 * s) % 4) for s in range(S)]
        I = [1.5 - 0.125 * (s % 3) for s in range(S)]
        W = [0.5 + 0.375 * ((2 * s) % 5) for s in range(S)]
        for comm in (0.0, 0.3125):
            timing = clock(lower(schedule), Times(F, I, W, comm))
            want = simulate(schedule, F, I, W, comm)
            got = {
                (rank, a.kind.value, a.stage, a.microbatch): (s, e)
                for rank in range(len(schedule.ranks))
                for a, s, e in timing.compute(rank)
                if a.microbatch is not None
            }
            assert got == want, (p, m, v, comm)  # exact: all times are sums of multiples of 1/16
            ends = spans(want)
            assert timing.cost == max(b - a for a, b in ends.values())
            assert timing.makespan == max(b for _, b in ends.values()) - min(a for a, _ in ends.values())


# Qi et al. 2024, tables 5 and 9: p, m, F, I, W, latency (ms) and the bubble rates of 1F1B, ZB-H1 and ZB-H2
PUBLISHED = [
    (8, 24, 18.522, 18.086, 9.337, 0.601, (0.2431, 0.1585, 0.1083)),
    (8, 32, 29.802, 29.428, 19.530, 0.577, (0.1898, 0.1045, 0.0559)),
    (16, 128, 11.325, 11.308, 8.109, 0.378, (0.1251, 0.0576, 0.0266)),
    (32, 96, 10.419, 10.207, 7.715, 0.408, (0.2646, 0.1421, 0.0641)),
]


@pytest.mark.parametrize(("p", "m", "F", "I", "W", "comm", "rates"), PUBLISHED)
def test_published_bubble_rates(p, m, F, I, W, comm, rates):
    found = [clock(lower(generate(n, stages=p, microbatches=m)), Times(F, I, W, comm)).bubble_total for n in ("1f1b", "zb-h1", "zb-h2")]
    assert [round(x, 4) for x in found] == list(rates)


def test_latency_is_not_negligible_in_1f1b():
    p, m, F, I, W, _, _ = PUBLISHED[0]
    assert round(clock(lower(generate("1f1b", stages=p, microbatches=m)), Times(F, I, W)).bubble_total, 4) == 0.2258


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_peaks_of_the_zero_bubble_papers(p):
    m = 3 * p
    h1, h2, v, both, halves = (
        lifetimes(generate(n, stages=p, microbatches=m)) for n in ("zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v")
    )
    for r in range(p):
        assert (h1[r].peak_stash, h1[r].peak_memory) == (p - r, p)
        assert (h2[r].peak_stash, h2[r].peak_memory) == (2 * (p - r) - 1, 2 * p - 1)
        assert v[r].peak_memory == p
        assert both[r].peak_memory == p + 1
        assert halves[r].peak_memory == (2 * p + 1) / 2  # stages of half the size
    assert [x.peak_held for x in h1] == list(range(1, p + 1))


@pytest.mark.parametrize(("F", "I", "W"), [(1, 1, 1), (1, 1, 0.5), (2, 2, 0)])
def test_dualpipe_with_its_forward_and_backward_as_one_block(F, I, W):
    for p, m in ((4, 8), (4, 12), (8, 16), (6, 14)):
        timing = clock(lower(generate("dualpipe", stages=p, microbatches=m)), Times(F, I, W))
        whole, backward = F + I + W, I + W
        assert timing.cost - timing.work == pytest.approx((p / 2 - 1) * (whole + backward - 3 * W))


@pytest.mark.parametrize("replicas", [(15, 1), (3, 2), (2, 1), (2, 3, 1), (1, 4)])
def test_replicated_stages_in_the_clock(replicas):
    """A round's update waits for all replicas of its stage; the last round is partial."""
    count = 8 * replicas[0] + 1
    schedule = generate("pipedream", stages=len(replicas), microbatches=count, replicas=replicas)
    program = lower(schedule)
    check(program)
    for times in ([float(r) for r in replicas], [1.0] * len(replicas)):
        timing = clock(program, Times(times, times, times))
        want = spans(simulate(schedule, times, times, times))
        assert timing.makespan == max(b for _, b in want.values()) and timing.cost == max(b - a for a, b in want.values())
        assert timing.spans == [want[rank] for rank in range(sum(replicas))]
    # a stage with r replicas and r times the work of another keeps up with it, but for fill, drain and the waits of a round
    assert timing.work <= timing.cost
    assert next(x.weight_versions for x in lifetimes(schedule)) == -(-(sum(replicas) - replicas[0]) // replicas[0]) + 1


def test_the_single_rank_behind_fifteen_is_always_busy():
    period = flow("pipedream", stages=2, first=0, last=1, replicas=(15, 1))
    assert bubble_steady(period, Times([15.0, 1.0], [15.0, 1.0], [15.0, 1.0])) < 0.07
    assert bubble_steady(period, Times([1.0, 1.0], [1.0, 1.0], [1.0, 1.0])) == 0.0


def test_lazy_updates_with_clipping_cost_half_of_eager_ones():
    costs = {}
    for updates in ("lazy", "eager"):
        program = lower(generate("pipedream-vertical", stages=4, microbatches=10, updates=updates), clip=True, tied=True)
        check(program)
        costs[updates] = clock(program).cost
    assert costs == {"lazy": 39.0, "eager": 93.0}
    free = clock(lower(generate("pipedream-vertical", stages=4, microbatches=10, updates="lazy"))).cost
    assert costs["lazy"] == free  # the norm is there before it is needed


@pytest.mark.parametrize("name", ["pipedream", "pipedream-vertical", "pipedream-2bw"])
def test_the_steady_state_has_no_bubble_but_for_latency(name):
    period = flow(name, stages=4, group=6, first=0, last=1)
    assert bubble_steady(period, Times()) == 0.0
    # p minibatches go down and up the pipeline in p periods: p (F + I + W) + 2 (p - 1) messages
    wait = 2 * 3 / 4 * 0.5
    assert bubble_steady(period, Times(comm=0.5)) == pytest.approx(wait / (3 + wait))


def test_a_slow_rank_and_chunks():
    schedule = generate("gpipe", stages=2, microbatches=3)
    timing = clock(lower(schedule), Times(slow={1: 2.0}))
    assert timing.works == [9.0, 18.0] and timing.cost == 1 + 18 + 2
    thin = clock(lower(generate("interleaved", stages=2, microbatches=2, chunks=4)))
    assert {round(e - s, 9) for a, s, e in thin.compute(0) if a.kind == "F"} == {0.25}
    with pytest.raises(PlanError, match="3 entries for 2 stages"):
        clock(lower(schedule), Times(F=[1, 2, 3]))


def test_updates_and_reductions_take_their_time():
    program = lower(generate("gpipe", stages=2, microbatches=2), reduce=True)
    assert clock(program, Times(D=2, U=1)).cost == clock(program).cost + 3
