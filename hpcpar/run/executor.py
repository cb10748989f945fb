"""Runs the actions of one rank, in order: the very list that was checked, timed and drawn.

    2RA0<1   post the receive of stage 2's input          2F0    wait for it, compute, stash        2SA0>3   start to send the output
    2RG0<3   post the receive of its output's gradient    2B0    wait for it, I and W op by op      2SG0>1   start to send its input's
    2D  gradients of stage 2 are on their way to a sum    0T     tied weights: sum the two uses     2U       update

Sends and receives never block: whoever needs a message waits for it, and every wait has a timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import World
from hpcpar.nn.context import Microbatch
from hpcpar.nn.gradients import Gradients
from hpcpar.run.part import Part
from hpcpar.run.recorder import Recorder
from hpcpar.run.stash import Stash
from hpcpar.schedule.action import Action, Kind


class Samples(Protocol):
    """Microbatches by number: what a forward needs."""

    def microbatch(self, k: int) -> Microbatch:
        """Where microbatch k stands."""

    def ids(self, k: int) -> Any:
        """ids (B, T)."""

    def labels(self, k: int) -> Any:
        """labels (B*T,)."""


class Work(Samples, Protocol):
    """What the executor is told about the training in hand."""

    def scale(self, k: int) -> float:
        """The gradient of the loss with respect to the sum of microbatch k's losses."""

    def gradients(self, part: Part, k: int) -> Gradients:
        """Where the weight gradients of microbatch k go; its `last` is true if they are complete after it."""

    def done(self, part: Part, k: int) -> None:
        """Microbatch k has left a part: its weight gradients are made."""

    def reduce(self, part: Part, version: int | None) -> None:
        """D."""

    def tied(self, part: Part, version: int | None) -> None:
        """T."""

    def norm(self, part: Part, version: int | None) -> None:
        """N."""

    def update(self, part: Part, version: int | None) -> None:
        """U."""


def _number(a: Action) -> int:
    assert a.microbatch is not None
    return a.microbatch


def _peer(a: Action) -> int:
    assert a.peer is not None
    return a.peer


def tag(stage: int, gradient: bool) -> int:
    """The channel of a message over the border behind `stage`."""
    return 2 * stage + gradient


class Executor:
    """Runs actions on the parts of this rank; `peers` maps a pipeline rank to an MPI rank."""

    def __init__(
        self,
        world: World,
        parts: Mapping[int, Part],
        peers: Callable[[int], int],
        recorder: Recorder,
        shape: tuple[int, int],
        empty: Callable[[tuple[int, int]], Any],
    ):
        self.world, self.parts, self.peers, self.recorder = world, parts, peers, recorder
        self.shape, self.empty = shape, empty
        self.stash = Stash()
        self.losses: dict[int, float] = {}
        self._arriving: dict[tuple[str, int, int], tuple[Pending, Any]] = {}
        self._made: dict[tuple[str, int, int], Any] = {}
        self._sends: list[Pending] = []

    def run(self, actions: Iterable[Action], work: Any) -> None:
        """Carry out the actions; returns when the last one is done and every send has left.

        `work` is a Work, or Samples where the actions are forwards alone.
        """
        self.losses.clear()
        handlers = self._handlers
        for action in actions:
            self.recorder.at(action)
            self.world.alarm.check()
            handlers[action.kind](self, action, work)
        for pending in self._sends:
            pending.wait()
        self._sends.clear()
        if self._made or self._arriving or len(self.stash):
            raise RuntimeError(f"left over at the end: {sorted(map(str, self._made))} {sorted(map(str, self._arriving))} {len(self.stash)}")

    # compute

    def _forward(self, a: Action, work: Work) -> None:
        part, k = self.parts[a.stage], _number(a)
        at = work.microbatch(k)
        x = work.ids(k) if part.stage.first else self._take("A", a.stage - 1, k)
        labels = work.labels(k) if part.stage.last else None
        start = time.perf_counter_ns()
        y, saved = part.stage.forward(x, labels, part.weights(a.version), at, self.world.progress)
        if at.training:
            self.recorder.compute("f", start, a.stage, k, self._version(a, part))
            self.stash.put("saved", (a.stage, k), saved)
            self.recorder.memory("stash", self.stash.bytes)
        if part.stage.last:
            self.losses[k] = y
        else:
            self._made["A", a.stage, k] = y

    def _backward(self, a: Action, work: Work) -> None:
        """B: I and W op by op, so that each gradient is complete as early as it can be."""
        part, k = self.parts[a.stage], _number(a)
        gradients = work.gradients(part, k)

        def weight(layer: int, name: str, backward_weight: Callable[..., None], held: Any) -> None:
            gradients.add(layer, name, backward_weight, held)
            self.world.progress()

        self._input(a, work, "b", weight)
        work.done(part, k)

    def _input_half(self, a: Action, work: Work) -> None:
        """I: input gradients; what W needs is held."""
        held: list = []
        self._input(a, work, "i", lambda *item: held.append(item))
        self.stash.put("held", (a.stage, _number(a)), held)
        self.recorder.memory("stash", self.stash.bytes)

    def _input(self, a: Action, work: Work, kind: str, sink: Callable[..., None]) -> None:
        part, k = self.parts[a.stage], _number(a)
        dy = work.scale(k) if part.stage.last else self._take("G", a.stage, k)
        saved = self.stash.take("saved", (a.stage, k))
        start = time.perf_counter_ns()
        at = replace(work.microbatch(k), split=kind == "i")
        dx = part.stage.backward(dy, saved, part.weights(a.version), sink, at, self._again(a))
        self.recorder.compute(kind, start, a.stage, k, self._version(a, part))
        del saved, dy
        self.recorder.memory("stash", self.stash.bytes)
        if not part.stage.first:
            self._made["G", a.stage - 1, k] = dx

    def _weights(self, a: Action, work: Work) -> None:
        part, k = self.parts[a.stage], _number(a)
        held = self.stash.take("held", (a.stage, k))
        gradients = work.gradients(part, k)
        start = time.perf_counter_ns()
        for item in held:
            gradients.add(*item)
            self.world.progress()
        self.recorder.compute("w", start, a.stage, k, self._version(a, part))
        self.recorder.memory("stash", self.stash.bytes)
        work.done(part, k)

    def _again(self, a: Action) -> Callable[[Callable[[], Any]], Any]:
        def again(forward: Callable[[], Any]) -> Any:
            start = time.perf_counter_ns()
            out = forward()
            self.recorder.compute("recompute", start, a.stage, _number(a))
            return out

        return again

    @staticmethod
    def _version(a: Action, part: Part) -> int:
        return part.newest if a.version is None else a.version

    # messages

    def _receive(self, a: Action, work: Work) -> None:
        gradient, k, peer = a.kind is Kind.RG, _number(a), _peer(a)
        border = a.stage if gradient else a.stage - 1
        buffer = self.empty(self.shape)
        what = "gradient" if gradient else "activation"
        pending = self.world.receive_start(buffer, self.peers(peer), tag(border, gradient), what, stage=a.stage, microbatch=k)
        self._arriving["G" if gradient else "A", border, k] = (pending, buffer)

    def _send(self, a: Action, work: Work) -> None:
        gradient, k, peer = a.kind is Kind.SG, _number(a), _peer(a)
        border = a.stage - 1 if gradient else a.stage
        made = self._made.pop(("G" if gradient else "A", border, k))
        what = "gradient" if gradient else "activation"
        self._sends = [p for p in self._sends if not p.test()]
        self._sends.append(self.world.send_start(made, self.peers(peer), tag(border, gradient), what, stage=a.stage, microbatch=k))

    def _take(self, channel: str, border: int, k: int) -> Any:
        """What came over a border: from another rank, or from another stage of this one."""
        key = (channel, border, k)
        if key not in self._arriving:
            return self._made.pop(key)
        pending, buffer = self._arriving.pop(key)
        pending.wait()
        return buffer

    # the end of a step

    def _reduce(self, a: Action, work: Work) -> None:
        work.reduce(self.parts[a.stage], a.version)

    def _tied(self, a: Action, work: Work) -> None:
        work.tied(self.parts[a.stage], a.version)

    def _norm(self, a: Action, work: Work) -> None:
        work.norm(self.parts[a.stage], a.version)

    def _update(self, a: Action, work: Work) -> None:
        work.update(self.parts[a.stage], a.version)

    _handlers = {  # noqa: RUF012
        Kind.F: _forward,
        Kind.B: _backward,
        Kind.I: _input_half,
        Kind.W: _weights,
        Kind.RA: _receive,
        Kind.RG: _receive,
        Kind.SA: _send,
        Kind.SG: _send,
        Kind.D: _reduce,
        Kind.T: _tied,
        Kind.N: _norm,
        Kind.U: _update,
    }
