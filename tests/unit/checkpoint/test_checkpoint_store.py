"""Checkpoints hold every element once and read back the same values under any cut."""

import json
from itertools import pairwise

import numpy as np
import pytest
from checkpoint_samples import SHAPES, array, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcpar import checkpoint
from hpcpar.checkpoint import CheckpointError


def test_reads_back_what_was_written(tmp_path):
    path = write(tmp_path, 100, updates=99, config={"model": {"layers": 4}}, data="f00", slow={10: 1.0, 9: 2.0})
    assert path == tmp_path / "step00000100"
    found = checkpoint.open(path)
    assert found.step == 100
    assert found.fields == {"updates": 99, "config": {"model": {"layers": 4}}, "data": "f00", "slow": {"10": 1.0, "9": 2.0}}
    assert found.kinds() == ["adamw.m", "weights"]
    assert found.names("weights") == list("abcd")
    assert found.names("sgd.momentum") == []
    for kind in found.kinds():
        for name, shape in SHAPES.items():
            values, dtype = found.read(kind, name), np.dtype("float32" if name == "a" else "float64")
            assert found.shape(kind, name) == values.shape == shape
            assert found.dtype(kind, name) == values.dtype == dtype
            assert np.array_equal(values, array(kind + name, shape))
    assert checkpoint.verify(path) == []
    assert not list(tmp_path.glob(".*"))


@st.composite
def grids(draw):
    """A shape, and its dims cut at random places: the writers' boxes; and a box to read."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    edges = [sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=3))}) for n in shape]
    boxes = [()]
    for ends in edges:
        boxes = [(*b, slice(p, q)) for b in boxes for p, q in pairwise(ends)]
    want = []
    for n in shape:
        p, q = sorted((draw(st.integers(0, n)), draw(st.integers(0, n))))
        want.append(slice(p, q))
    return shape, boxes, draw(st.lists(st.integers(0, 3), min_size=len(boxes), max_size=len(boxes))), tuple(want)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(grids())
def test_any_cut_reads_any_other(tmp_path, grid):
    shape, boxes, owners, want = grid
    values = array("x", shape, "int64")
    tmp = checkpoint.prepare(tmp_path, 1)
    entries = []
    for rank in range(4):
        # Fortran order and strided views are what a transposed weight looks like: only values count.
        mine = [("k", "x", shape, b, np.asfortranarray(values)[b]) for b, owner in zip(boxes, owners, strict=True) if owner == rank]
        entries.append(checkpoint.write_part(tmp, rank, mine))
    path = checkpoint.commit(tmp, entries)
    found = checkpoint.open(path).read("k", "x", want)
    assert found.flags.c_contiguous
    assert np.array_equal(found, values[want])
    assert np.array_equal(checkpoint.open(path).read("k", "x"), values)


def test_big_endian_values_keep_their_meaning(tmp_path):
    tmp = checkpoint.prepare(tmp_path, 1)
    values = np.arange(5, dtype=">f8")
    path = checkpoint.commit(tmp, [checkpoint.write_part(tmp, 0, [("k", "x", (5,), (slice(0, 5),), values)])])
    found = checkpoint.open(path).read("k", "x")
    assert found.dtype.str == "<f8" and found.tolist() == [0, 1, 2, 3, 4]


def test_parts_must_hold_each_element_once(tmp_path):
    x = np.zeros(5)

    def parts(*slices):
        tmp = checkpoint.prepare(tmp_path, 1)
        entries = [checkpoint.write_part(tmp, r, [("k", "x", (9,), (s,), x[: s.stop - s.start])]) for r, s in enumerate(slices)]
        return tmp, entries

    with pytest.raises(ValueError, match=r"k x .* 0 to 1 times"):
        tmp, entries = parts(slice(0, 4), slice(5, 9))
        checkpoint.commit(tmp, entries)
    with pytest.raises(ValueError, match=r"k x .* 1 to 2 times"):
        tmp, entries = parts(slice(0, 5), slice(4, 9))
        checkpoint.commit(tmp, entries)
    assert checkpoint.newest(tmp_path) is None
    with pytest.raises(ValueError, match="values"):
        checkpoint.write_part(tmp, 0, [("k", "x", (9,), (slice(0, 4),), x)])
    with pytest.raises(ValueError, match="no range"):
        checkpoint.write_part(tmp, 0, [("k", "x", (4,), (slice(0, 5),), x)])
    with pytest.raises(ValueError, match="earlier part"):
        entries = [
            checkpoint.write_part(tmp, r, [("k", "x", (10,), (s,), x.astype(t))])
            for r, (s, t) in enumerate([(slice(0, 5), "f4"), (slice(5, 10), "f8")])
        ]
        checkpoint.commit(tmp, entries)


def test_manifest_without_cover_is_refused_when_read(tmp_path):
    """A manifest that lost a part, though well-formed, does not give uninitialised memory."""
    from hpcpar.checkpoint.manifest import encode

    path = write(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"], manifest["tensors"]["weights"]["a"]["parts"][1]
    (path / "manifest.json").write_bytes(encode(manifest))
    found = checkpoint.open(path)
    with pytest.raises(CheckpointError, match=r"2 parts of weights a \(7, 5\)"):
        found.read("weights", "a")
    assert np.array_equal(found.read("weights", "a", (slice(0, 3), slice(1, 3))), array("weightsa", (7, 5))[:3, 1:3])


def test_the_same_step_again_replaces(tmp_path):
    write(tmp_path, 5)
    path = write(tmp_path, 5, ranks=1, add=1.0)
    assert np.array_equal(checkpoint.open(path).read("weights", "b"), array("weightsb", (3,)) + 1)
    assert [p.name for p in tmp_path.iterdir()] == ["step00000005"]
    assert checkpoint.verify(path) == []


def test_newest_and_prune_go_by_number(tmp_path):
    assert checkpoint.newest(tmp_path / "nowhere") is None
    assert checkpoint.newest_intact(tmp_path / "nowhere") == (None, [])
    for step in (9, 10, 99999999, 100000000):  # the last name is longer: text would sort it before
        write(tmp_path, step)
    (tmp_path / "step0000000x").mkdir()
    (tmp_path / "notes").mkdir()
    assert [step for step, _ in checkpoint.steps(tmp_path)] == [100000000, 99999999, 10, 9]
    assert checkpoint.newest(tmp_path).name == "step100000000"
    (tmp_path / "step100000000/part00000.bin").unlink()  # incomplete: does not count as kept
    removed = checkpoint.prune(tmp_path, 2)
    assert [p.name for p in removed] == ["step00000009"]
    assert [step for step, _ in checkpoint.steps(tmp_path)] == [100000000, 99999999, 10]
    checkpoint.prune(tmp_path, 1)
    assert [step for step, _ in checkpoint.steps(tmp_path)] == [100000000, 99999999]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []
    with pytest.raises(ValueError):
        checkpoint.prune(tmp_path, 0)


def test_unknown_tensor_and_wrong_slices(tmp_path):
    found = checkpoint.open(write(tmp_path, 1))
    with pytest.raises(CheckpointError, match="holds no weights z"):
        found.read("weights", "z")
    with pytest.raises(CheckpointError, match=r"no sgd.momentum a; it holds the kinds adamw.m, weights"):
        found.read("sgd.momentum", "a")
    with pytest.raises(ValueError, match="no range of 7"):
        found.read("weights", "a", (slice(0, 8), slice(0, 5)))
    with pytest.raises(ValueError, match="1 slices for 2 dims"):
        found.read("weights", "a", (slice(0, 7),))


def test_weights_sha256_is_of_the_values_alone(tmp_path):
    one, many = write(tmp_path / "1", 5, ranks=1), write(tmp_path / "2", 7, ranks=4)
    assert checkpoint.weights_sha256(one) == checkpoint.weights_sha256(many)
    weights = checkpoint.read_weights(many)
    assert list(weights) == list("abcd")
    assert checkpoint.weights_digest(dict(reversed(weights.items()))) == checkpoint.weights_sha256(one)
    other = {**weights, "c": np.nextafter(weights["c"], 1e9)}
    assert checkpoint.weights_digest(other) != checkpoint.weights_sha256(one)
    assert checkpoint.weights_digest({**weights, "d": weights["d"].reshape(4, 3, 2)}) != checkpoint.weights_sha256(one)
