"""The held-out loss of a checkpoint: a run of no step that starts from its weights.

The plan of the checkpoint does not matter: by default every rank is a replica with the whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcpar import checkpoint, config
from hpcpar.comm.world import World
from hpcpar.config import Config
from hpcpar.errors import PlanError
from hpcpar.run.evaluate import evaluate
from hpcpar.run.recorder import Recorder
from hpcpar.run.train import Session, agreed

SAMPLES = 8  # of a microbatch


def description(path: Path, samples: int, overrides: Sequence[str], ranks: int) -> tuple[Config, list[str]]:
    """The run that evaluates a checkpoint: its model, data and precision, and a plan for these ranks; and what is to be said about it.

    Raises PlanError where there is no such checkpoint, or nothing to evaluate on.
    """
    found, said = checkpoint.find(path)
    at = checkpoint.open(found)
    saved = at.fields["config"]
    if "imported" in at.fields and not any(item.startswith("data.source") for item in overrides):
        raise PlanError(f"{found} was imported: what it was trained on is not known here; use --set data.source=FILE")
    train = {k: saved["train"][k] for k in ("precision", "seed", "eval_samples")} | {"start": str(found)}
    if samples < 0:
        raise PlanError(f"--samples {samples} is negative; use at least 1")
    if samples:
        train["eval_samples"] = samples
    of_plan = any(item.startswith("plan.") for item in overrides)
    tables: dict[str, Any] = {
        "model": saved["model"],
        "plan": {} if of_plan else {"dp": ranks},
        "train": train,
        "data": saved["data"],
        "run": {"device": saved["run"]["device"], "trace": "off"},
    }
    for item in overrides:
        config.override(tables, item)
    plan = config.build({"plan": tables["plan"]}).plan
    group = saved["model"]["moe"]["group"] if saved["model"].get("moe") else 1
    train.setdefault("batch", plan.dp * plan.accumulate * plan.microbatches * group * max(1, SAMPLES // group))
    return config.build(tables), said


def held_out(path: Path, samples: int, overrides: Sequence[str], world: World, recorder: Recorder) -> dict[str, Any]:
    """{held_out_loss (nats a label), labels, samples, checkpoint, step, source, notes}, the same on every rank; collective."""
    described, said = world.share(agreed(world, lambda: description(path, samples, overrides, world.size) if world.rank == 0 else None))
    world.waiter.timeout_s = described.run.timeout_s
    session = Session(described, world, recorder)
    trainer, corpus = session.trainer, session.corpus
    if not corpus.held_samples:
        raise PlanError("data.held_out = 0: nothing was held out; use --set data.held_out=0.05")
    at = checkpoint.open(described.train.start)
    trainer.resume(at.step)  # places drawn by chance are those of the run's own evaluation at this step
    loss, labels = evaluate(trainer, described.train.eval_samples)
    return {
        "held_out_loss": loss,
        "labels": labels,
        "samples": min(described.train.eval_samples, corpus.held_samples),
        "checkpoint": str(at.path),
        "step": at.step,
        "source": corpus.source.name,
        "notes": said,
    }
