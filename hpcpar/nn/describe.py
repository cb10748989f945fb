"""A model as layers, parameters and arithmetic: no arrays.

    layer 0        1          ...   L          L + 1
    embedding   blocks.0           blocks.L-1   head        each with its parameters, in the order of the forward

A parameter knows its name, global shape, cut and how it starts; bytes, norms, checkpoints and shards derive from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING, Literal

from hpcpar.errors import PlanError

if TYPE_CHECKING:
    from hpcpar.config import Model


@dataclass(frozen=True)
class Parameter:
    """One named array of the model: weights are (out, in).

    `start` is the standard deviation of its first values, or "ones" or "zeros"; `decay` says whether weight decay applies.
    """

    name: str
    shape: tuple[int, ...]
    start: float | Literal["ones", "zeros"]
    decay: bool

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layer:
    """A layer of the pipeline: the embedding, a transformer block or the head."""

    kind: Literal["embedding", "block", "head"]
    name: str
    parameters: tuple[Parameter, ...]
    flops: int  # multiply-adds counted as two, of the forward of one sample; the backward is twice that

    @property
    def size(self) -> int:
        """The number of parameter elements."""
        return sum(p.size for p in self.parameters)


STD = 0.02  # of GPT-2


def layers(model: Model) -> tuple[Layer, ...]:
    """Every layer of the model in order of the forward."""
    return (_embedding(model), *(_block(model, i) for i in range(model.layers)), _head(model))


def cut_stages(model: Model, stages: Literal["even"] | Sequence[int], count: int) -> list[tuple[Layer, ...]]:
    """The layers of each of `count` stages; the embedding joins the first, the head the last.

    `stages` is "even" (the first layers % count stages hold one block more) or a list of blocks a stage, 0 allowed on the
    first and the last, where the embedding and the head stand. Raises PlanError where that cannot be.
    """
    n = model.layers
    if stages == "even":
        if n < count:
            raise PlanError(f"layers = {n} cannot be cut into {count} stages; use pp x chunks <= {n} or stages = [...]")
        small, more = divmod(n, count)
        blocks = [small + (s < more) for s in range(count)]
    else:
        blocks = [int(b) for b in stages]
        if len(blocks) != count:
            raise PlanError(f"plan.stages has {len(blocks)} entries for {count} stages; give one a stage")
        if sum(blocks) != n:
            raise PlanError(f"plan.stages = {blocks} places {sum(blocks)} of layers = {n}; the sum must be {n}")
        empty = [s for s in range(1, count - 1) if not blocks[s]]
        if empty:
            raise PlanError(f"plan.stages = {blocks} leaves stage {empty[0]} without a layer; only the first and the last may have 0")
    every = layers(model)
    out, at = [], 1
    for s, b in enumerate(blocks):
        mine = every[at : at + b]
        at += b
        out.append((*every[: s == 0], *mine, *(every[-1:] if s == count - 1 else ())))
    return out


def parameters(model: Model) -> dict[str, Parameter]:
    """Every parameter once, by name, in name order."""
    found = {p.name: p for layer in layers(model) for p in layer.parameters}
    return dict(sorted(found.items()))


def step_flops(model: Model, samples: int) -> int:
    """The arithmetic of a forward and backward of `samples` samples: matrix products and causal attention, recompute not counted."""
    return 3 * samples * sum(layer.flops for layer in layers(model))


def _linear(name: str, out: int, into: int, bias: bool, std: float = STD) -> list[Parameter]:
    w = [Parameter(f"{name}.weight", (out, into), std, True)]
    return w + [Parameter(f"{name}.bias", (out,), "zeros", False)] * bias


def _norm(name: str, model: Model) -> list[Parameter]:
    gain = [Parameter(f"{name}.gain", (model.width,), "ones", False)]
    return gain + [Parameter(f"{name}.bias", (model.width,), "zeros", False)] * (model.norm == "layer" and model.bias)


def _embedding(model: Model) -> Layer:
    found = [Parameter("tokens.weight", (model.vocabulary, model.width), STD, True)]
    if model.position == "learned":
        found.append(Parameter("positions.weight", (model.context, model.width), STD, True))
    return Layer("embedding", "embedding", tuple(found), 0)


def _block(model: Model, i: int) -> Layer:
    d, f, t, name = model.width, model.inner, model.context, f"blocks.{i}"
    heads, groups = model.heads * model.head_width, model.groups * model.head_width
    last = STD / sqrt(2 * model.layers)  # GPT-2: the two matrices that write to the residual start smaller
    a = f"{name}.attention"
    rows = [(f"{a}.query", heads), (f"{a}.key", groups), (f"{a}.value", groups)]
    # Weights side by side, then biases: the flat buffer then holds query, key and value as one matrix (3D, D), without a copy.
    qkv = [p for kind in (0, 1) for n, out in rows for p in _linear(n, out, d, model.bias)[kind : kind + 1]]
    rows = [(f"{name}.mlp.gate", f), (f"{name}.mlp.up", f)] if model.mlp == "swiglu" else [(f"{name}.mlp.up", f)]
    up = [p for kind in (0, 1) for n, out in rows for p in _linear(n, out, d, model.bias)[kind : kind + 1]]
    found = [
        *_norm(f"{name}.norm1", model),
        *qkv,
        *_linear(f"{a}.out", d, heads, model.bias, last),
        *_norm(f"{name}.norm2", model),
        *up,
        *_linear(f"{name}.mlp.down", d, f, model.bias, last),
    ]
    matrices = 2 * t * sum(p.size for p in found if len(p.shape) == 2)
    scores = 2 * 2 * model.heads * model.head_width * t * (t + 1) // 2  # the causal half of Q K' and P V
    return Layer("block", name, tuple(found), matrices + scores)


def _head(model: Model) -> Layer:
    name = "tokens.weight" if model.tied else "head.weight"
    found = [*_norm("norm", model), Parameter(name, (model.vocabulary, model.width), STD, True)]
    return Layer("head", "head", tuple(found), 2 * model.context * model.vocabulary * model.width)
