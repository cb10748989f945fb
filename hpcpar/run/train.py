"""A training run, from its description to its folder: the same program on every rank.

check -> build -> start or restore -> [ step, metrics, now and then evaluate and save ] -> evaluate, save, summary
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar import checkpoint
from hpcpar.comm import device
from hpcpar.comm.world import World
from hpcpar.config import Config, tables
from hpcpar.data import Corpus, Yardsticks
from hpcpar.errors import REQUEUE, Ended, PlanError
from hpcpar.nn.describe import parameters
from hpcpar.ops.warm import warm
from hpcpar.optim import rate
from hpcpar.run import agreement, binding, feasible, host, offload, saving, settings, stop
from hpcpar.run.build import build
from hpcpar.run.clocks import Clocks
from hpcpar.run.description import description
from hpcpar.run.emulate import emulated
from hpcpar.run.evaluate import evaluate
from hpcpar.run.failure import close_trace
from hpcpar.run.feed import Feed
from hpcpar.run.modes import trainer_for
from hpcpar.run.output import Output, losses, refuse_overwriting, tokens_per_s
from hpcpar.run.program import checked
from hpcpar.run.progress import Progress
from hpcpar.run.recorder import Recorder
from hpcpar.run.refusal import agreed
from hpcpar.run.status import Status
from hpcpar.run.trainer import Result, Trainer
from hpcpar.run.watchdog import Watchdog
from hpcpar.trace.index import write_index
from hpcpar.trace.writer import Writer


class Session:
    """One start of a run on this rank: what `train` and the proofs build on."""

    def __init__(
        self,
        config: Config,
        world: World,
        recorder: Recorder,
        folder: Path | None = None,
        resume: bool = False,
        status: Status | None = None,
    ):
        self.config, self.world, self.recorder = config, world, recorder
        self.path: Path | None = None
        self.said: list[str] = []
        self.gpu: int | None = None  # of the node, that this rank has
        self.program, self.size = agreed(world, lambda: checked(config, world.size))
        moves = agreed(world, lambda: offload.placements(config, self.program, self.size, world.rank))
        if folder is not None:
            agreed(world, lambda: self._prepare(folder, resume, status))
            if resume:
                found = checkpoint.newest_intact(saving.checkpoints(folder)) if world.rank == 0 else None
                self.path, self.said = world.share(found)
        self.threads = settings.set_threads(agreed(world, lambda: settings.threads_here(config.run.threads, world.cores, world.node_ranks)))
        self.xp, self.verdict = agreed(world, self._device)
        world.direct, world.reduces = self.verdict.direct, self.verdict.reduces
        self.corpus: Corpus = agreed(world, lambda: Corpus.of(config.data, config.model, config.train.seed))
        self._same_data()
        self._warm()
        if config.plan.sync.progress == "thread":
            agreed(world, world.progress_by_thread)
        self.pipeline = build(config, world, self.program, self.xp)
        if config.train.emulate:
            times = config.train.emulate
            agreed(world, lambda: emulated(self.pipeline, times, self.size))
        if moves:
            offload.attach(self.pipeline, moves, recorder, self.xp)
            self.said = [*self.said, str(moves)]
        feed = Feed(self.corpus, config.train.batch, self.size, self.pipeline.replica, config.plan.dp, self.pipeline.frame.runs)
        kind = trainer_for(config.plan.sync.mode, self.program.schedule.synchronous)
        self.trainer: Trainer = kind(config, self.pipeline, feed, recorder, self.xp)
        if self.path:
            path = self.path
            agreed(world, lambda: saving.restore(self.trainer, path))
        elif config.train.start:
            first = self._first(config.train.start)
            agreed(world, lambda: saving.begin(self.trainer, first))
        else:
            self.trainer.start()

    def _prepare(self, folder: Path, resume: bool, status: Status | None) -> None:
        """Rank 0 looks after the folder."""
        if self.world.rank == 0:
            feasible.check_folder(folder)
        if status:
            status.take(folder)
        if self.world.rank == 0 and not resume:
            refuse_overwriting(folder)

    def _first(self, start: str) -> Path:
        """The checkpoint whose weights are the first ones, read through by rank 0."""
        found = agreed(self.world, lambda: checkpoint.find(start) if self.world.rank == 0 else None)
        path, said = self.world.share(found)
        self.said = [*self.said, *said, f"the first weights are those of {path}"]
        return path

    def _device(self) -> tuple[Any, device.Verdict]:
        if self.config.run.device == "cpu":
            return np, device.Verdict(True, "host memory", True)
        self.gpu = device.select_device(self.world.node_rank)
        import cupy

        verdict = device.gpu_aware(self.config.run.gpu_aware) if self.world.rank == 0 else None
        return cupy, self.world.share(verdict)

    def _same_data(self) -> None:
        prints = self.world.gather(self.corpus.fingerprint())
        odd = next((r for r, p in enumerate(prints) if p != prints[0]), None) if prints else None
        odd = self.world.share(odd)
        if odd is not None:
            raise PlanError(
                f"data.source = {self.config.data.source!r} holds other tokens on rank {odd} than on rank 0; use one copy of it"
            )

    def _warm(self) -> None:
        """Compile the kernels once a node: the others then load them."""
        for first in (True, False):
            if (self.world.node_rank == 0) == first:
                warm(self.config.train.precision)
            self.world.barrier()


def train(
    config: Config,
    folder: Path,
    resume: bool,
    world: World,
    recorder: Recorder,
    measure: Callable[[], dict[str, Any]],
    mpi: dict[str, Any],
    status: Status | None = None,
    came: Callable[[], str | None] = lambda: None,
) -> dict[str, Any]:
    """Train as described, into `folder`; returns the summary. PlanError: it cannot be, before step 1; Ended: it stops early.

    `measure` finds what the machine can do (on rank 0, while the others wait); `mpi` is recorded; `came` names the signal that asked
    this rank to stop.
    """
    settings.keep_memory()
    status = status or Status(world.rank, world.size)
    session = Session(config, world, recorder, folder, resume, status)
    trainer, lead = session.trainer, world.rank == 0
    after = trainer.steps if session.path else None
    machine = world.share(measure() if lead else None)
    if "matrix_flops_per_s_rank" in machine:  # of one rank while the others wait; ranks that share cores do not have it each
        have = min(1.0, world.cores / (session.threads["threads"] * world.node_ranks)) if config.run.device == "cpu" else 1.0
        machine["matrix_flops_per_s"] = machine["matrix_flops_per_s_rank"] * world.size * have
    hosts = world.gather(host.host(session.threads["threads"], session.gpu))
    session.said += binding.lines(hosts or [])
    described = world.share(description(config, session, hosts, machine, mpi) if lead else None)
    out = None
    if config.run.trace == "full":
        recorder.writer = agreed(world, lambda: Writer(folder, world.rank, world.size, described, after))
        if lead:
            write_index(folder, world.size, described)
        session.said += [text for of in world.gather(recorder.writer.said) or () for text in of]
    clocks = Clocks(world, recorder, config.run.clock_every_s)
    clocks.compare()
    trainer.due = clocks.due
    world.record, world.pairs = recorder.message, recorder.pairs
    held = [part.held_bytes() for part in trainer.parts.values()]
    for kind in dict.fromkeys(kind for of in held for kind in of):
        recorder.memory(kind, sum(of.get(kind, 0) for of in held))
    progress = Progress(trainer.steps, config.train.steps, config.run.log_every, lead)
    if lead:
        out = Output(folder, config, after)
        _greet(progress, session, resume)
    status.begin(trainer.steps, config.train.steps)
    trainer.wish = lambda: came() is not None
    watchdog = Watchdog(world, recorder, status, folder, config.run.watchdog_s) if config.run.watchdog_s else None
    try:
        odd = _steps(session, out, progress, folder, clocks, status)
        if odd or (trainer.stopping and trainer.steps < config.train.steps):
            _saved(session, out, folder, clocks)
            raise stop.early(trainer, odd, came())
        summary = _finish(session, out, progress, folder, clocks)
    except Ended as e:
        close_trace(recorder, world.rank)
        if lead:
            status.end("requeue" if e.code == REQUEUE else "failed", e.code, str(e))
        raise
    finally:
        progress.close()
        if world.thread:
            world.thread.stop()
    if lead:
        status.end("ended", 0, "done")
    if watchdog:
        watchdog.stop()
    status.release()
    return summary


def drains(config: Config, step: int) -> int:
    """The next step after `step` at which the run evaluates, saves or ends: where an asynchronous pipeline is drained."""
    every = [n for n in (config.train.eval_every, config.run.checkpoint_every) if n]
    return min([config.train.steps, *(n * (step // n + 1) for n in every)])


def _steps(session: Session, out: Output | None, progress: Progress, folder: Path, clocks: Clocks, status: Status) -> int:
    """Make the steps; returns the one whose gradient norm ends the run, else 0."""
    config, trainer, t, odd = session.config, session.trainer, session.config.train, 0
    while trainer.steps < t.steps and not trainer.stopping:
        for result in trainer.until(drains(config, trainer.steps)):
            _report(session, out, progress, result)
            status.step(trainer.steps)
            if result.skipped and result.tokens and t.nonfinite == "stop":
                odd = odd or trainer.steps
                trainer.stopping = True
            if t.check_replicas and trainer.steps % t.check_replicas == 0:
                agreement.check(trainer)
            if trainer.asked and trainer.steps < t.steps:
                clocks.compare()
            trainer.recorder.flush()
        step = trainer.steps
        if trainer.stopping:
            break
        if t.eval_every and step % t.eval_every == 0 and step < t.steps and not t.asleep:
            loss, _ = evaluate(trainer, t.eval_samples)
            trainer.recorder.metric("held_out_loss", loss)
            progress.say(f"step {step}: held-out loss {loss:.4f}")
        if config.run.checkpoint_every and step % config.run.checkpoint_every == 0 and step < t.steps:
            if out:
                out.sync()
            saving.save(trainer, folder, config.run.keep_checkpoints)
        if not trainer.sums_losses and step < t.steps and clocks.ask():
            clocks.compare()
        trainer.recorder.flush()
    return odd


def _report(session: Session, out: Output | None, progress: Progress, result: Result) -> None:
    trainer, t = session.trainer, session.config.train
    step = trainer.steps
    lr = rate(t, step - 1)
    alone = result.worker is not None  # it recorded its own metrics, when it made the step
    for name, value in (("loss", result.loss), ("grad_norm", result.grad_norm), ("tokens", result.tokens), ("seconds", result.seconds)):
        if value is not None and not alone:
            trainer.recorder.metric(name, value)
    if result.skipped and result.tokens:
        whose = f" of worker {result.worker}" if alone else ""
        progress.say(f"step {step}: the gradient norm{whose} is not finite; {trainer.skipping}")
    if out:
        digest = session.corpus.digest((step - 1) * t.batch, t.batch)
        line = {
            "step": step,
            **({"rank": result.worker} if alone else {}),
            "loss": result.loss,
            "tokens": result.tokens,
            "grad_norm": result.grad_norm,
            "learning_rate": lr,
            "seconds": result.seconds,
            "digest": digest,
        }
        if session.config.model.moe:
            line["auxiliary"] = result.auxiliary
        out.step({**line, "skipped": True} if result.skipped else line)
        if not result.worker:
            progress.step(step, result.loss, t.batch * session.config.model.context / result.seconds)


def _saved(session: Session, out: Output | None, folder: Path, clocks: Clocks) -> Path:
    """The last checkpoint, and the clocks at the end."""
    if out:
        out.sync()
    path = saving.save(session.trainer, folder, session.config.run.keep_checkpoints)
    clocks.compare()
    return path


def _finish(session: Session, out: Output | None, progress: Progress, folder: Path, clocks: Clocks) -> dict[str, Any]:
    config, trainer, world, t = session.config, session.trainer, session.world, session.config.train
    held_out = None
    if session.corpus.held_samples and not t.asleep:
        held_out, _ = evaluate(trainer, t.eval_samples)
    path = _saved(session, out, folder, clocks)
    peaks = world.gather(trainer.recorder.peaks)
    trainer.recorder.close()
    summary: dict[str, Any] = {}
    if out and peaks is not None:
        marks = Yardsticks.of(session.corpus, t.eval_samples) if held_out is not None else None
        summary = {
            "losses": losses(out.lines),
            "held_out_loss": held_out,
            "unigram_loss": marks.unigram_loss if marks else None,
            "bigram_loss": marks.bigram_loss if marks else None,
            "tokens": sum(line["tokens"] for line in out.lines),
            "tokens_per_s": tokens_per_s(out.lines, t.batch * config.model.context),
            "parameters": sum(p.size for p in parameters(config.model).values()),
            "weights_sha256": checkpoint.weights_sha256(path),
            "peak_bytes": [dict(sorted(p.items())) for p in peaks],
            "plan": tables(config)["plan"],
        }
        out.summary(summary)
        out.close()
        if marks:
            progress.say(
                f"held-out loss {held_out:.4f} nats a token (unigram {_number(marks.unigram_loss)}, bigram {_number(marks.bigram_loss)})"
            )
        progress.say(f"{trainer.steps} steps, {summary['tokens_per_s']:,.0f} tokens/s; {folder}")
    world.barrier()
    return summary


def _number(value: float | None) -> str:
    return "not counted" if value is None else f"{value:.4f}"


def _greet(progress: Progress, session: Session, resume: bool) -> None:
    config, p = session.config, session.config.plan
    count = sum(x.size for x in parameters(config.model).values())
    for text in session.said:
        progress.say(text)
    if resume and not session.path:
        progress.say("no checkpoint to resume from: starting at step 1")
    if session.path:
        progress.say(f"resumed from {session.path}, after step {session.trainer.steps}")
    cut = (f" x cp {p.cp} by {p.context}" if p.cp > 1 else "") + (f" x tp {p.tp}{' in rows' * p.sequence}" if p.tp > 1 else "")
    cut += f" x ep {p.ep}" * (p.ep > 1)
    plan = f"dp {p.dp} x pp {p.pp}{cut}, {p.schedule}"
    progress.say(f"{count:,} parameters, {session.world.size} ranks ({plan}), {session.threads['threads']} threads each")
    progress.say(str(session.corpus))
    if not session.program.schedule.synchronous or p.sync.mode in ("ssp", "asp"):
        first = session.trainer.steps
        progress.say(
            f"a signal stops this run at its next drain, at most {drains(config, first) - first} steps later (run.checkpoint_every)"
        )
