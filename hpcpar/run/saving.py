"""A run's state into a checkpoint and back: parameters and optimizer state in global form by name.

    every rank writes the slices that it owns -> rank 0 writes the manifest and renames the folder when it is whole

Of the n ranks that hold a stage's replicas, number i % n writes parameter i, so that all of them write at once; shards write what they own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hpcpar import checkpoint
from hpcpar.checkpoint.store import Tensor
from hpcpar.config import Config, build, tables
from hpcpar.errors import Ended, PlanError
from hpcpar.ops.array import host_array
from hpcpar.run import replicas
from hpcpar.run.trainer import Trainer


def checkpoints(folder: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return folder / "checkpoints"


def _owned(trainer: Trainer) -> Iterator[Tensor]:
    p = trainer.pipeline
    rule = trainer.config.train.optimizer
    for part in trainer.parts.values():
        for kind, name, slices, values in part.owned(p.mesh, trainer.world.rank):
            if kind == "weights" or trainer.shares_state:  # else the state of each replica is among the extras
                stored = kind if kind == "weights" else f"{rule}.{kind}"
                yield stored, name, part.map.parameters[name].shape, slices, host_array(values)
    yield from trainer.extras()


def save(trainer: Trainer, folder: Path, keep: int) -> Path:
    """Write the checkpoint of the state after `trainer.steps` steps; collective. Raises Ended on every rank if one cannot write."""
    world, start = trainer.world, time.perf_counter_ns()
    trainer.recorder.at("checkpoint")
    temporary, problem = world.share(_prepared(trainer, folder) if world.rank == 0 else None)
    entry = None
    try:
        if not problem:
            entry = checkpoint.write_part(temporary, world.rank, _owned(trainer))
    except OSError as e:
        problem = f"rank {world.rank}: {e}"
    applied = {n: part.applied for part in trainer.parts.values() for n in part.counted(trainer.pipeline.rank)}
    found = world.gather((entry, problem, applied))
    final: Path | None = None
    if found is not None:
        problem = next((p for _, p, _ in found if p), "")
        if not problem:
            try:
                fields = {
                    "step": trainer.steps,
                    "applied": {n: a for _, _, every in found for n, a in sorted(every.items())},
                    "config": tables(trainer.config),
                    "fingerprint": trainer.feed.corpus.fingerprint(),
                }
                final = checkpoint.commit(temporary, [e for e, _, _ in found if e is not None], **fields)
                checkpoint.prune(checkpoints(folder), keep)
            except OSError as e:
                problem = str(e)
        if final is None and temporary:
            with suppress(OSError):
                checkpoint.discard(temporary)
    final, problem = world.share((final, problem))
    trainer.recorder.compute("checkpoint", start)
    if problem or final is None:
        raise Ended(
            f"the checkpoint of step {trainer.steps} could not be written ({problem}); earlier ones are untouched: make room, then --resume"
        )
    return final


def _prepared(trainer: Trainer, folder: Path) -> tuple[Path | None, str]:
    try:
        return checkpoint.prepare(checkpoints(folder), trainer.steps), ""
    except OSError as e:
        return None, str(e)


def restore(trainer: Trainer, path: Path) -> None:
    """Read weights and optimizer state of this rank's parts from a checkpoint of any plan; raises PlanError where it does not fit.

    One that was imported has weights alone: the run begins with them.
    """
    at = checkpoint.open(path)
    if "imported" in at.fields:
        begin(trainer, path)
        return
    rule = trainer.config.train.optimizer
    saved = at.fields.get("config", {})
    _same_model(trainer.config, at, ())
    if at.fields.get("fingerprint") != trainer.feed.corpus.fingerprint():
        raise PlanError(f"{path} was trained on other tokens than data.source gives here; resume with the same data or start a new --out")
    if saved.get("train", {}).get("optimizer") != rule:
        raise PlanError(f"{path} holds the state of {saved.get('train', {}).get('optimizer')}, train.optimizer = {rule}; use the same")
    apart = replicas.keeps_apart(trainer, at)
    for part in trainer.parts.values():
        part.restore(at, rule, not apart)
        counts = {at.fields["applied"][name] for name in part.map.names}
        if len(counts) > 1:
            raise PlanError(f"{path}: the parameters of stage {part.index} had {sorted(counts)} updates; resume with the plan that made it")
        part.applied = counts.pop()
    trainer.restore_extras(at)
    trainer.resume(at.step)


def begin(trainer: Trainer, path: Path) -> None:
    """Take the weights of a checkpoint of any plan as the first ones of a new run; raises PlanError where the model is another."""
    at = checkpoint.open(path)
    _same_model(trainer.config, at, ("dropout",))
    for part in trainer.parts.values():
        part.restore(at, trainer.config.train.optimizer, False)
    trainer.resume(0)


def _same_model(config: Config, at: checkpoint.Checkpoint, free: tuple[str, ...]) -> None:
    """Raise PlanError where a checkpoint is of another model; keys in `free` may differ. A key that it does not know has its default."""
    of = build({"model": at.fields.get("config", {}).get("model", {})})
    # A width or a number of heads may be said or left to its default.
    saved, mine = (tables(c)["model"] | {"kv_heads": c.model.groups, "mlp_width": c.model.inner} for c in (of, config))
    for k in sorted(saved | mine):
        if saved.get(k) != mine.get(k) and k not in free:
            raise PlanError(f"{at.path} was made with model.{k} = {saved.get(k)}, not {mine.get(k)}; use the same model")
