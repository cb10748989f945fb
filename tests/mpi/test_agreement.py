"""The replica check: silent while ranks agree, and it names the first parameter, the ranks and the step when one does not."""

from __future__ import annotations

import pytest
from proof import GPT, STYLES, describe

from hpcpar.errors import Aborted
from hpcpar.run import agreement
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session

STYLES["uneven"] = {**GPT, "layers": 2, "kv_heads": 1, "vocabulary": 257}  # 3 heads that read one key/value head
STYLES["long"] = {**STYLES["uneven"], "layers": 1, "context": 80}  # what is not cut reaches into the second of 4 chunks of one bucket

# plan, style, name, the ranks on which a fault is planted, the ranks that hold the same
PLANTED = {
    "dp": ({"dp": 4}, "cut-gpt-tied", "blocks.1.mlp.up.weight", 2, (0, 1, 3)),
    "uncut": ({"tp": 4, "sequence": True}, "cut-gpt-tied", "blocks.0.norm2.gain", 3, (0, 1, 2)),
    "shared head": ({"tp": 4}, "cut-llama-tied", "blocks.2.attention.key.weight", 1, (0,)),
    "tied": ({"tp": 2, "pp": 2}, "cut-gpt-tied", "tokens.weight", 3, (1,)),
}


def session(world, style, plan):
    made = Session(describe(style, plan, {"steps": 2}), world, Recorder())
    for _ in made.trainer.until(2):
        agreement.check(made.trainer)
    return made.trainer


def view(trainer, name, kind="weights"):
    for part in trainer.parts.values():
        named = part.weights_by_name() if kind == "weights" else part.state_by_name()[kind]
        if name in named:
            yield named[name].reshape(-1)


@pytest.mark.mpi(sizes=(4,))
@pytest.mark.parametrize("kind", ("weights", "v"))
@pytest.mark.parametrize("case", PLANTED)
def test_a_fault_on_one_rank_is_named(world, case, kind):
    plan, style, name, odd, others = PLANTED[case]
    trainer = session(world, style, plan)
    for flat in view(trainer, name, kind) if world.rank == odd else ():
        flat[-1] *= 1 + 1e-15
        flat[-1] += 1e-300
    with pytest.raises(agreement.Diverged if world.rank == 0 else Aborted) as said:
        agreement.check(trainer)
    words = str(said.value)
    both = {f"rank {odd}", f"rank{'s' * (len(others) > 1)} {', '.join(map(str, others))}"}
    assert f"after step 2 the {kind} of {name} on" in words and all(w in words for w in both), words


@pytest.mark.mpi(sizes=(4,))
def test_the_first_one_is_named(world):
    trainer = session(world, "cut-gpt-tied", {"tp": 2, "dp": 2})
    for name in ("tokens.weight", "norm.gain", "blocks.2.mlp.up.weight"):
        for flat in view(trainer, name) if world.rank == 2 else ():
            flat[0] += 1
    with pytest.raises((agreement.Diverged, Aborted), match=r"weights of blocks.2.mlp.up.weight on rank 2 differ from those on rank 0;"):
        agreement.check(trainer)


@pytest.mark.mpi(sizes=(6, 8))
@pytest.mark.parametrize("algorithm", ("ring", "mpi"))
@pytest.mark.parametrize("style", ("cut-gpt-tied", "uneven", "long"))
def test_sums_over_many_replicas_do_not_depend_on_the_place(world, style, algorithm):
    """Pieces are unequal, so that what stands behind them lies elsewhere on each rank along tp."""
    sizes = {} if style == "long" else {"bucket_mb": 0.02, "first_bucket_mb": 0.002}
    sync = {"algorithm": algorithm, **sizes}
    for plan in ({}, {"sequence": True}, *([{"zero": 1, "sequence": True}] if algorithm == "mpi" else [])):
        session(world, style, {"dp": world.size // 2, "tp": 2, "sync": sync, **plan})


@pytest.mark.mpi(sizes=(8,))
@pytest.mark.parametrize("sequence", (False, True))
def test_ranks_agree_bit_for_bit(world, sequence):
    """All-reduced gradients and separately computed ones of what is not cut: equal bits on all ranks that hold them."""
    session(world, "cut-deep-llama", {"dp": 2, "pp": 2, "tp": 2, "microbatches": 2, "sequence": sequence})
    session(world, "cut-gpt-shared", {"dp": 2, "tp": 4, "sequence": sequence})
