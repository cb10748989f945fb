"""hpcpar draw, the registry, and the pictures in the docstrings."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import re
import textwrap
import time
from pathlib import Path

import pytest

import hpcpar.schedule
from hpcpar.cli import draw
from hpcpar.errors import PlanError
from hpcpar.schedule import SCHEDULES

MODULES = [importlib.import_module(f"hpcpar.schedule.{m.name}") for m in pkgutil.iter_modules(hpcpar.schedule.__path__)]
GENERATORS = [m for m in MODULES if hasattr(m, "FAMILIES") or (hasattr(m, "actions") and m.actions.__module__ == m.__name__)]
FIELDS = [
    "schedule",
    "stages",
    "microbatches",
    "chunks",
    "actions",
    "makespan",
    "cost",
    "work",
    "bubble_total",
    "bubble_ideal",
    "peak_stash",
    "peak_held",
    "weight_versions",
    "gradient_buffers",
]
NAMES = [
    "naive",
    "gpipe",
    "1f1b",
    "interleaved",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "dualpipe",
    "dualpipe-v",
    "chimera",
    "pipedream",
    "pipedream-vertical",
    "pipedream-2bw",
]


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    draw.add(parser.add_subparsers())
    args = parser.parse_args(["draw", *words])
    return args.func(args)


def as_json(capsys, *words: str) -> dict:
    assert run(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_every_generator_is_registered_once():
    assert sorted(SCHEDULES) == sorted(NAMES)
    assert len(GENERATORS) == 12
    declared = [name for m in GENERATORS for name in m.FAMILIES]
    assert sorted(declared) == sorted(NAMES)
    for module in GENERATORS:
        for name, family in module.FAMILIES.items():
            assert SCHEDULES[name] is family


def pictures():
    for module in GENERATORS:
        blocks = re.split(r"\n\n(?= {4}hpcpar draw )", module.__doc__)
        for block in blocks[1:]:
            first, _, rest = textwrap.dedent(block).strip().partition("\n")
            yield pytest.param(first.split()[2:], rest, id=first)


@pytest.mark.parametrize(("words", "picture"), list(pictures()))
def test_the_picture_in_the_docstring_is_what_draw_prints(words, picture, capsys):
    assert run(*words) == 0
    assert capsys.readouterr().out.strip() == picture.strip()


def test_every_schedule_has_a_picture_in_its_docstring():
    drawn = {p.values[0][0] for p in pictures()}
    assert drawn == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_json_has_the_fields_of_the_contract(name, capsys):
    found = as_json(capsys, name, "--stages", "4", "--microbatches", "8")
    steady = ["bubble_steady"] if name.startswith("pipedream") else []
    assert list(found) == FIELDS + steady
    assert (found["schedule"], found["stages"], found["microbatches"]) == (name, 4, 8)
    assert len(found["actions"]) == 4
    assert not any(re.search("S[AG]|R[AG]|[DTN]", word) for row in found["actions"] for word in row)
    for key in ("peak_stash", "peak_held", "weight_versions", "gradient_buffers"):
        assert len(found[key]) == 4
    assert found["bubble_total"] == pytest.approx((found["cost"] - found["work"]) / found["cost"])
    assert found["bubble_ideal"] == pytest.approx((found["cost"] - found["work"]) / found["work"])


def test_json_numbers(capsys):
    found = as_json(capsys, "interleaved", "--stages", "4", "--microbatches", "8", "--chunks", "2")
    assert (found["chunks"], found["cost"], found["work"], found["peak_stash"]) == (2, 28.5, 24.0, [5.5, 4.5, 3.5, 2.5])
    found = as_json(capsys, "zb-h1", "--stages", "2", "--microbatches", "2", "--times", "F=2,I=2,W=1,comm=0.5")
    assert found["actions"] == [["0F0", "0F1", "0I0", "0W0", "0I1", "0W1", "0U"], ["1F0", "1I0", "1F1", "1I1", "1W0", "1W1", "1U"]]
    assert found["work"] == 10 and found["cost"] == 2 + 0.5 + 2 + 2 + 2 + 2 + 0.5 + 2 + 1
    found = as_json(capsys, "pipedream-2bw", "--stages", "3", "--microbatches", "4", "--batches", "3")
    assert found["microbatches"] == 4 and found["actions"][2][-1] == "2U3" and found["weight_versions"] == [2, 2, 1]
    found = as_json(capsys, "pipedream", "--stages", "2", "--microbatches", "9", "--replicas", "2,1")
    assert len(found["actions"]) == 3 and found["stages"] == 2
    lazy, eager = (
        as_json(capsys, "pipedream-vertical", "--stages", "4", "--microbatches", "10", "--clip", "--updates", u) for u in ("lazy", "eager")
    )
    assert (lazy["cost"], eager["cost"]) == (39.0, 93.0) and lazy["bubble_steady"] == 0.0 and eager["bubble_steady"] == pytest.approx(2 / 3)


def test_csv_writes_what_is_drawn_again(tmp_path, capsys):
    path = str(tmp_path / "mine.csv")
    assert run("zb-v", "--stages", "3", "--microbatches", "6", "--csv", path) == 0
    assert capsys.readouterr().out == ""
    again, once = as_json(capsys, path), as_json(capsys, "zb-v", "--stages", "3", "--microbatches", "6")
    assert {**once, "schedule": path} == again
    broken = Path(path).read_text().replace("0F1,0F2", "0F2")
    Path(path).write_text(broken)
    with pytest.raises(PlanError, match="microbatch 1 of stage 0"):
        run(path)


def test_pictures_as_files(tmp_path, capsys):
    svg, png, again = (tmp_path / n for n in ("a.svg", "a.png", "b.svg"))
    assert run("dualpipe-v", "--stages", "4", "--microbatches", "8", "--svg", str(svg), "--png", str(png)) == 0
    assert run("dualpipe-v", "--stages", "4", "--microbatches", "8", "--svg", str(again)) == 0
    assert svg.read_text().lstrip().startswith("<?xml") and png.read_bytes().startswith(b"\x89PNG")
    assert svg.read_bytes() == again.read_bytes()  # the same schedule gives the same file
    with pytest.raises(PlanError, match="cannot write"):
        run("1f1b", "--stages", "2", "--microbatches", "2", "--svg", str(tmp_path / "no" / "a.svg"))
    with pytest.raises(PlanError, match="does not end in"):
        run("1f1b", "--stages", "2", "--microbatches", "2", "--png", str(tmp_path / "a.svg"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 8), (16, 64), (32, 512)])
def test_pictures_fit_a_terminal_and_come_soon(name, p, m, capsys):
    start = time.process_time()
    assert run(name, "--stages", str(p), "--microbatches", str(m), "--batches", "2") == 0
    assert time.process_time() - start < 5
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 6 * (p + 1) + 16


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["1f1b"], "needs --stages"),
        (["1f1b", "--stages", "2"], "needs --microbatches"),
        (["1f1b", "--stages", "2", "--microbatches", "2", "--times", "F=x"], "write a time"),
        (["1f1b", "--stages", "2", "--microbatches", "2", "--times", "G=1"], "one of F, I, W, comm"),
        (["1f1b", "--stages", "2", "--microbatches", "2", "--times", "F=-1"], "not negative"),
        (["pipedream", "--stages", "2", "--microbatches", "2", "--clip"], "its own weight version"),
        (["pipedream", "--stages", "2", "--microbatches", "2", "--replicas", "2;1"], "a number a stage"),
        (["missing.csv"], "cannot read"),
    ],
)
def test_what_cannot_be_drawn_is_refused(words, why):
    with pytest.raises(PlanError, match=why):
        run(*words)


def test_times_of_nothing_are_drawn(capsys):
    assert run("1f1b", "--stages", "2", "--microbatches", "2", "--times", "F=0,I=0,W=0") == 0
    assert "nothing takes time" in capsys.readouterr().out
