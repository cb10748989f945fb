"""Files cut anywhere, with bytes flipped, of an older schema, or empty: said in a line, never zeros, never a traceback."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import hpcpar.trace
from hpcpar.analyse.report import report
from hpcpar.cli.main import main
from hpcpar.errors import PlanError
from hpcpar.trace import schema, seal
from hpcpar.trace.index import write_index
from hpcpar.trace.schema import Axis, Kind, Operation
from hpcpar.trace.writer import Writer

PLAN = {"config": {"plan": {"pp": 2}}, "hosts": ["n1"] * 2}
STEPS, EACH = 8, 100
TRIALS = [20, pytest.param(400, marks=pytest.mark.long)]  # of each kind of damage; a fixed seed


def write(folder, ranks=2, steps=STEPS):
    """A run whose every event can be told from its place: start = 1000 + its number."""
    for rank in range(ranks):
        with Writer(folder, rank, ranks, PLAN) as writer:
            n = 0
            writer.clock(0, 0, 10)
            for writer.step in range(1, steps + 1):
                for _ in range(EACH):
                    n += 1
                    facts = {"operation": Operation.TIED, "axis": Axis.TIED, "peer": 1 - rank, "bytes": 64}
                    writer.record(Kind.SEND if rank == 0 and n % 7 == 0 else Kind.F, 1000 + n, 1001 + n, **(facts if n % 7 == 0 else {}))
                writer.memory("stash", 5000 + writer.step)
                writer.metric("loss", 1.0 / writer.step)
                writer.flush()
    write_index(folder, ranks, PLAN)
    return folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return write(tmp_path_factory.mktemp("sound"))


def expect_prefix(folder):
    """What can be read is the beginning of what was written, or the rank is named as missing; what is lost is named."""
    try:
        trace = hpcpar.trace.open(folder)
    except PlanError as e:
        assert "holds no trace that can be read" in str(e) and "\n" not in str(e)
        return 0
    found = report(trace)
    json.dumps(found, allow_nan=False)
    whole = STEPS * EACH
    for rank in trace.present:
        events = trace.events(rank)
        n = len(events)
        assert n % EACH == 0
        assert np.array_equal(events["start"], 1001 + np.arange(n)) and np.array_equal(events["step"], 1 + np.arange(n) // EACH)
        memory, metrics = trace.memory(rank), trace.metrics(rank)
        assert memory["bytes"].tolist() == [5001 + i for i in range(n // EACH)]
        assert metrics["value"].tolist() == [1.0 / (i + 1) for i in range(n // EACH)]
        if n < whole:
            assert rank in trace.gaps
    lost = len(trace.missing) + sum(len(trace.events(r)) < whole for r in trace.present)
    assert len(found["run"]["gaps"]) >= (lost > 0)
    return sum(len(trace.events(r)) for r in trace.present)


def damaged(sound, tmp_path, name, damage):
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    path = folder / name
    path.write_bytes(damage(bytearray(path.read_bytes())))
    return folder


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("name", ["trace.00001.h5", "trace.h5"])
def test_a_file_cut_at_any_byte(sound, tmp_path, name, trials):
    draw = np.random.default_rng(1)
    size = (sound / name).stat().st_size
    for cut in [0, 1, 7, 8, size - 1, *draw.integers(0, size, trials).tolist()]:
        read = expect_prefix(damaged(sound, tmp_path, name, lambda b, cut=cut: b[:cut]))
        assert read >= STEPS * EACH


@pytest.mark.parametrize("trials", TRIALS)
@pytest.mark.parametrize("width", [1, 64])
def test_flipped_bytes(sound, tmp_path, width, trials):
    draw = np.random.default_rng(width)
    size = (sound / "trace.00001.h5").stat().st_size
    fewer = 0
    for trial in range(trials):
        at = int(draw.integers(0, size)) if trial % 2 else int(draw.integers(0, 3000))  # every other one in what HDF5 says of the file

        def flip(b, at=at):
            for i in range(at, min(at + width, len(b))):
                b[i] ^= int(draw.integers(1, 256))
            return b

        read = expect_prefix(damaged(sound, tmp_path, "trace.00001.h5", flip))
        assert read >= STEPS * EACH
        fewer += read < 2 * STEPS * EACH
    assert fewer >= trials // 20  # the damage was seen; much of a file is room for rows to come


def test_a_flipped_byte_of_an_event_ends_what_is_believed(sound, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(sound, folder)
    with h5py.File(folder / "trace.00001.h5", "r+") as file:
        row = file["events"][5 * EACH + 3]
        row["bytes"] = 12345
        file["events"][5 * EACH + 3] = row
    trace = hpcpar.trace.open(folder)
    assert len(trace.events(1)) == 5 * EACH and len(trace.memory(1)) == 5 and len(trace.events(0)) == 8 * EACH
    assert trace.gaps == {1: "damaged behind event 500: block 6 of 8 contradicts its checksum"}
    found = report(trace)
    assert found["run"]["gaps"] == ["rank 1: damaged behind event 500: block 6 of 8 contradicts its checksum"]
    assert found["steps"]["last"] == 5
    with Writer(folder, 1, 2, PLAN, after=7) as writer:
        (said,) = writer.said
    assert "trace.00001.h5 is damaged behind event 500" in said and "is kept as trace.00001.damaged-step7.h5" in said


@pytest.mark.parametrize("count", [2**40, 2**62])
def test_a_size_beyond_the_file_is_damage(sound, tmp_path, count):
    folder = tmp_path / "run"
    shutil.copytree(sound, folder)
    with h5py.File(folder / "trace.00001.h5", "r+") as file:
        file["events"].resize((count,))
    trace = hpcpar.trace.open(folder)
    assert "claims" in trace.missing[1] and trace.present == (0,)


def test_a_file_whose_own_facts_were_changed_is_not_believed(sound, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(sound, folder)
    with h5py.File(folder / "trace.00001.h5", "r+") as file:
        file.attrs["ranks"] = 2**30
    (folder / "trace.h5").unlink()
    trace = hpcpar.trace.open(folder)
    assert trace.ranks == 2 and trace.missing == {1: "trace.00001.h5 cannot be read: what it says of itself is damaged"}


def test_a_child_that_ends_early_is_seen():
    def fails():
        raise ValueError

    assert seal.survives(lambda: None) and seal.survives(fails)
    assert not seal.survives(os.abort)


def test_what_was_not_closed_is_said_and_read(tmp_path):
    writer = Writer(tmp_path, 0, 1, PLAN)
    writer.step = 1
    writer.record(Kind.F, 1, 2)
    writer.flush()
    trace = hpcpar.trace.open(tmp_path)
    assert len(trace.events(0)) == 1 and trace.gaps == {0: "was not closed: the run was killed, or goes on"}
    assert [g.split(",")[0].split(":")[0] for g in report(trace)["run"]["gaps"]] == ["rank 0", "trace.h5"]
    writer.close()
    assert hpcpar.trace.open(tmp_path).gaps == {}


# older schemas


def write_version_0(folder):
    """A file as schema 0 might have been: no versions, peers, axes or sequence numbers, no sessions, clocks or blocks."""
    fields = [(n, schema.EVENT[n]) for n in ("start", "end", "kind", "operation", "stage", "microbatch", "step", "bytes")]
    rows = np.zeros(6, fields)
    for i, row in enumerate(rows):
        row["start"], row["end"], row["kind"], row["step"] = 10 * i + 1, 10 * i + 9, (Kind.F, Kind.B, Kind.COLLECTIVE)[i % 3], 1 + i // 3
    rows["operation"][2::3], rows["bytes"][2::3] = Operation.ALLREDUCE, 4000
    with h5py.File(folder / "trace.00000.h5", "w") as file:
        file.attrs["schema"], file.attrs["rank"], file.attrs["ranks"] = 0, 0, 1
        file["description"] = json.dumps(PLAN)
        file["events"] = rows
    return rows


def test_an_older_schema_is_read_and_what_it_lacks_is_named(tmp_path):
    rows = write_version_0(tmp_path)
    trace = hpcpar.trace.open(tmp_path)
    events = trace.events(0)
    assert np.array_equal(events["start"], rows["start"]) and events["sequence"].tolist() == [1, 2, 3, 4, 5, 6]
    assert (events["version"] == -1).all() and (events["peer"] == -1).all() and (events["axis"] == Axis.NONE).all()
    assert trace.lacks == {"axis", "version", "peer", "sequence"}
    found = report(trace)
    assert "rank 0: schema 0 has no axis, no version, no peer, no sequence" in found["run"]["gaps"]
    assert found["steps"]["count"] == 2 and found["volumes"]["operations"][0]["bytes"] == 8000
    assert found["memory"] == [{"rank": 0}]


def test_a_schema_without_bytes_has_no_volumes(tmp_path):
    write_version_0(tmp_path)
    with h5py.File(tmp_path / "trace.00000.h5", "r+") as file:
        rows = file["events"][:]
        del file["events"]
        file["events"] = rows[[n for n in rows.dtype.names if n != "bytes"]]
    found = report(hpcpar.trace.open(tmp_path))
    assert found["volumes"]["operations"][0]["bytes"] is None and found["volumes"]["operations"][0]["calls"] == 2


@pytest.mark.parametrize("lost", ["start", "kind", "step"])
def test_a_file_without_what_every_event_has_is_named(tmp_path, lost):
    write_version_0(tmp_path)
    with h5py.File(tmp_path / "trace.00000.h5", "r+") as file:
        rows = file["events"][:]
        del file["events"]
        file["events"] = rows[[n for n in rows.dtype.names if n != lost]]
    with pytest.raises(PlanError, match=f"events has no {lost}"):
        hpcpar.trace.open(tmp_path)


def test_schema_1_is_read_without_blocks(sound, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(sound, folder)
    for rank in (0, 1):
        with h5py.File(folder / f"trace.0000{rank}.h5", "r+") as file:
            clock = file["clock"][:]
            for name in ("blocks", "clock"):
                del file[name]
            for name in ("crc", "complete"):
                del file.attrs[name]
            file["clock"] = clock[["local_ns", "offset_ns", "session"]]
            file.attrs["schema"] = 1
            if rank:
                file["events"].resize((STEPS * EACH + 100,))  # zeros
    trace = hpcpar.trace.open(folder)
    assert [len(trace.events(r)) for r in (0, 1)] == [STEPS * EACH] * 2 and trace.clocks["bound_s"] is None
    assert trace.gaps == {1: "damaged behind event 800 of 900"} and trace.clock(0)["bound_ns"].tolist() == [-1]
    expect_prefix(folder)


# the command


def call(capsys, *words):
    code = main(["analyse", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_says_each_gap_in_a_line(sound, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(sound, folder)
    (folder / "trace.h5").unlink()
    (folder / "trace.00000.h5").write_bytes(b"no HDF5")
    code, out, _ = call(capsys, folder)
    lines = out.splitlines()
    assert code == 0 and any(line.startswith("rank 0: left out, its file cannot be read") for line in lines)
    assert any(line.startswith("trace.h5, the index, is missing") for line in lines)
    code, out, _ = call(capsys, folder, "--json")
    found = json.loads(out)
    assert code == 0 and len(found["run"]["gaps"]) == 2 and found["run"]["missing"]["0"].startswith("trace.00000.h5 cannot be read")
    assert found["memory"] == [{"rank": 1, "stash": 5008}]


def test_an_empty_run_is_analysed_as_far_as_it_goes(tmp_path, capsys):
    write(tmp_path, steps=0)
    code, out, _ = call(capsys, tmp_path, "--json")
    found = json.loads(out)
    assert code == 0 and found["steps"] == {"count": 0} and found["shares"] == [] and found["bubble"] is None
    assert found["run"]["gaps"] == ["no step that all ranks have: the run ended before its first step did"]
    code, out, _ = call(capsys, tmp_path)
    assert code == 0 and "the run ended before its first step did" in out


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path, capsys):
    code, out, err = call(capsys, tmp_path, "--json")
    assert code == 2 and out == "" and err.count("\n") == 1 and "holds no trace" in err


def test_many_ranks_with_one_fate_share_a_line(tmp_path):
    write(tmp_path)
    write_index(tmp_path, 300, PLAN)
    assert report(hpcpar.trace.open(tmp_path))["run"]["gaps"][0] == "298 ranks from 2 to 299: left out, its file is missing"


# frames and arrays


def test_all_events_have_their_rank(sound):
    trace = hpcpar.trace.open(sound)
    rows = trace.all_events()
    assert len(rows) == 2 * STEPS * EACH and np.array_equal(rows["rank"], np.repeat([0, 1], STEPS * EACH))
    for name in schema.EVENT.names:
        assert np.array_equal(rows[rows["rank"] == 1][name], trace.events(1)[name])


def test_a_frame_has_names_for_enums(sound):
    pandas = pytest.importorskip("pandas")
    frame = hpcpar.trace.open(sound).frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 2 * STEPS * EACH
    sends = frame[frame.kind == "send"]
    assert set(sends["rank"]) == {0} and set(sends.operation) == {"tied"} and (sends.bytes == 64).all()
    assert frame.groupby("rank", observed=True).start.min().tolist() == [1001, 1001]


def test_an_enum_value_of_a_newer_version_stays_a_number():
    pytest.importorskip("pandas")
    from hpcpar.trace.frame import frame

    rows = np.zeros(2, schema.EVENT)
    rows["kind"] = (Kind.F, 250)
    assert frame(rows).kind.tolist() == ["f", "250"]


def test_without_pandas_a_frame_is_refused(sound):
    code = f"import sys\nsys.modules['pandas'] = None\nimport hpcpar.trace\nhpcpar.trace.open({str(sound)!r}).frame()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(hpcpar.__file__).parents[1])
    assert "PlanError: a frame needs pandas, which is not installed here" in done.stderr
