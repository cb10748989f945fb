"""All events as CSV and Parquet, read back: every field of every event, nothing where nothing is meant."""

import csv
import sys

import numpy as np
import pytest

import hpcpar.trace
from hpcpar.draw.exports import events
from hpcpar.errors import PlanError
from hpcpar.trace.index import write_index
from hpcpar.trace.schema import Axis, Kind, Operation
from hpcpar.trace.writer import Writer

OPTIONAL = {"stage", "microbatch", "version", "step", "peer"}


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """Ranks 0 and 2 of three, with blocks of two rows."""
    monkeypatch.setattr(events, "BLOCK", 2)
    for rank, count in ((0, 5), (2, 3)):
        with Writer(tmp_path, rank, 3, {}) as writer:
            for i in range(count):
                writer.step = i
                writer.record(Kind.F, 2**53 + i, 2**53 + 7 * i + rank, stage=i - 1, microbatch=0)
                if i:  # an odd number of events on rank 2
                    writer.record(Kind.SEND, i, i + 1, operation=Operation.GRADIENT, axis=Axis.PP, peer=rank, bytes=2**40)
    write_index(tmp_path, 3, {})
    return hpcpar.trace.open(tmp_path)


def rows(trace):
    """What the table should hold: names and numbers, None where a field has no meaning."""
    out = []
    for rank in trace.present:
        for e in trace.events(rank):
            row = {"rank": rank, "kind": Kind(e["kind"]).name, "operation": Operation(e["operation"]).name, "axis": Axis(e["axis"]).name}
            row |= {n: int(e[n]) for n in ("start", "end", "stage", "microbatch", "version", "step", "peer", "bytes", "sequence")}
            out.append({n: None if v == "NONE" or (n in OPTIONAL and v < 0) else v for n, v in row.items()})
    return out


def test_csv_has_every_event(trace, tmp_path):
    said = events.save(trace, tmp_path / "e.csv")
    with open(tmp_path / "e.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == list(events.COLUMNS)
    assert read == [{n: "" if v is None else str(v) for n, v in row.items()} for row in rows(trace)]
    assert said == f"14 events of 2 ranks are in {tmp_path / 'e.csv'}"


def test_parquet_has_every_event_with_its_types(trace, tmp_path):
    import pyarrow.parquet as pq

    events.save(trace, tmp_path / "e.parquet")
    read = pq.read_table(tmp_path / "e.parquet")
    assert read.column_names == list(events.COLUMNS) and read.to_pylist() == rows(trace)
    assert str(read.schema.field("start").type) == "int64" and str(read.schema.field("rank").type) == "int32"
    assert pq.ParquetFile(tmp_path / "e.parquet").num_row_groups == 8


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_an_empty_run_has_a_head_alone(tmp_path, ending):
    Writer(tmp_path, 0, 1, {}).close()
    write_index(tmp_path, 1, {})
    path = tmp_path / f"e{ending}"
    assert events.save(hpcpar.trace.open(tmp_path), path).startswith("0 events of 1 ranks")
    if ending == ".csv":
        assert path.read_text() == ",".join(events.COLUMNS) + "\n"


def test_a_number_without_a_name_stays_one():
    names = events._names("kind")
    assert names[200] == "200" and names[Kind.WAIT] == "WAIT" and events._names("axis")[0] == ""
    assert len(np.unique(names.astype(str))) == 256


def test_what_cannot_be_written_is_refused(trace, tmp_path, monkeypatch):
    with pytest.raises(PlanError, match=r"the ending \.xls is not known; use one of \.csv, \.parquet"):
        events.save(trace, tmp_path / "e.xls")
    with pytest.raises(PlanError, match=r"cannot write .*none/e\.csv"):
        events.save(trace, tmp_path / "none" / "e.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PlanError, match=r"Parquet needs pyarrow; pip install 'hpcpar\[exports\]'"):
        events.save(trace, tmp_path / "e.parquet")
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith((".e", "e"))], "half a file was left"


def test_half_a_file_is_not_left(tmp_path):
    from hpcpar.draw.exports.whole_file import whole_file

    (tmp_path / "e.csv").write_text("the old one")
    with pytest.raises(ValueError), whole_file(tmp_path / "e.csv") as fresh:
        fresh.write_text("half")
        raise ValueError
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("e.csv", "the old one")]
