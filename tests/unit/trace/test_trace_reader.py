"""Reading as far as the files go: what is missing or damaged is named, never zeros."""

import shutil

import h5py
import numpy as np
import pytest

import hpcpar.trace
from hpcpar.errors import PlanError
from hpcpar.trace import schema
from hpcpar.trace.index import write_index
from hpcpar.trace.schema import Kind
from hpcpar.trace.writer import Writer

PLAN = {"config": {"plan": {"pp": 3}}, "hosts": ["n1"] * 3}


def write(folder, ranks=3, index=True):
    for rank in range(ranks):
        with Writer(folder, rank, ranks, PLAN) as writer:
            writer.step = 1
            for i in range(5):
                writer.record(Kind.F, 10 * i + rank, 10 * i + 5 + rank)
    if index:
        write_index(folder, ranks, PLAN)


@pytest.mark.parametrize("name", ["plain", "with space", "br[ack]ets*?", "percent%s"])
def test_folders_of_any_name_can_be_moved(tmp_path, name):
    write(tmp_path / "first")
    shutil.move(tmp_path / "first", tmp_path / name)
    trace = hpcpar.trace.open(tmp_path / name)
    assert trace.present == (0, 1, 2) and not trace.missing
    assert trace.events(2)["start"].tolist() == [2, 12, 22, 32, 42]
    with h5py.File(tmp_path / name / "trace.h5") as index:
        assert index["rank/00001/events"][0]["start"] == 1


def test_a_missing_rank_is_named_and_never_zeros(tmp_path):
    write(tmp_path)
    (tmp_path / "trace.00001.h5").unlink()
    trace = hpcpar.trace.open(tmp_path)
    assert trace.missing == {1: "trace.00001.h5 is missing"} and trace.present == (0, 2)
    with pytest.raises(PlanError, match=r"rank 1: trace\.00001\.h5 is missing"):
        trace.events(1)
    with h5py.File(tmp_path / "trace.h5") as index, pytest.raises(KeyError):
        index["rank/00001"]


def test_the_last_rank_missing_is_named_without_an_index_too(tmp_path):
    write(tmp_path, index=False)
    (tmp_path / "trace.00002.h5").unlink()
    trace = hpcpar.trace.open(tmp_path)
    assert trace.ranks == 3 and list(trace.missing) == [2]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"x" * len(b)])
def test_a_damaged_rank_is_named(tmp_path, damage):
    write(tmp_path)
    path = tmp_path / "trace.00000.h5"
    path.write_bytes(damage(path.read_bytes()))
    trace = hpcpar.trace.open(tmp_path)
    assert list(trace.missing) == [0] and "trace.00000.h5 cannot be read" in trace.missing[0]


def test_a_damaged_index_is_done_without(tmp_path):
    write(tmp_path)
    (tmp_path / "trace.h5").write_bytes(b"x")
    trace = hpcpar.trace.open(tmp_path)
    assert trace.ranks == 3 and trace.description == PLAN


def test_files_of_an_earlier_plan_with_more_ranks_are_left_out(tmp_path):
    write(tmp_path)
    write_index(tmp_path, 2, PLAN)
    assert hpcpar.trace.open(tmp_path).present == (0, 1)


def test_a_block_that_was_not_written_whole_is_left_out(tmp_path):
    write(tmp_path)
    with h5py.File(tmp_path / "trace.00000.h5", "r+") as file:
        file["events"].resize((9,))  # what a crash between the size and the rows leaves: zeros
    assert len(hpcpar.trace.open(tmp_path).events(0)) == 5


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("a file")])
def test_a_folder_without_a_trace_is_refused(tmp_path, make):
    make(tmp_path / "run")
    with pytest.raises(PlanError, match="holds no trace"):
        hpcpar.trace.open(tmp_path / "run")


def test_all_ranks_missing_is_refused_with_the_reason(tmp_path):
    write_index(tmp_path, 2, PLAN)
    with pytest.raises(PlanError, match=r"trace\.00000\.h5 is missing; trace\.00001\.h5 is missing"):
        hpcpar.trace.open(tmp_path)


def test_a_newer_schema_is_said(tmp_path):
    write(tmp_path)
    with h5py.File(tmp_path / "trace.00001.h5", "r+") as file:
        file.attrs["schema"] = schema.VERSION + 1
    assert "newer than the known" in hpcpar.trace.open(tmp_path).missing[1]


def test_a_field_that_an_older_file_lacks_is_minus_one(tmp_path):
    write(tmp_path)
    with h5py.File(tmp_path / "trace.00000.h5", "r+") as file:
        rows = file["events"][:]
        del file["events"]
        file["events"] = rows[[n for n in rows.dtype.names if n != "version"]]
    events = hpcpar.trace.open(tmp_path).events(0)
    assert len(events) == 5 and (events["version"] == -1).all() and events["end"][1] == 15


def test_clocks_are_corrected_for_offset_and_drift(tmp_path):
    base = 1_700_000_000_000_000_000  # a float64 has no room for these digits
    with Writer(tmp_path, 0, 1, PLAN) as writer:
        writer.clock(base + 1000, 500)
        writer.clock(base, 0)
        writer.clock(base + 2000, 400)
        for at in (-100, 0, 100, 1000, 1501, 2000, 9000):
            writer.record(Kind.F, base + at, base + at)
        writer.memory("stash", 1, base + 1000)
    trace = hpcpar.trace.open(tmp_path)
    assert [(trace.memory(0)["time"] - base).tolist() for _ in range(2)] == [[1500]] * 2  # however often it is asked for
    corrected = trace.events(0)["start"] - base
    assert corrected.tolist() == [-100, 0, 150, 1500, 1501 + 450, 2400, 9400]


def test_reading_while_the_run_goes_on(tmp_path):
    writer = Writer(tmp_path, 0, 1, PLAN)
    writer.record(Kind.F, 1, 2)
    writer.flush()
    writer.record(Kind.F, 3, 4)
    assert len(hpcpar.trace.open(tmp_path).events(0)) == 1
    writer.close()
    assert len(hpcpar.trace.open(tmp_path).events(0)) == 2


def test_many_ranks_do_not_stay_in_memory(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr("hpcpar.trace.reader.KEPT_BYTES", 2 * 5 * schema.EVENT.itemsize)
    trace = hpcpar.trace.open(tmp_path)
    for rank in (0, 1, 2, 0):
        assert len(trace.events(rank)) == 5
    assert len(trace._read.kept) == 2
    assert np.array_equal(trace.events(2), hpcpar.trace.open(tmp_path).events(2))
