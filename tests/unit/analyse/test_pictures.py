"""The pictures of `hpcpar analyse --picture`: what is drawn where, as PNG and SVG, and what is refused."""

import numpy as np
import pytest
from hand_made import PIPE, config, pipe, write
from test_analyse_command import call

import hpcpar.trace
from hpcpar.analyse.bubble import mean_times
from hpcpar.analyse.memory import samples
from hpcpar.analyse.steps import steps
from hpcpar.cli import analyse, pictures
from hpcpar.draw.bubble import bubbles
from hpcpar.draw.memory import memory, peaks
from hpcpar.draw.messages import messages
from hpcpar.draw.scaling import series
from hpcpar.draw.timeline import STYLES
from hpcpar.errors import PlanError
from hpcpar.schedule import SCHEDULES, Times
from hpcpar.schedule.closed_forms import ASYNCHRONOUS, bubble_total
from hpcpar.trace.schema import Kind


def held(folder):
    """Two stages; rank 0 samples its stash at 1, 3 and 5 ms of each of two steps."""
    ranks = [[(s, Kind.F, 10 * s + t - 1, 10 * s + t) if kind else ("memory", "stash", t << 20) for t in (1, 3, 5) for kind in (1, 0)]
             for s in (1, 2)]  # fmt: skip
    return write(folder, [ranks[0] + ranks[1], [(1, Kind.F, 10, 20), ("memory", "parameters", 7)]], PIPE)


@pytest.mark.parametrize("name", ["timeline", "memory", "messages", "scaling", "bubble"])
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_is_a_file_of_its_ending(tmp_path, capsys, name, ending):
    folder = held(tmp_path / "run") if name == "memory" else pipe(tmp_path / "run")
    assert call(analyse, folder, "--png", tmp_path / f"p.{ending}", "--picture", name) == 0
    start = (tmp_path / f"p.{ending}").read_bytes()[:60]
    assert start.startswith(b"\x89PNG") if ending == "png" else start.startswith(b"<?xml")
    assert f"is drawn in {tmp_path}/p.{ending}" in capsys.readouterr().err


def test_what_a_picture_cannot_show_is_refused(tmp_path):
    a = pipe(tmp_path / "a")
    for words, why in (
        ((a, a, "--picture", "memory"), "--png draws one run as memory, 2 are given"),
        ((a, "--picture", "memory"), "no memory samples"),
        ((a, "--picture", "messages", "--step", "2"), "--step 2: the picture messages shows every step"),
    ):
        with pytest.raises(PlanError, match=why):
            call(analyse, *words, "--png", tmp_path / "p.png")
    with pytest.raises(PlanError, match="--picture says what a picture shows; give --png F too"):
        call(analyse, a, "--picture", "memory")
    alone = write(tmp_path / "alone", [[(s, Kind.F, 10 * s, 10 * s + 1)] for s in (1,)], {"config": config()})
    for name, why in (("messages", "no message from rank to rank"), ("bubble", "plan.pp of 2 or more")):
        with pytest.raises(PlanError, match=why):
            call(analyse, alone, "--png", tmp_path / "p.png", "--picture", name)
    bare = write(tmp_path / "bare", [[(1, Kind.F, 0, 1)]])
    with pytest.raises(PlanError, match="none of these runs has tokens a second"):
        call(analyse, bare, "--png", tmp_path / "p.png", "--picture", "scaling")


def test_every_kind_has_a_look_and_no_two_are_alike_without_colour():
    assert set(STYLES) == set(Kind)
    whites = {"#ffffff", "#dddddd"}
    assert len({(s.low, s.high, s.hatch, s.fill in whites, s.fill == "#333333") for s in STYLES.values()}) == len(STYLES)


def figure_of(monkeypatch, module, draw, *arguments):
    """The figure that a picture would save."""
    found = []
    monkeypatch.setattr(module, "save", lambda figure, path: found.append(figure))
    draw(*arguments, "unused.png")
    return found[0]


# timeline


def test_a_range_of_steps_is_one_timeline(tmp_path, capsys):
    assert call(analyse, pipe(tmp_path / "run"), "--png", tmp_path / "p.svg", "--step", "1:3") == 0
    assert "steps 1 to 3 is drawn" in capsys.readouterr().err


# memory


def test_memory_over_time_is_on_one_clock(tmp_path):
    trace = hpcpar.trace.open(held(tmp_path))
    found = samples(trace)
    assert list(found) == ["parameters", "stash"]
    seconds, sizes = found["stash"][0]
    assert seconds == pytest.approx([0, 0.002, 0.004, 0.01, 0.012, 0.014]) and sizes.tolist() == [x << 20 for x in (1, 3, 5, 1, 3, 5)]
    assert found["parameters"][1][0] == pytest.approx([0.009])  # at 20 ms, the first of all at 11
    assert samples(trace, (2, 2))["stash"][0][0] == pytest.approx([0, 0.002, 0.004]) and list(samples(trace, (2, 2))) == ["stash"]


def test_the_most_of_each_stretch_is_kept_with_what_was_held_before():
    at = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    found = peaks(np.array([1.2, 1.4, 1.6, 3.0]), np.array([5, 9, 2, 1]), at)
    assert np.isnan(found[0]) and found[1:].tolist() == [9, 2, 1]


def test_many_ranks_are_a_band(monkeypatch):
    from hpcpar.draw import memory as module

    one = np.array([0.0, 1.0])
    few = figure_of(monkeypatch, module, memory, {"stash": {r: (one, np.array([1, r + 1])) for r in range(3)}}, "few")
    assert [line.get_label() for line in few.axes[0].lines] == ["rank 0", "rank 1", "rank 2"]
    assert len({line.get_linestyle() for line in few.axes[0].lines}) == 3
    many = figure_of(monkeypatch, module, memory, {"stash": {r: (one, np.array([1, r << 20])) for r in range(64)}}, "many")
    axes = many.axes[0]
    assert [x.get_label() for x in (*axes.collections, *axes.lines)] == [
        "least to most of 64 ranks",
        "median rank",
        "rank 63, which held most",
    ]
    assert axes.get_ylabel() == "stash\nMiB" and axes.lines[1].get_ydata().max() == pytest.approx(63)


# messages


def test_bytes_stand_in_the_cell_of_their_source_and_destination(monkeypatch):
    from hpcpar.draw import messages as module

    pairs = [{"source": 0, "destination": 2, "bytes": 6 << 20}, {"source": 2, "destination": 1, "bytes": 3 << 20}]
    figure = figure_of(monkeypatch, module, lambda *a: messages(*a[:-1], a[-1], missing=(1,)), pairs, 3, 3, "title")
    axes, bar = figure.axes
    sent = axes.images[0].get_array()
    assert sent[0, 2] == 2 and sent[2, 1] == 1 and np.isnan(np.ma.filled(sent, np.nan)).sum() == 7
    assert [(t.get_position(), t.get_text()) for t in axes.texts] == [((2, 0), "2"), ((1, 2), "1")]
    assert bar.get_ylabel() == "MiB a step; of collectives those of experts alone" and "hatched" in axes.get_ylabel()


# scaling


def test_strong_and_weak_series_are_told_apart():
    def run(ranks, tokens, rate):
        return {"name": f"{ranks}", "ranks": ranks, "tokens": tokens, "tokens_per_s": rate}

    found = series([run(4, 100, 300.0), run(1, 100, 100.0), run(2, 200, 160.0), run(8, 999, 1.0), run(3, 100, None)])
    assert list(found) == ["strong: 100 tokens a step", "weak: 100 tokens a step and rank", "other runs"]
    assert [(p["ranks"], p["efficiency"]) for p in found["strong: 100 tokens a step"]] == [(1, 1.0), (4, 0.75)]
    assert [(p["ranks"], p["efficiency"]) for p in found["weak: 100 tokens a step and rank"]] == [(1, 1.0), (2, 0.8)]
    assert [p["efficiency"] for p in found["other runs"]] == [None]


# bubble


def test_the_bubble_of_every_schedule_is_that_of_its_closed_form():
    found = bubbles(4, Times())
    assert set(found) == set(SCHEDULES) - set(ASYNCHRONOUS)
    known = 0
    for name, points in found.items():
        for m, share in points:
            form = bubble_total(name, 4, m, 2 if name == "interleaved" else 1)
            if form is not None:
                known += 1
                assert share == pytest.approx(form), (name, m)
    assert known > 30


def test_the_times_of_a_run_are_those_of_its_microbatches(tmp_path):
    trace = hpcpar.trace.open(pipe(tmp_path / "whole"))
    assert mean_times(trace, steps(trace)) == Times(F=0.001, I=0.001, W=0.001)
    halves = [(s, k, 10 * s + a, 10 * s + b) for s in (1, 2) for k, a, b in ((Kind.F, 0, 2), (Kind.I, 2, 5), (Kind.W, 5, 6))]
    trace = hpcpar.trace.open(write(tmp_path / "halves", [halves]))
    assert mean_times(trace, steps(trace)) == Times(F=0.002, I=0.003, W=0.001)
    trace = hpcpar.trace.open(write(tmp_path / "none", [[(1, Kind.UPDATE, 0, 1)]]))
    assert mean_times(trace, steps(trace)) == Times()


def test_the_registry_names_functions_that_say_what_they_draw():
    assert all(name == function.__name__ and function.__doc__ for name, function in pictures.PICTURES.items())
