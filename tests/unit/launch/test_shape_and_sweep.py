"""Ranks over nodes, points of a sweep, times as Slurm writes them."""

from __future__ import annotations

import pytest

from hpcpar import config
from hpcpar.errors import PlanError
from hpcpar.launch import site, sweep
from hpcpar.launch.shape import Shape, shape
from hpcpar.launch.submit import seconds_of

GPU = site.Site(about="four GPUs", device="cuda", ranks=4)
CPU = site.Site(about="unknown")


def plan(ranks: int, device: str = "cpu") -> config.Config:
    return config.build({"plan": {"dp": ranks}, "run": {"device": device}})


@pytest.mark.parametrize(
    ("ranks", "at", "nodes", "per_node", "expected"),
    [
        (4, CPU, None, None, Shape(4, 0, 0)),
        (4, CPU, 2, None, Shape(4, 2, 2)),
        (4, CPU, None, 2, Shape(4, 2, 2)),
        (4, CPU, 1, 4, Shape(4, 1, 4)),
        (3, GPU, None, None, Shape(3, 1, 3)),
        (4, GPU, None, None, Shape(4, 1, 4)),
        (6, GPU, None, None, Shape(6, 2, 3)),
        (7, GPU, None, None, Shape(7, 7, 1)),  # 7 has no other equal parts of at most 4
        (8, GPU, 4, None, Shape(8, 4, 2)),
    ],
)
def test_shape(ranks, at, nodes, per_node, expected):
    assert shape(plan(ranks), at, "here", nodes, per_node) == expected


@pytest.mark.parametrize(
    ("ranks", "at", "nodes", "per_node", "words"),
    [
        (8, CPU, 2, 2, ["needs 8 ranks", "--nodes 2 x --ntasks-per-node 2 gives 4", "--nodes 4 --ntasks-per-node 2"]),
        (5, CPU, 2, None, ["5 ranks", "--nodes 2", "use --nodes"]),
        (6, CPU, None, 4, ["6 ranks", "--ntasks-per-node 4", "use --nodes 2 --ntasks-per-node 3"]),
        (8, GPU, None, 8, ["--ntasks-per-node 8", "4 ranks", "one rank a GPU"]),
        (8, GPU, 1, None, ["8 ranks", "--nodes 1", "use --nodes 2 --ntasks-per-node 4"]),
        (2, CPU, 0, None, ["--nodes 0"]),
    ],
)
def test_refused_with_both_numbers_and_a_remedy_that_works(ranks, at, nodes, per_node, words):
    with pytest.raises(PlanError) as refused:
        shape(plan(ranks), at, "here", nodes, per_node)
    said = str(refused.value)
    assert all(w in said for w in words), said
    if "use --nodes" in said:
        n, t = (int(said.split(o)[-1].split(",")[0].split()[0]) for o in ("use --nodes ", "--ntasks-per-node "))
        assert shape(plan(ranks), at, "here", n, t) == Shape(ranks, n, t)


def test_gpus_where_there_are_none():
    with pytest.raises(PlanError, match="cpu nodes"):
        shape(plan(1, "cuda"), CPU, "here", None, None)


def test_points():
    assert sweep.points([]) == [()]
    assert sweep.points(["plan.pp=1,2", "plan.stages=[1, 2],[3]"]) == [
        ("plan.pp=1", "plan.stages=[1, 2]"),
        ("plan.pp=1", "plan.stages=[3]"),
        ("plan.pp=2", "plan.stages=[1, 2]"),
        ("plan.pp=2", "plan.stages=[3]"),
    ]
    for wrong in ("plan.pp", "pp=1", "plan.pp=", "plan.pp=1,,2"):
        with pytest.raises(PlanError, match="expected table"):
            sweep.points([wrong])
    with pytest.raises(PlanError, match="given twice"):
        sweep.points(["plan.pp=1", "plan.pp=2"])


def test_a_folder_for_each_point():
    names = {sweep.name(p) for p in sweep.points(["plan.stages=[1,2],[2,1]", 'data.source="a b/c","d"'])}
    assert len(names) == 4 and not any(set(n) & set(" /[]\"'") for n in names)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 1800), ("1:30", 90), ("02:00:05", 7205), ("1-0", 86400), ("1-2:30", 95400), ("0-0:0:7", 7)]
)
def test_times(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "1:2:3:4", "1-", "-1", "1h"])
def test_no_time(text):
    with pytest.raises(PlanError, match="--time"):
        seconds_of(text)


@pytest.mark.parametrize("name", site.names())
def test_every_site_is_read_and_has_its_sources(name):
    from importlib import resources

    found = site.load(name)
    head = resources.files("hpcpar.launch").joinpath("sites", f"{name}.toml").read_text().split("\n\n")[0]
    assert "https://" in head and all(line.startswith("#") for line in head.splitlines())
    assert (found.device == "cuda") == (found.ranks > 0 or name == "generic-gpu")
    assert "HDF5_USE_FILE_LOCKING" in found.environment


def test_all_sites_of_the_design_are_there():
    assert site.names() == ["alps", "frontier", "generic-cpu", "generic-gpu", "juwels-booster", "lumi-g", "perlmutter"]


def test_a_site_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('about = "mine"\nranks = 2\n')
    assert site.load(str(path)).ranks == 2
    path.write_text('about = "mine"\nrank = 2\n')
    with pytest.raises(PlanError, match="rank"):
        site.load(str(path))
    with pytest.raises(PlanError, match="perlmutter"):
        site.load("nowhere")
