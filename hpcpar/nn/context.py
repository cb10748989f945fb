"""What a layer's code is told besides arrays: the shape of the microbatch and where its samples stand in the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hpcpar.config import Model
from hpcpar.ops import dropout, rotary


class Sink(Protocol):
    """Takes what a layer's backward leaves for W: `sink(part, backward_weight, held)` with the layer's own short part name."""

    def __call__(self, part: str, backward_weight: Callable[..., None], held: Any) -> None: ...


class Boundary:
    """Where a parallel form enters a block: before the first matrix product of attention and MLP, and after the last.

    The identity here; tensor and sequence parallelism supply their own. Each is an adjoint pair:

        enter: forward(x) -> h, backward(dh) -> dx          leave: forward(partial sums) -> y, backward(dy) -> d(partial sums)
    """

    def forward(self, x: Any) -> Any:
        """What the ranks of the form make of x."""
        return x

    def backward(self, dy: Any) -> Any:
        """The adjoint of forward."""
        return dy


@dataclass(frozen=True)
class Frame:
    """What is the same for every microbatch of a run: the model, T, rotary tables and the boundaries of a parallel form."""

    model: Model
    seed: int
    tables: tuple[Any, Any] | None
    enter: Boundary = field(default_factory=Boundary)
    leave: Boundary = field(default_factory=Boundary)

    @classmethod
    def of(cls, model: Model, seed: int, xp: Any, dtype: str) -> Frame:
        """The frame of a model on one array module; the rotary tables are for all T positions."""
        tables = rotary.tables(xp.arange(model.context), model.head_width, dtype=dtype) if model.position == "rotary" else None
        return cls(model, seed, tables)


@dataclass(frozen=True)
class Microbatch:
    """B samples of T positions; `first` is the place of the first one in the batch of `step`; `training` turns dropout on."""

    frame: Frame
    samples: int
    positions: int
    step: int = 0
    first: int = 0
    training: bool = True

    def dropout(self, x: Any, name: str, backward: bool = False) -> Any:
        """Dropout of x (B*T, D) (or its adjoint), the same for every plan: the mask comes from (seed, name, step, global element index)."""
        rate = self.frame.model.dropout if self.training else 0.0
        if not rate:
            return x
        key = dropout.key(self.frame.seed, name, self.step)
        start = self.first * self.positions * x.shape[-1]
        return dropout.backward_input(x, key, start, rate) if backward else dropout.forward(x, key, start, rate)
