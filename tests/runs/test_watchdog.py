"""A rank that hangs: the others say which action every rank is in, and the job ends within the watchdog's time and some seconds."""

from __future__ import annotations

import json
import re
import signal

import pytest
from launch import HERE, configuration, hpcpar, metrics
from live import Live

from hpcpar import checkpoint

SECONDS = 3


@pytest.mark.parametrize(
    "plan, ranks, stopped",
    [
        ({"plan__pp": 3, "plan__microbatches": 2}, 3, 1),
        pytest.param({"plan__dp": 3, "train__batch": 9}, 3, 0, marks=pytest.mark.long),
        pytest.param({"plan__pp": 3, "plan__schedule": "pipedream-2bw", "plan__microbatches": 2}, 3, 2, marks=pytest.mark.long),
        pytest.param({"plan__dp": 3, "train__batch": 9, "plan__sync": {"mode": "asp"}}, 3, 1, marks=pytest.mark.long),
    ],
    ids=("pp", "dp", "2bw", "asp"),
)
def test_a_rank_that_is_stopped(tmp_path, plan, ranks, stopped):
    every = {"run__checkpoint_every": 50} if plan.get("plan__schedule") or plan.get("plan__sync") else {}
    cfg = configuration(tmp_path, train__steps=10**4, run__watchdog_s=SECONDS, train__schedule="constant", **plan, **every)
    live = Live(tmp_path / "out", cfg, ranks=ranks)
    try:
        live.after(2)
        live.send(stopped, signal.SIGSTOP)
        done = live.end(SECONDS + 40)
    finally:
        live.close()
    assert done.code == 1, done.err
    assert every or "did not end by itself" not in done.err, done.err  # between steps, in a gathering, there is no other end
    assert done.err.count(f"nothing has moved for {SECONDS} s (run.watchdog_s)") == 1, done.err
    lines = dict(re.findall(r"^  rank (\d+) on (.*)$", done.err, re.MULTILINE))
    assert sorted(map(int, lines)) == list(range(ranks))
    for rank, line in lines.items():
        assert re.search(r"step \d+, action \S+", line)
        assert ("stopped or dead" in line) == (int(rank) == stopped), done.err
        assert int(rank) == stopped or "waits for" in line or (every and "action checkpoint" in line), line
    found = json.loads((tmp_path / "out" / "status.json").read_text())
    assert (found["state"], found["code"]) == ("failed", 1) and "nothing has moved" in found["reason"]
    assert checkpoint.newest_intact(tmp_path / "out" / "checkpoints")[1] == []


@pytest.mark.long
def test_a_rank_that_cannot_be_reached(tmp_path):
    """It does not come back from what it does, and nobody else could end it."""
    cfg = configuration(tmp_path, train__steps=5, run__watchdog_s=SECONDS)
    done = hpcpar("hang", 0, 3, "train", cfg, "--out", tmp_path / "out", program=(str(HERE / "faulty.py"),))
    assert done.code == 1, done.err
    assert "rank 0 on" in done.err and "step 3, action 0F0" in done.err and "did not end by itself" in done.err


def test_a_run_that_moves_is_left_alone(tmp_path):
    """Also where one rank works much longer than the watchdog waits, as long as it moves; nothing is left of it."""
    slept = {"F": 0.02, "I": 0.02, "W": 0.02, "slow": {"1": 20}}  # rank 0 waits for 4 x 1.2 s
    settings = {"plan__dp": 2, "plan__microbatches": 4, "train__steps": 1, "run__watchdog_s": SECONDS, "train__emulate": slept}
    assert hpcpar("train", configuration(tmp_path, **settings), "--out", tmp_path / "out", ranks=2).code == 0
    assert metrics(tmp_path / "out")[0]["seconds"] > SECONDS
    assert not (tmp_path / "out" / ".watchdog").exists()
