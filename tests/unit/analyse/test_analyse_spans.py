"""Lengths of sets of spans against painting every instant."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.analyse import spans

SETS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12).map(
    lambda pairs: np.array([(s, s + n) for s, n in pairs], np.int64).reshape(-1, 2)
)


def painted(*sets):
    return {t for spans_ in sets for s, e in spans_.tolist() for t in range(s, e)}


@given(SETS, SETS)
def test_lengths_are_those_of_painted_instants(a, b):
    assert spans.length(a, b) == len(painted(a, b))
    assert spans.common(a, b) == len(painted(a) & painted(b))
    a = a[a[:, 0] < a[:, 1]]
    assert spans.touches(a, b).tolist() == [bool(painted(one.reshape(1, 2)) & painted(b)) for one in a]


@given(SETS)
def test_a_union_is_disjoint_and_ascending(a):
    u = spans.union(a)
    assert painted(u) == painted(a)
    assert (u[:, 0] < u[:, 1]).all() and (u[1:, 0] > u[:-1, 1]).all()


def test_nanoseconds_of_a_year_stay_exact():
    base = 1_700_000_000_000_000_000
    a = np.array([(base, base + 3), (base + 2, base + 7)], np.int64)
    assert spans.length(a) == 7
