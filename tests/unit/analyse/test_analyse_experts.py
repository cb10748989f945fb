"""What a trace says of experts: loads, drops, the exchange, and the map, on traces worked out by hand."""

import argparse
import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from hand_made import config, write

import hpcpar.trace
from hpcpar.analyse import experts as measured
from hpcpar.analyse.exchange import between, exchange
from hpcpar.analyse.report import report
from hpcpar.analyse.steps import steps
from hpcpar.analyse.table import compared, tables
from hpcpar.cli import analyse
from hpcpar.draw.experts import COLUMNS, TOP, binned, heat_map
from hpcpar.errors import PlanError
from hpcpar.trace.schema import Axis, Kind, Operation

MODEL = {"layers": 2, "width": 8, "heads": 2, "vocabulary": 16, "context": 10, "moe": {"experts": 4, "gate": "switch", "k": 1, "every": 2}}
DESCRIBED = {"config": config(model=MODEL, plan={"dp": 2}, train={"batch": 10})}  # 100 tokens a step


def routed(step, tokens, wanted=None, dropped=0, routed=50, block=1, causal=1, **more):
    """The metrics of a rank's share of one block and step."""
    values = {f"tokens.{e}": n for e, n in enumerate(tokens)} | {f"wanted.{e}": n for e, n in enumerate(wanted or ())}
    values |= {
        "dropped": dropped,
        "unrouted": dropped,
        "routed": routed,
        "entropy": 1.0,
        "balance": 0.25,
        "z": 0.0,
        "causal": causal,
        **more,
    }
    return [("metric", step, f"moe.{block}.{name}", value) for name, value in values.items()]


def two_ranks():
    """Two steps; expert 0 of step 1 has 20 + 20 tokens, of step 2 10 + 10."""
    first = [
        *routed(1, [20, 10, 5, 5], [30, 10, 5, 5], dropped=10, entropy=1.0),
        *routed(2, [10, 10, 15, 15], [10, 10, 15, 15], entropy=0.5),
    ]
    second = [
        *routed(1, [20, 10, 5, 5], [30, 10, 5, 5], dropped=10, entropy=0.5),
        *routed(2, [10, 10, 15, 15], [10, 10, 15, 15], entropy=0.5),
    ]
    return [first, second]


def of(folder):
    return measured.experts(hpcpar.trace.open(folder))


def test_loads_by_hand(tmp_path):
    """Step 1: 40 20 10 10 of 80, wanted 60 20 10 10 of 100; step 2: 20 20 30 30."""
    (row,) = of(write(tmp_path, two_ranks(), DESCRIBED))
    facts = {name: row[name] for name in ("block", "experts", "gate", "causal", "steps", "seen")}
    assert facts == {"block": 1, "experts": 4, "gate": "switch", "causal": True, "steps": 2, "seen": 1.0}
    one, two = 40 / 20, 30 / 25
    assert row["mean"]["imbalance"] == pytest.approx((one + two) / 2) and row["end"]["imbalance"] == pytest.approx(two)
    # deviations 20 0 -10 -10: sqrt(600 / 4) = 12.247; then -5 -5 5 5: 5
    assert row["mean"]["cv"] == pytest.approx((np.sqrt(150) / 20 + 5 / 25) / 2)
    assert row["mean"]["wanted_imbalance"] == pytest.approx((60 / 25 + two) / 2)
    assert row["mean"]["wanted_cv"] == pytest.approx((np.sqrt((35**2 + 5**2 + 15**2 + 15**2) / 4) / 25 + 0.2) / 2)
    assert row["mean"]["drop_rate"] == pytest.approx(20 / 100 / 2) and row["end"]["drop_rate"] == 0
    assert row["mean"]["unrouted_rate"] == pytest.approx(20 / 100 / 2)
    assert row["mean"]["entropy"] == pytest.approx((0.75 + 0.5) / 2), "by tokens: both ranks have 50"
    assert row["mean"]["balance"] == pytest.approx(0.5) and row["mean"]["unused"] == 0


def test_entropy_is_a_mean_over_tokens(tmp_path):
    ranks = [routed(1, [30, 0, 0, 0], routed=30, entropy=1.0), routed(1, [70, 0, 0, 0], routed=70, entropy=0.0)]
    (row,) = of(write(tmp_path, ranks, DESCRIBED))
    assert row["mean"]["entropy"] == pytest.approx(0.3) and row["mean"]["unused"] == 3 and row["mean"]["imbalance"] == 4
    assert row["mean"]["wanted_imbalance"] == 4, "nothing is dropped: what is computed is what was wanted"


def test_the_end_is_the_last_tenth(tmp_path):
    rows = [r for s in range(1, 41) for r in routed(s, [20, 10, 10, 10] if s < 37 else [11, 13, 13, 13])]
    (row,) = of(write(tmp_path, [rows], DESCRIBED))
    assert row["end"]["imbalance"] == pytest.approx(13 / 12.5) and row["mean"]["imbalance"] == pytest.approx((36 * 1.6 + 4 * 1.04) / 40)


def test_where_experts_choose(tmp_path):
    """Dropped are tokens without an expert; nobody wants anything, and the text says that it is not causal."""
    (row,) = of(write(tmp_path, [routed(1, [25] * 4, dropped=10, causal=0)], DESCRIBED))
    assert not row["causal"] and row["mean"]["drop_rate"] == pytest.approx(0.2)
    assert row["mean"]["imbalance"] == 1 and row["mean"]["cv"] == 0 and row["mean"]["wanted_imbalance"] is None
    assert "block 1: not causal" in text(tmp_path)


def test_drops_without_what_was_wanted_are_not_guessed(tmp_path):
    (row,) = of(write(tmp_path, [routed(1, [20, 10, 5, 5], dropped=10)], DESCRIBED))
    assert row["mean"]["wanted_imbalance"] is None and row["mean"]["wanted_cv"] is None
    assert row["mean"]["drop_rate"] == pytest.approx(10 / 50) and row["mean"]["imbalance"] == 2


def test_a_step_without_tokens_has_no_imbalance(tmp_path):
    rows = [*routed(1, [0] * 4, [20, 10, 10, 10], dropped=50), *routed(2, [20, 10, 10, 10], [20, 10, 10, 10])]
    (row,) = of(write(tmp_path, [rows], DESCRIBED))
    assert row["mean"]["imbalance"] == pytest.approx(1.6), "of step 2 alone"
    assert row["mean"]["drop_rate"] == pytest.approx(0.5)
    assert np.isnan(measured.heat(hpcpar.trace.open(tmp_path))[1][1][0]).all()
    (row,) = of(write(tmp_path / "none", [routed(1, [0] * 4, [50, 0, 0, 0], dropped=50)], DESCRIBED))
    assert row["mean"]["imbalance"] is None and row["end"]["cv"] is None


def test_what_is_missing_is_left_out_and_said(tmp_path):
    """A lost rank: half the tokens are seen. A step that one rank did not finish counts on none."""
    first, second = two_ranks()
    write(tmp_path / "cut", [first, second[: len(second) // 2]], DESCRIBED)
    (row,) = of(tmp_path / "cut")
    assert row["steps"] == 1 and row["mean"]["imbalance"] == 2 and row["seen"] == 1
    write(tmp_path / "lost", [first, second], DESCRIBED)
    (tmp_path / "lost" / "trace.00001.h5").unlink()
    (row,) = of(tmp_path / "lost")
    assert row["seen"] == 0.5 and row["mean"]["imbalance"] == pytest.approx((2 + 1.2) / 2)
    assert "block 1: of 50.0% of the tokens" in text(tmp_path / "lost")
    (row,) = of(write(tmp_path / "undescribed", [first, second]))
    assert row["seen"] is None and row["gate"] is None


def test_ranks_of_a_pipeline_have_blocks_of_their_own(tmp_path):
    ranks = [routed(1, [20, 10, 10, 10], routed=100, block=0), routed(1, [13, 12, 13, 12], routed=100, block=11)]
    rows = of(write(tmp_path, ranks, DESCRIBED))
    assert [(r["block"], r["steps"], r["seen"]) for r in rows] == [(0, 1, 1.0), (11, 1, 1.0)]
    assert rows[0]["mean"]["imbalance"] == pytest.approx(1.6)


def test_a_step_that_was_run_again_counts_once(tmp_path):
    rows = [*routed(1, [50, 0, 0, 0]), *routed(1, [13, 13, 12, 12])]
    (row,) = of(write(tmp_path, [rows], DESCRIBED))
    assert row["steps"] == 1 and row["mean"]["imbalance"] == pytest.approx(13 / 12.5)


def test_a_dense_run_has_none(tmp_path):
    write(tmp_path, [[(1, Kind.F, 0, 1), ("metric", 1, "loss", 2.0)]], {"config": config()})
    found = report(hpcpar.trace.open(tmp_path))
    assert found["experts"] == [] and found["exchange"] is None
    assert "expert" not in text(tmp_path)
    with pytest.raises(PlanError, match="no metrics of experts"):
        call(tmp_path, "--png", tmp_path / "x.png", "--picture", "experts")


# the exchange


def move(step, kind, start, end, operation=Operation.DISPATCH, size=0, peer=-1):
    return (step, kind, start, end, {"operation": operation, "axis": Axis.EP, "bytes": size, "peer": peer})


def step_of(step, at, first=2.0):
    """10 ms: F from 0 to 10; counts from 1 to 2, dispatch from 2 to 6, of which `first` waited, combine from 5 to 8, a sum from 8 to 9."""
    return [
        (step, Kind.F, at, at + 10),
        move(step, Kind.COLLECTIVE, at + 1, at + 2, Operation.COUNTS),
        move(step, Kind.COLLECTIVE, at + 2, at + 6),
        move(step, Kind.WAIT, at + 6 - first, at + 6),
        move(step, Kind.COLLECTIVE, at + 5, at + 8, Operation.COMBINE),
        move(step, Kind.COLLECTIVE, at + 8, at + 9, Operation.ALLREDUCE),
        move(step, Kind.WAIT, at + 8, at + 9, Operation.ALLREDUCE),
    ]


def test_the_share_of_the_exchange_by_hand(tmp_path):
    """7 of 10 ms on each rank; waited 2 and 4 of 10; the warm-up, where nothing was waited for, does not count."""
    ranks = [[e for s in (1, 2, 3) for e in step_of(s, 20 * s, first if s > 1 else 0)] for first in (2.0, 4.0)]
    write(tmp_path, ranks, DESCRIBED)
    trace = hpcpar.trace.open(tmp_path)
    found = exchange(trace, steps(trace))
    assert found["share"] == pytest.approx(0.7) and found["waited"] == pytest.approx(0.3)
    assert [r["waited"] for r in found["ranks"]] == [pytest.approx(0.2), pytest.approx(0.4)]
    assert found["pairs"] == [] and found["slowest"] is None and found["stays"] is None
    assert "70.0% of the step under way, 30.0% waited for" in text(tmp_path)


@pytest.mark.parametrize("posted", [False, True])
def test_rows_of_experts_join_the_messages_that_do_not_show_them(tmp_path, posted):
    ranks = two_ranks()
    ranks[0] += [(n, Kind.F, n, n + 0.5) for n in (1, 2)] + [("pairs", 1, {0: 9000, 1: 300}), ("pairs", 2, {1: 60})]
    ranks[1] += [(n, Kind.F, n, n + 0.5) for n in (1, 2)] + [("pairs", 1, {0: 540})]
    if posted:
        ranks[1].append((1, Kind.SEND, 1, 1.2, {"operation": Operation.DISPATCH, "axis": Axis.EP, "peer": 0, "bytes": 540}))
    trace = hpcpar.trace.open(write(tmp_path, ranks, DESCRIBED))
    sent = [{"source": 0, "destination": 1, "calls": 2, "bytes": 7}]
    more = {"source": 1, "destination": 0, "calls": 1, "bytes": 540}
    want = sent if posted else [{**sent[0], "calls": 4, "bytes": 367}, more]
    assert between(trace, steps(trace), sent) == want


def test_pairs_and_the_heaviest(tmp_path):
    """Bytes over all three steps; rows with one key add up; what stays on its rank is no pair of the network."""
    ranks = [[e for s in (1, 2, 3) for e in step_of(s, 20 * s)] for _ in range(2)]
    ranks[0] += [("pairs", 1, {0: 9000, 1: 300}), ("pairs", 2, {0: 0, 1: 300}), ("pairs", 2, {0: 0, 1: 60}), ("pairs", 4, {0: 0, 1: 10**6})]
    ranks[1] += [("pairs", 1, {0: 540, 1: 0})]
    write(tmp_path, ranks, DESCRIBED)
    trace = hpcpar.trace.open(tmp_path)
    found = exchange(trace, steps(trace))
    assert [(p["source"], p["destination"], p["calls"], p["bytes"]) for p in found["pairs"]] == [
        (0, 0, 3, 9000),
        (0, 1, 3, 660),
        (1, 0, 1, 540),
        (1, 1, 1, 0),
    ]
    assert found["stays"] == pytest.approx(9000 / 10200)
    slow = found["slowest"]
    assert (slow["source"], slow["destination"], slow["bytes_per_step"], slow["seconds_per_step"]) == (0, 1, 220, None)
    out = text(tmp_path)
    assert "heaviest pair: rank 0 to 1, 220 B a step" in out and "88.2% of the bytes stay" in out


def test_the_slowest_pair_has_the_longest_receives(tmp_path):
    """Steps 2 and 3: rank 1 receives from 0 for 4 + 2 ms, rank 0 from 1 for 5 + 0 ms with more bytes; sends, step 1 do not count."""

    def events(rank, lengths, size):
        out = []
        for step, length in enumerate(lengths, 1):
            at = 20 * step
            out += [(step, Kind.F, at, at + 10), move(step, Kind.RECEIVE, at, at + length, Operation.COMBINE, size, 1 - rank)]
            out += [move(step, Kind.SEND, at, at + 9, Operation.DISPATCH, 10**6, 1 - rank)]
            out += [move(step, Kind.RECEIVE, at, at + 9, Operation.ACTIVATION, 10**6, 1 - rank)]
        return out

    write(tmp_path, [events(0, (9, 5, 0), 4000), events(1, (1, 4, 2), 3000)], DESCRIBED)
    trace = hpcpar.trace.open(tmp_path)
    assert exchange(trace, steps(trace))["slowest"] == {
        "source": 0,
        "destination": 1,
        "bytes_per_step": 3000,
        "seconds_per_step": pytest.approx(3e-3),
        "bytes_per_s": pytest.approx(1e6),
    }
    assert "slowest pair: rank 0 to 1, 2.93 KiB a step, 3 ms a step, 977 KiB/s" in text(tmp_path)


# text, JSON, picture


def call(folder, *words):
    parser = argparse.ArgumentParser()
    analyse.add(parser.add_subparsers())
    args = parser.parse_args(["analyse", str(folder), *map(str, words)])
    return args.func(args)


def text(folder, width=80):
    from rich.console import Console

    console = Console(width=width, record=True, file=open("/dev/null", "w"), markup=False)  # noqa: SIM115
    found = report(hpcpar.trace.open(folder))
    for part in [*tables(found), *compared([found, found])]:
        console.print(part)
    out = console.export_text()
    assert max(map(len, out.splitlines())) <= width and "…" not in out, out
    return " ".join(out.split())


@pytest.mark.parametrize("ranks", [8, 12])
def test_text_and_json(tmp_path, capsys, ranks):
    events = [*two_ranks()[0], *(e for s in (1, 2) for e in step_of(s, 20 * s))]
    sizes = [("pairs", 1, {peer: 10**6 * (1 + rank + peer) for peer in range(ranks)}) for rank in range(ranks)]
    write(tmp_path, [[*events, mine] for mine in sizes], DESCRIBED)
    out = text(tmp_path)
    for word in (
        "1.60",
        "10.5 MiB" if ranks == 12 else "from to, MiB 0 1 2 3 4 5 6 7",
        " 10.0 ",
        "4 experts a block",
        "assignments dropped",
    ):
        assert word in out, word
    assert call(tmp_path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["experts"][0]["mean"]["drop_rate"] == pytest.approx(0.1) and len(found["exchange"]["pairs"]) == ranks**2


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_map_is_drawn(tmp_path, capsys, ending):
    write(tmp_path / "run", two_ranks(), DESCRIBED)
    file = tmp_path / f"map.{ending}"
    assert call(tmp_path / "run", "--png", file, "--picture", "experts", "--json") == 0
    assert file.read_bytes()[:5] == (b"\x89PNG\r" if ending == "png" else b"<?xml")
    assert f"the load of the experts of 1 block is drawn in {file}" in capsys.readouterr().err
    with pytest.raises(PlanError, match="--step 2: the picture experts shows every step"):
        call(tmp_path / "run", "--png", file, "--picture", "experts", "--step", 2)
    with pytest.raises(PlanError, match="give --png F too"):
        call(tmp_path / "run", "--picture", "experts")
    with pytest.raises(PlanError, match="cannot write"):
        call(tmp_path / "run", "--png", tmp_path / "none" / "t.png", "--picture", "experts")


def test_what_the_map_shows(tmp_path, monkeypatch):
    """A row an expert from the top, a column a step, steps that are missing as gaps, the mean in the middle of the scale."""
    found = {}
    monkeypatch.setattr("hpcpar.draw.experts.save", lambda figure, path: found.update(figure=figure))
    values = np.array([[2.0, 0.0], [1.0, 1.0], [0.5, 1.5]])
    heat_map({1: (np.array([3, 4, 7]), values), 5: (np.array([3, 4, 7]), values)}, "run", tmp_path / "x.png")
    axes = found["figure"].axes[0]
    image = axes.images[0].get_array()
    assert axes.get_title(loc="left") == "block 1" and axes.get_ylabel() == "expert"
    assert np.ma.filled(image, -1.0).tolist() == [[2.0, 1.0, -1.0, -1.0, 0.5], [0.0, 1.0, -1.0, -1.0, 1.5]]
    assert axes.images[0].get_extent() == [2.5, 7.5, 1.5, -0.5] and axes.images[0].get_clim() == (0, TOP)
    assert axes.images[0].origin == "upper"


def test_many_steps_are_means_of_what_is_known():
    values = np.array([[1.0], [3.0], [np.nan], [5.0], [np.nan], [np.nan], [7.0]])
    got = binned(values, 2)[:, 0]
    assert got[:2].tolist() == [2.0, 5.0] and np.isnan(got[2]) and got[3] == 7.0
    assert len(binned(np.ones((5 * COLUMNS, 2)), 5)) == COLUMNS


# analysis/expert_balance.py


def test_the_table_of_runs(tmp_path, monkeypatch):
    """Losses of the last tenth of the steps, means over blocks; what is not known is -, what is no run is refused."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "analysis")
    script = importlib.import_module("expert_balance")
    events = [*routed(1, [20, 10, 10, 10]), *routed(1, [25] * 4, dropped=10, block=3, unrouted=5)]
    write(tmp_path / "run", [events], DESCRIBED)
    with pytest.raises(PlanError, match="is no finished run"):
        script.row(tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text(json.dumps({"losses": [9.0] * 18 + [2.0, 1.0], "held_out_loss": None}))
    rows = script.rows([tmp_path / "run"])
    line = script.table(rows).splitlines()[2]
    # max/mean 1.6 and 1; wanted of the first alone; dropped 0 and 10 of 110; without an expert 0 and 5 of 50
    assert line == "| run | switch | yes | 1.5000 | - | 1.300 | 0.173 | 1.600 | 4.5 | 5.0 | 1.000 |"
    script.picture(rows, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")
