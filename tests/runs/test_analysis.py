"""The scripts of analysis/ on tiny runs: their numbers are the traces', so that a change planted there shows; and the page of figures.

The traces guard their blocks by checksums; the change is planted where they are read.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar import trace
from hpcpar.errors import PlanError
from hpcpar.layer_times import Layer, LayerTimes, Machine
from hpcpar.trace.schema import Kind, Operation

SCRIPTS = Path(__file__).parents[2] / "analysis"
MODEL = {"layers": 2, "width": 16, "heads": 2, "vocabulary": 256, "context": 16}
TINY: dict[str, Any] = {"model": MODEL, "train": {"batch": 4, "steps": 3}, "data": {"held_out": 0.0}, "run": {"threads": 1}}
PIPELINE = {"pp": 2, "microbatches": 4}


def script(name: str) -> Any:
    """A module of analysis/."""
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    return importlib.import_module(name)


def sleep(path: Path) -> None:
    """Write a profile of MODEL whose layers take a millisecond a pass."""
    kinds = {"embedding": "embedding", "blocks.0": "block", "blocks.1": "block", "head": "head"}
    sizes = dict.fromkeys(("output_bytes", "stash_bytes", "parameter_bytes", "optimizer_bytes"), 1)
    layers = tuple(Layer(name=n, kind=k, F_s=1e-3, I_s=1e-3, W_s=1e-3, **sizes) for n, k in kinds.items())  # type: ignore[arg-type]
    machine = Machine(host="here", device="cpu", threads=1, copy_bytes_per_s=1e9)
    LayerTimes(samples=1, precision="float32", rounds=1, machine=machine, layers=layers, config={"model": MODEL}).write(path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of one model on a rank, over replicas, over stages that compute and that sleep; and one with experts."""
    at, runs = tmp_path_factory.mktemp("runs"), script("runs")
    sleep(at / "profile.toml")
    asleep = {"emulate": {"profile": str(at / "profile.toml")}}
    moe = {"experts": 4, "gate": "switch", "k": 1, "every": 2, "capacity": {"factor": 1.0}}
    tables = {
        "one": TINY,
        "zero": {**TINY, "plan": {"dp": 2, "zero": 1, "microbatches": 2}},
        "awake": {**TINY, "plan": PIPELINE},
        "asleep": {**TINY, "plan": PIPELINE, "train": {**TINY["train"], **asleep}},
        "experts": {**TINY, "model": {**MODEL, "moe": moe}},
    }
    return {name: runs.train(at, name, t) for name, t in tables.items()}


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Any:
    """plant(table, change): every table of that name that is read from now on is changed first, in a copy."""

    def planted(table: str, change: Any) -> None:
        read = getattr(trace.Trace, table)

        def changed(self: Any, rank: int) -> np.ndarray:
            rows = read(self, rank).copy()
            change(rows)
            return rows

        monkeypatch.setattr(trace.Trace, table, changed)

    return planted


def twice_as_long(rows: np.ndarray) -> None:
    """All times from the start of the run on are twice what they were."""
    for name in ("start", "end"):
        rows[name] *= 2


def test_bubbles(folders, plant):
    bubbles = script("bubbles")
    rows = bubbles.rows([folders["awake"], folders["asleep"]])
    assert [r["asleep"] for r in rows] == [False, True] and all(r["p"] == 2 and r["m"] == 4 and r["closed"] == 1 / 5 for r in rows)
    line = next(line for line in bubbles.table(rows).splitlines() if "sleep" in line)
    assert f"| {100 * rows[1]['measured']:.1f} | {100 * rows[1]['clock']:.1f} | 20.0 |" in line

    def later(events):  # the last backward of the second step, of three, begins and ends a second later
        mine = np.flatnonzero((events["kind"] == Kind.B) & (events["step"] == 2))
        last = mine[events["end"][mine].argmax()]
        for name in ("start", "end"):
            events[name][last] += 1_000_000_000

    plant("events", later)
    for before, after in zip(rows, bubbles.rows([folders["awake"], folders["asleep"]]), strict=True):
        assert after["clock"] == pytest.approx(before["clock"]) and after["measured"] > max(0.7, before["measured"])
    plant("events", lambda events: events["kind"].fill(Kind.WAIT))
    with pytest.raises(PlanError, match="has no bubble of a step"):
        bubbles.rows([folders["awake"]])


def test_scaling(folders, plant):
    scaling = script("scaling")
    runs = [folders["awake"], folders["one"]]
    rows = {Path(r["run"]).name: r for r in scaling.rows(runs)}
    base, other = rows["one"], rows["awake"]
    assert (base["kind"], other["series"]) == ("baseline", "1f1b, strong")
    assert other["efficiency"] == pytest.approx(other["tokens_per_s"] / base["tokens_per_s"] / 2)
    assert f"on up to 2 ranks: 1f1b, strong {100 * other['efficiency']:.0f} %" in scaling.finding(list(rows.values()))
    plant("events", twice_as_long)
    for r in scaling.rows(runs):
        assert r["tokens_per_s"] == pytest.approx(rows[Path(r["run"]).name]["tokens_per_s"] / 2, rel=1e-6)


def test_memory(folders, plant):
    memory = script("memory")
    runs = [folders[name] for name in ("zero", "awake")]
    rows = memory.rows(runs)
    assert all(r["together"] == r["predicted"] for r in rows), rows
    assert memory.finding(rows).endswith("foretells each to the byte")

    def more(samples):
        samples["bytes"][samples["kind"] == b"stash"] += 1 << 20

    plant("memory", more)
    assert [r["stash"] for r in memory.rows(runs)] == [r["stash"] + (1 << 20) for r in rows]
    assert "foretells each within" in memory.finding(memory.rows(runs))


def test_volumes(folders, plant, monkeypatch, capsys):
    volumes = script("volumes")
    runs = [folders[name] for name in ("zero", "awake", "one")]
    rows = volumes.rows(runs)
    assert [(r["run"], r["axis"]) for r in rows] == [("zero", "dp"), ("awake", "pp")] and not volumes.differ(rows)
    assert volumes.finding(rows).startswith("In all 2 cases")

    def more(events):
        events["bytes"][(events["kind"] == Kind.SEND) & (events["operation"] == Operation.GRADIENT)] += 512

    plant("events", more)
    # 4 gradients a step over the one border, 512 bytes more each, over two ranks
    assert [b["counted"] - a["counted"] for a, b in zip(rows, volumes.rows(runs), strict=True)] == [0, 4 * 512 / 2]
    assert volumes.finding(volumes.rows(runs)).startswith("Not what the closed form says: awake (pp)")
    monkeypatch.setattr("sys.argv", ["volumes.py", *map(str, runs)])
    assert volumes.differ(script("script").main(volumes)) == ["awake (pp)"]
    assert "| awake | pp | 2 (S-1) k b T D / p |" in capsys.readouterr().out


def test_sync_modes(folders, plant):
    sync = script("sync_modes")
    (row,) = sync.rows([folders["zero"]])
    assert row["mode"] == "bsp" and len(row["workers"]) == 2 and row["at_samples"] is not None
    plant("events", twice_as_long)
    (slow,) = sync.rows([folders["zero"]])
    for a, b in zip(row["workers"], slow["workers"], strict=True):
        assert b["steps_per_s"] == pytest.approx(a["steps_per_s"] / 2, rel=1e-6) and b["wait"] == pytest.approx(a["wait"], rel=1e-6)


def test_expert_balance(folders, plant):
    balance = script("expert_balance")
    with pytest.raises(PlanError, match="has no mixture of experts"):
        balance.rows([folders["one"]])
    (row,) = balance.rows([folders["experts"]])

    def all_to_one(metrics):
        names = metrics["name"]
        first = np.char.endswith(names, b".tokens.0")
        metrics["value"][np.char.find(names, b".tokens.") >= 0] = 0.0
        metrics["value"][first] = 64.0

    plant("metrics", all_to_one)
    (planted,) = balance.rows([folders["experts"]])
    assert 1 <= row["imbalance"] < planted["imbalance"] == 4
    assert f"the busiest expert has 4.00 times the mean with {row['gate']}" in balance.finding([planted])


def test_compression(folders, plant):
    compression = script("compression")
    (row,) = compression.rows([folders["zero"]])

    def double(events):
        events["bytes"] *= 2

    plant("events", double)
    (twice,) = compression.rows([folders["zero"]])
    assert twice["bytes"] == 2 * row["bytes"] > 0


def test_uneven(folders, plant):
    uneven = script("uneven")
    runs = [folders["asleep"], folders["awake"]]
    (row,) = uneven.rows(runs)
    assert row["cut"] == "even" and row["slowest_s"] == pytest.approx(6e-3)  # two layers a stage
    assert row["predicted_s"] == pytest.approx(5 * 6e-3) and row["emulated_s"] > 0.9 * row["predicted_s"]
    plant("events", twice_as_long)
    (slow,) = uneven.rows(runs)
    for name in ("emulated_s", "measured_s"):
        assert slow[name] == pytest.approx(2 * row[name], rel=1e-6)
    assert slow["predicted_s"] == row["predicted_s"]
    with pytest.raises(PlanError, match="nothing can be predicted"):
        uneven.rows([folders["awake"]])


NEEDED = {
    "bubbles": ("asleep", "awake"), "scaling": ("one", "awake"), "memory": ("zero", "awake"), "volumes": ("zero", "awake"),
    "sync_modes": ("zero",), "expert_balance": ("experts",), "compression": ("zero",), "uneven": ("asleep", "awake"),
}  # fmt: skip


def test_the_page_of_figures(folders, tmp_path, monkeypatch):
    """All pictures and sections; a figure that is renewed alone leaves the others; every script is known to the page."""
    figures = script("figures")
    helpers = {"sweep", "figures", "runs", "script", "strategies"}
    assert {p.stem for p in SCRIPTS.glob("*.py")} - helpers == {*figures.NAMES, *figures.MORE} == set(NEEDED)
    for name, needed in NEEDED.items():
        monkeypatch.setattr(script(name), "make", lambda folder, steps, needed=needed: [folders[n] for n in needed])
    every = (*figures.NAMES, *figures.MORE)
    figures.draw(every, tmp_path / "runs", tmp_path)
    page = (tmp_path / "figures.md").read_text()
    for name in every:
        picture = tmp_path / "figures" / f"{name}.png"
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < 100_000 and f"(figures/{name}.png)" in page
        assert script(name).finding(script(name).rows([folders[n] for n in NEEDED[name]])) in page
    shutil.rmtree(tmp_path / "figures")
    figures.draw(("volumes",), tmp_path / "runs", tmp_path)
    assert (tmp_path / "figures.md").read_text() == page and [p.name for p in (tmp_path / "figures").iterdir()] == ["volumes.png"]
