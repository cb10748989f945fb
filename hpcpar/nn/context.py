"""What a layer's code is told besides arrays: the shape of the microbatch, where its samples stand, and where a parallel form enters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from hpcpar.config import Model
from hpcpar.nn.tally import Tally
from hpcpar.ops import attention, cross_entropy, dropout, embedding, rotary
from hpcpar.ops.array import array_module


class Sink(Protocol):
    """Takes what a layer's backward leaves for W: `sink(part, backward_weight, held)` with the layer's own short part name."""

    def __call__(self, part: str, backward_weight: Callable[..., None], held: Any) -> None: ...


class Boundary:
    """Where a parallel form enters a block: before the first matrix product of attention and MLP, and after the last.

    The identity here; tensor and sequence parallelism supply their own. Each is an adjoint pair:

        enter: forward(x) -> h, backward(dh) -> dx          leave: forward(partial sums) -> y, backward(dy) -> d(partial sums)

    The backward has a start and a finish, so that the weight gradient of the same linear is made while it is on its way. The linear
    behind `enter` keeps x, not h: `again` begins to make h once more for W, `input` gives it.
    """

    def forward(self, x: Any, at: Microbatch) -> Any:
        """What the ranks of the form make of x."""
        return x

    def start(self, dy: Any, at: Microbatch) -> Any:
        """Begin the adjoint of forward; dy is used up."""
        return dy

    def finish(self, begun: Any) -> Any:
        """The result of what `start` began."""
        return begun

    def backward(self, dy: Any, at: Microbatch) -> Any:
        """The adjoint of forward; dy is used up."""
        return self.finish(self.start(dy, at))

    def again(self, x: Any, at: Microbatch) -> Any:
        """What W keeps of the input x of forward."""
        return x

    def input(self, kept: Any, at: Microbatch) -> Any:
        """forward(x) from what `again` kept."""
        return kept


class Vocabulary:
    """How the embedding looks its rows up and the head takes its loss: all of the vocabulary here, a slice under tensor parallelism."""

    def embed(self, ids: Any, w: dict[str, Any], at: Microbatch) -> tuple[Any, Any]:
        """ids (B, T) -> the rows that this rank sees of tokens[ids] + positions (B*T, D), saved."""
        return embedding.forward(ids, w["tokens.weight"], w.get("positions.weight"))

    def embed_backward(self, dx: Any, saved: Any, at: Microbatch) -> tuple[Callable[..., None], Any]:
        """dx, the gradient of what `embed` gave -> the backward_weight of both tables and what it holds."""
        return embedding.backward_weight, (saved, dx)

    def loss(self, logits: Any, labels: Any) -> tuple[float, Any]:
        """logits (B*T, this rank's part of V), labels (B*T,) -> the sum of the losses, saved."""
        return cross_entropy.forward(logits, labels)

    def loss_backward(self, scale: float, saved: Any) -> Any:
        """The gradient of scale x loss by this rank's logits, in their memory."""
        return cross_entropy.backward_input(scale, saved)


def every_row(n: int) -> slice:
    """All of n rows."""
    return slice(0, n)


class Attention(Protocol):
    """Causal attention of whole samples, of which this rank holds the rows of its own positions: `ops.attention` where it holds all."""

    def forward(self, q: Any, k: Any, v: Any, out: Any) -> Any:
        """q (B, T, H, K), k and v (B, T, G, K) of this rank's T positions -> out (B, T, H, K), written; saved."""

    def backward_input(self, dout: Any, saved: Any, dq: Any, dk: Any, dv: Any) -> None:
        """dout (B, T, H, K) -> dq, dk and dv, written."""


class Dispatch:
    """Where expert parallelism enters: rows sorted by expert go to the ranks that hold the experts, and their results come back.

    The identity here: all experts are here. Dispatch and combine are permutations, so that the gradient of the results takes the way of
    the rows, and the gradient of the rows that of the results; each way has a start and a finish, with work of others between. The experts
    here are computed in parts, one after another: while one is in hand, the rows of the next one arrive.
    """

    def plan(self, counts: tuple[int, ...], most: int | None, at: Microbatch, name: str) -> Any:
        """counts (E,) of rows an expert -> the way that rows of this routing take, for both passes and for recompute.

        `most` is the number of rows of this microbatch that an expert takes at most, None where nothing is dropped; `name` is the layer's.
        """
        return counts

    def parts(self, way: Any) -> tuple[slice, ...]:
        """The parts in which the experts here are computed."""
        return (slice(None),)

    def counts(self, way: Any, part: int) -> tuple[int, ...]:
        """How many rows each of the part's experts gets; known once `finish` has given them."""
        return way

    def start(self, rows: Any, way: Any) -> Any:
        """rows (A, ...) sorted by expert are sent -> what `finish` needs; they must not change until `finish` has given the last part."""
        return rows

    def finish(self, moving: Any, way: Any, part: int) -> Any:
        """The rows of the part's experts, sorted by expert; those of the next part are then sent."""
        return moving

    def start_back(self, rows: Any, way: Any, part: int) -> Any:
        """rows as `finish` gave them go back -> what `finish_back` needs."""
        return rows

    def finish_back(self, moving: list[Any], way: Any) -> Any:
        """What `start_back` gave of every part -> the rows (A, ...) in the order in which `start` got them."""
        return moving[0]


class Scores:
    """Where the scores of a group of tokens come together: here, or where ranks hold positions of the same samples, from all of them.

    `counts`: this rank counts the auxiliary losses of a group, which all ranks that share it know.
    """

    counts = True

    def whole(self, z: Any, at: Microbatch) -> Any:
        """z (B*T, R) of the positions here -> of all positions of these samples, in order."""
        return z


class Inner:
    """What this rank has of the inner width of every expert: all of it, or a slice, so that its results are partial sums.

    The weights with which results are combined then have partial gradients too; `biased`: this rank adds the bias behind the sum.
    """

    biased = True

    def first(self, width: int) -> int:
        """The first of the columns here, of an inner width."""
        return 0

    def start(self, dweights: Any) -> Any:
        """Begin to sum dweights (A,) over the ranks, in place -> what `finish` needs."""
        return dweights

    def finish(self, begun: Any) -> Any:
        """The sum (A,)."""
        return begun


@dataclass(frozen=True)
class Frame:
    """What is the same for every microbatch of a run: the model, rotary tables, what a parallel form puts in the place of a step, routing.

    `runs` are the positions of a sample that this rank holds, ascending; none stands for all of them. `shard` says which of the B*T rows of
    a microbatch the norms, dropouts and residuals of this rank see.
    """

    model: Model
    seed: int
    tables: tuple[Any, Any] | None
    enter: Boundary = field(default_factory=Boundary)
    leave: Boundary = field(default_factory=Boundary)
    attention: Attention = attention
    runs: tuple[slice, ...] = ()
    dispatch: Dispatch = field(default_factory=Dispatch)
    scores: Scores = field(default_factory=Scores)
    inner: Inner = field(default_factory=Inner)
    tally: Tally = field(default_factory=Tally)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    shard: Callable[[int], slice] = every_row

    @classmethod
    def of(cls, model: Model, seed: int, xp: Any, dtype: str, runs: tuple[slice, ...] = ()) -> Frame:
        """The frame of a model on one array module; the rotary tables are for the positions of `runs`."""
        tables = None
        if model.position == "rotary":
            held = xp.concatenate([xp.arange(r.start, r.stop) for r in runs or (slice(0, model.context),)])
            tables = rotary.tables(held, model.head_width, model.rotary_base, dtype)
        return cls(model, seed, tables, runs=runs)


@dataclass(frozen=True)
class Microbatch:
    """B samples, of each T positions here; `first` is the place of the first one in the batch of `step`, which has `batch` samples.

    `training` turns dropout, noise and auxiliary losses on; `batch` 0 says that these samples are the whole batch; `split` says that the
    weights' half of the backward is an action of its own, later.
    """

    frame: Frame
    samples: int
    positions: int
    step: int = 0
    first: int = 0
    training: bool = True
    batch: int = 0
    split: bool = False

    @property
    def rows(self) -> slice:
        """The rows of the B*T that this rank's norms, dropouts and residuals see."""
        return self.frame.shard(self.samples * self.positions)

    @property
    def length(self) -> int:
        """The positions of a whole sample."""
        return self.frame.model.context if self.frame.runs else self.positions

    def places(self, xp: Any) -> Any:
        """(B*T,): the places of the rows here among those of whole samples (B*length); None where samples are whole."""
        if not self.frame.runs:
            return None
        held = xp.concatenate([xp.arange(run.start, run.stop) for run in self.frame.runs])
        return (xp.arange(self.samples)[:, None] * self.length + held).reshape(-1)

    def dropout(self, x: Any, name: str, backward: bool = False) -> Any:
        """Dropout of x (this rank's rows of B*T, D) or its adjoint: the mask comes from (seed, name, step, global element index)."""
        rate = self.frame.model.dropout if self.training else 0.0
        if not rate:
            return x
        key, width = dropout.key(self.frame.seed, name, self.step), x.shape[-1]
        drop = dropout.backward_input if backward else dropout.forward
        pieces = list(self.pieces())
        if len(pieces) == 1:
            return drop(x, key, pieces[0][1] * width, rate)
        out = array_module(x).empty_like(x)
        for rows, first in pieces:
            out[rows] = drop(x[rows], key, first * width, rate)
        return out

    def pieces(self) -> Iterator[tuple[slice, int]]:
        """This rank's rows that lie side by side in the whole batch (samples x context, D), with the row there of their first one."""
        mine = self.rows
        for start, stop, first in self._runs():
            low, high = max(start, mine.start), min(stop, mine.stop)
            if low < high:
                yield slice(low - mine.start, high - mine.start), first + low - start

    def _runs(self) -> Iterator[tuple[int, int, int]]:
        """(start, stop) of runs of the B*T rows, and the row of the whole batch that each begins at."""
        if not self.frame.runs:
            yield 0, self.samples * self.positions, self.first * self.positions
            return
        at = 0
        for sample in range(self.first, self.first + self.samples):
            for run in self.frame.runs:
                stop = at + run.stop - run.start
                yield at, stop, sample * self.frame.model.context + run.start
                at = stop
