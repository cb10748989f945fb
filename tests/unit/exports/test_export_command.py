"""The exports of `hpcpar analyse`: what goes where, and what is refused."""

import json
import sys

import made
import pytest
import trace_processor

from hpcpar.cli.main import main
from hpcpar.trace.schema import Kind, Operation


@pytest.fixture
def run(tmp_path):
    made.write(tmp_path / "run", ([[(Kind.F, (1, 5), 0, 1, Operation.NONE)], [], []], []))
    (tmp_path / "run" / "trace.00002.h5").unlink()
    return tmp_path / "run"


def test_all_exports_in_one_call(run, tmp_path, capsys):
    names = {"perfetto": "t.pftrace", "otf2": "a", "events": "e.csv"}
    assert main(["analyse", str(run), "--json", *(x for o, n in names.items() for x in (f"--{o}", str(tmp_path / n)))]) == 0
    said = capsys.readouterr()
    assert "trace.00002.h5 is missing" in json.dumps(json.loads(said.out))  # stdout is JSON alone
    for name in ("t.pftrace", "a/trace.otf2", "e.csv"):
        assert f"1 events of 2 ranks are in {tmp_path / name}" in said.err and (tmp_path / name).is_file()
    read = trace_processor.native(tmp_path / "t.pftrace")
    assert read.processes == ["rank 0", "rank 1", "rank 2: trace.00002.h5 is missing"]
    assert [s.name for s in read.slices] == ["0F1"] and read.tracks == {"rank 0": ["compute", "memory stash"], "rank 1": ["memory stash"]}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["RUN", "--perfetto", "t.xml"], r"the ending is not known; use one of .pftrace, .perfetto-trace, .json, .json.gz"),
        (["RUN", "RUN", "--events", "e.csv"], "--events writes one run, 2 are given; call analyse for each of them"),
        (["RUN", "--perfetto", "none/t.json"], "cannot write"),
    ],
)
def test_what_is_refused(run, tmp_path, monkeypatch, capsys, arguments, why):
    monkeypatch.chdir(tmp_path)
    assert main(["analyse", *(str(run) if a == "RUN" else a for a in arguments)]) == 2
    assert why in capsys.readouterr().err


def test_a_native_trace_needs_its_package(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "perfetto", None)
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    assert main(["analyse", str(run), "--perfetto", str(tmp_path / "t.pftrace")]) == 2
    assert "pip install 'hpcpar[exports]', or write a .json" in capsys.readouterr().err
    assert main(["analyse", str(run), "--perfetto", str(tmp_path / "t.json")]) == 0
