"""The measure of two runs' difference, and what cannot be compared."""

import json
import math

import numpy as np
import pytest

from hpcpar.analyse import difference
from hpcpar.errors import PlanError


@pytest.mark.parametrize(
    ("a", "b", "rms", "expected"),
    [
        ([1.0, -2.0], [1.0, -2.0], 0, 0.0),
        ([1.0, -2.0], [1.0, -1.0], 0, 0.5),
        ([1.0, 4.0], [1.5, 4.0], 0, 0.125),  # by the largest element of the array, not by the one that differs
        ([0.0], [1e-9], 1.0, 1e-6),  # below the floor: 1e-3 of the RMS of all parameters
        ([0.0], [1e-9], 0, 1.0),
        ([0.0], [-0.0], 0, 0.0),
        ([math.nan, 1.0], [math.nan, 1.0], 0, 0.0),
        ([math.inf], [math.inf], 0, 0.0),
        ([math.inf], [-math.inf], 0, math.inf),
        ([math.nan], [1.0], 0, math.inf),
        ([1.0], [math.inf], 0, math.inf),
        ([math.nan], [math.inf], 0, math.inf),
        ([math.nan, 1.0], [math.nan, 2.0], 0, 0.5),
        ([], [], 0, 0.0),
        ([1.0, 2.0], [1.0], 0, math.inf),
    ],
)
def test_relative_difference(a, b, rms, expected):
    assert difference.relative(np.array(a), np.array(b), rms) == expected
    assert difference.relative(np.array(b), np.array(a), rms) == expected


def test_half_precision_is_compared_in_double():
    a = np.array([60000.0, 1.0], np.float16)
    assert difference.relative(a, -a) == 2.0


def test_rms_is_over_all_elements_of_all_parameters():
    assert difference.rms({"a": np.full(3, 2.0), "b": np.array([[4.0]]), "c": np.array([math.nan])}) == pytest.approx(math.sqrt(28 / 4))
    assert difference.rms({}) == 0


def test_the_worst_weight_is_named():
    a = {"x": np.ones(1000), "bias": np.zeros(2), "y": np.ones(3)}
    b = {"x": np.ones(1000), "bias": np.array([0.0, 1e-9]), "y": np.array([1, 1, 1 + 1e-7])}
    found = difference.weights(a, b)
    assert found["worst_weight"] == "bias" and found["weights"] == pytest.approx(1e-6, rel=2e-3) and found["notes"] == []


def test_equal_weights_have_no_difference():
    a = {"x": np.arange(5.0), "y": np.array([math.nan])}
    assert difference.weights(a, {k: v.copy() for k, v in a.items()})["weights"] == 0.0


@pytest.mark.parametrize(
    ("b", "name", "note"),
    [
        ({"x": np.ones(2)}, "y", "parameter y is only in the first run"),
        ({"x": np.ones(2), "y": np.ones(2), "z": np.ones(2)}, "z", "parameter z is only in the second run"),
        ({"x": np.ones(2), "y": np.ones(3)}, "y", r"parameter y is (2,) in the first run and (3,) in the second"),
        ({"x": np.ones(2), "y": np.array([1.0, math.nan])}, "y", "parameter y has values that are not finite in one run only"),
    ],
)
def test_what_cannot_be_compared_is_infinitely_far_and_said(b, name, note):
    found = difference.weights({"x": np.ones(2), "y": np.ones(2)}, b)
    assert found["weights"] == math.inf and found["worst_weight"] == name and found["notes"] == [note]


def test_a_series_names_its_worst_step():
    a = {(s, -1): float(s) for s in range(1, 6)}
    found = difference.series("loss", a, {**a, (3, -1): 4.0, (5, -1): 5.1})
    assert found == {"loss": 0.25, "loss_step": 3, "loss_common": 0.25, "notes": []}


def test_other_steps_are_said():
    a = {(s, -1): 1.0 for s in range(1, 6)}
    found = difference.series("loss", a, {(s, -1): 1.0 for s in range(4, 9)})
    assert found["loss"] == math.inf and found["loss_common"] == 0.0
    assert found["notes"] == [
        "loss: 3 steps are only in the first run, from step 1",
        "loss: 3 steps are only in the second run, from step 6",
    ]


def test_no_common_step_is_infinitely_far():
    assert difference.series("loss", {}, {})["loss"] == math.inf


def lines(folder, *rows):
    (folder / "metrics.jsonl").write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return difference.read_metrics(folder)


def test_metrics_are_read_by_step_and_rank(tmp_path):
    found = lines(
        tmp_path,
        {"step": 1, "loss": 2.0, "grad_norm": math.nan, "rank": 0},
        {"step": 1, "loss": 3.0, "rank": 1},
        {"step": 2, "loss": 1.0, "grad_norm": None},
        {"step": 2, "loss": 0.5, "grad_norm": 4},
    )
    assert found["loss"] == {(1, 0): 2.0, (1, 1): 3.0, (2, -1): 0.5}
    assert set(found["grad_norm"]) == {(1, 0), (2, -1)} and math.isnan(found["grad_norm"][1, 0])


def test_a_last_line_that_was_cut_is_left_out(tmp_path):
    assert lines(tmp_path, {"step": 1, "loss": 2.0}, '{"step": 2, "lo')["loss"] == {(1, -1): 2.0}


@pytest.mark.parametrize("bad", ["{\n", "[1]\n", '{"loss": 1}\n', '{"step": 1, "loss": "x"}\n'])
def test_other_lines_are_refused_with_their_number(tmp_path, bad):
    with pytest.raises(PlanError, match=r"metrics\.jsonl: line 1 is no line of metrics"):
        lines(tmp_path, bad, {"step": 2, "loss": 1.0})


def test_a_folder_without_metrics_is_no_run(tmp_path):
    with pytest.raises(PlanError, match="is no run"):
        difference.read_metrics(tmp_path / "none")
