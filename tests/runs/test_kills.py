"""kill -9 of any rank at any moment: the job ends, no process is left, nothing saved is lost, and the run goes on bit for bit."""

from __future__ import annotations

import random
import re
import signal
import time

import pytest
from launch import compare, configuration, hpcpar, metrics
from live import Live

from hpcpar import checkpoint
from hpcpar.run import status

END_S = 20  # from the kill to the end of the job
KILLED = re.compile(r"signal:? 9|signal 9|killed", re.IGNORECASE)  # the launcher's words
PLANS = {
    "zero": ({"plan__dp": 2, "plan__zero": 1}, 2),
    "pp x dp": ({"plan__pp": 2, "plan__dp": 2}, 4),
    "2bw": ({"plan__pp": 3, "plan__schedule": "pipedream-2bw", "plan__microbatches": 2}, 3),
}


@pytest.mark.parametrize(
    "name, kills, seed",
    [("zero", 3, 1), *(pytest.param(name, 10, 2 + i, marks=pytest.mark.long) for i, name in enumerate(PLANS))],
)
@pytest.mark.timeout(1500)
def test_killed_and_gone_on(tmp_path, name, kills, seed):
    """Every kill hits what the last one left; the whole is compared with a run that was left alone."""
    chance, (plan, ranks), out = random.Random(seed), PLANS[name], tmp_path / "out"
    settings = {**plan, "run__checkpoint_every": 1, "run__keep_checkpoints": 2, "train__schedule": "constant", "train__warmup": 3}
    endless = configuration(tmp_path, train__steps=10**6, **settings)
    for _ in range(kills):
        live = Live(out, endless, "--resume", ranks=ranks)
        try:
            rank = chance.randrange(ranks)
            if steps := chance.randrange(8):
                live.after(steps)
            time.sleep(chance.uniform(0, 0.05) if steps else chance.uniform(0, 1))  # also before the first step
            live.send(rank, signal.SIGKILL)
            done = live.end(END_S)
        finally:
            live.close()
        assert done.code not in (0, 2) and KILLED.search(done.err), done.err
        if (said := status.read(out)) is not None:
            assert said["state"] == "lost" and "killed" in said["reason"]
        newest = checkpoint.newest(out / "checkpoints")
        assert newest is None or checkpoint.verify(newest) == []
        assert checkpoint.newest_intact(out / "checkpoints") == (newest, [])
    last = (checkpoint.open(newest).step if newest else 0) + 2
    ended = configuration(tmp_path, train__steps=last, **settings)
    done = hpcpar("train", ended, "--out", out, "--resume", ranks=ranks)
    assert done.code == 0, done.err
    assert "cannot be read" not in done.err  # traces of all ranks went on
    assert hpcpar("train", ended, "--out", tmp_path / "alone", ranks=ranks).code == 0
    apart = compare(out, tmp_path / "alone")
    assert (apart["loss"], apart["grad_norm"], apart["weights"]) == (0, 0, 0), apart
    assert [x["step"] for x in metrics(out)] == list(range(1, last + 1))
    assert status.read(out)["state"] == "ended"
