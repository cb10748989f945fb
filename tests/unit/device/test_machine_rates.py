"""The measured rates count what they say they count."""

from __future__ import annotations

from types import ModuleType

import pytest

from hpcpar.measure import rates


class Clock:
    """A clock that every call moves by a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


def test_a_product_of_a_second_counts_two_flops_a_multiply_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "time", Clock())
    monkeypatch.setattr(rates, "SIZES", (8, 16))
    assert rates.matrix_rate("float64", seconds=60.0) == 2 * 16**3  # the best size counts; every timed call takes one tick


def test_a_size_that_would_outlast_the_measurement_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "time", Clock())
    monkeypatch.setattr(rates, "SIZES", (8, 1 << 20))
    assert rates.matrix_rate("float64", seconds=60.0) == 2 * 8**3


def test_a_copy_counts_read_and_written_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "time", Clock())
    monkeypatch.setattr(rates, "MEMORY_BYTES", 1 << 12)
    assert rates.memory_rate(seconds=3.0) == 2 << 12


def test_every_device_call_is_waited_for(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "time", Clock())
    monkeypatch.setattr(rates, "SIZES", (8,))
    assert rates.matrix_rate("float32", seconds=20.0, xp=cupy) == 2 * 8**3
    assert cupy._state.counts.synchronisations == 3 and cupy.cuda.get_current_stream().done  # three calls of three ticks in a third of it


def test_shortest_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 0.0, 9.0, 9.0, 10.0, 12.0, 12.0, 13.0, 13.5, 100.0])  # the end, then start, stop, look
    monkeypatch.setattr(rates, "time", type("T", (), {"perf_counter": staticmethod(lambda: next(ticks))}))
    assert rates._best_s(lambda: None, 20.0) == pytest.approx(0.5)
