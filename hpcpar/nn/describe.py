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
class Piece:
    """What one of the ranks that cut a layer holds of a parameter.

    `box` is a (start, stop) a dim; `holders` are the ranks along tp that hold this box too, ascending, and `index` is this rank's place
    along tp. `summed`: each holder sees rows or heads of its own, so that the gradient is the sum of theirs.
    """

    box: tuple[tuple[int, int], ...]
    holders: tuple[int, ...]
    index: int
    summed: bool


@dataclass(frozen=True)
class Parameter:
    """One named array of the model: weights are (out, in).

    `start` is the standard deviation of its first values, or "ones" or "zeros"; `decay` says whether weight decay applies. One that is
    not `trained` is changed by a rule of its own, not by the optimizer, and is in no gradient norm. `shape` and `size` are those of the
    whole array; `piece` is what this rank holds of it, None for all.
    """

    name: str
    shape: tuple[int, ...]
    start: float | Literal["ones", "zeros"]
    decay: bool
    trained: bool = True
    piece: Piece | None = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The slice that this rank holds, one a dim."""
        box = self.piece.box if self.piece else tuple((0, n) for n in self.shape)
        return tuple(slice(a, b) for a, b in box)

    def placed(self, local: tuple[slice, ...]) -> tuple[slice, ...]:
        """Where slices of what this rank holds lie in the whole array."""
        return tuple(slice(of.start + s.start, of.start + s.stop) for of, s in zip(self.slices, local, strict=True))

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of what this rank holds."""
        return tuple(s.stop - s.start for s in self.slices)

    @property
    def local_size(self) -> int:
        """The number of elements that this rank holds."""
        return prod(self.local_shape)

    @property
    def of_experts(self) -> bool:
        """Whether its first dim is the experts of a block."""
        return ".moe.experts." in self.name

    @property
    def dispersed(self) -> bool:
        """Whether some of the experts alone are here, and others with other replicas of the stage."""
        return self.of_experts and self.local_shape[0] < self.shape[0]

    @property
    def counts(self) -> bool:
        """Whether this rank stands for all that hold the same: in the norm and in checkpoints."""
        return self.piece is None or self.piece.holders[0] == self.piece.index

    @property
    def summed(self) -> bool:
        """Whether the gradient is the sum of those of several ranks along tp."""
        return self.piece is not None and self.piece.summed and len(self.piece.holders) > 1


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

# The matrices of a gate's router, side by side; the others have "router" alone.
ROUTERS: dict[str, tuple[str, ...]] = {"noisy-topk": ("router", "noise"), "hash": (), "balanced": ()}


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
    moe = has_experts(model, i)
    found = [
        *_norm(f"{name}.norm1", model),
        *qkv,
        *_linear(f"{a}.out", d, heads, model.bias, last),
        *_norm(f"{name}.norm2", model),
        *(_experts(f"{name}.moe", model, last) if moe else _mlp(f"{name}.mlp", f, model, last)),
    ]
    used = model.moe.k / model.moe.experts if model.moe and moe else 1.0  # of the experts' weights by a token
    matrices = 2 * t * sum(int(p.size * used) if p.of_experts else p.size for p in found if p.name.endswith(".weight"))
    scores = 2 * 2 * model.heads * model.head_width * t * (t + 1) // 2  # the causal half of Q K' and P V
    return Layer("block", name, tuple(found), matrices + scores)


def has_experts(model: Model, i: int) -> bool:
    """Whether block i is a mixture of experts: the last of every `every` blocks."""
    return model.moe is not None and i % model.moe.every == model.moe.every - 1


def _mlp(name: str, f: int, model: Model, last: float) -> list[Parameter]:
    rows = [(f"{name}.gate", f), (f"{name}.up", f)] if model.mlp == "swiglu" else [(f"{name}.up", f)]
    up = [p for kind in (0, 1) for n, out in rows for p in _linear(n, out, model.width, model.bias)[kind : kind + 1]]
    return [*up, *_linear(f"{name}.down", model.width, f, model.bias, last)]


def _experts(name: str, model: Model, last: float) -> list[Parameter]:
    """Router and experts: those of all experts are one array, (E, F, D), or (E, 2, F, D), gate then up, for SwiGLU."""
    m = model.moe
    assert m is not None
    e, d, f, s = m.experts, model.width, model.expert_width, sqrt(m.initial)
    inner = (e, 2, f) if model.mlp == "swiglu" else (e, f)
    start: float | Literal["zeros"] = "zeros" if m.gate == "noisy-topk" else STD * s
    found = [Parameter(f"{name}.{part}.weight", (e, d), start, True) for part in ROUTERS.get(m.gate, ("router",))]
    if m.gate == "sigmoid-bias":
        found.append(Parameter(f"{name}.router.bias", (e,), "zeros", False, False))
    found.append(Parameter(f"{name}.experts.up.weight", (*inner, d), STD * s, True))
    found += [Parameter(f"{name}.experts.up.bias", inner, "zeros", False)] * model.bias
    found.append(Parameter(f"{name}.experts.down.weight", (e, d, f), last * s, True))
    found += [Parameter(f"{name}.experts.down.bias", (e, d), "zeros", False)] * model.bias
    return found + (_mlp(f"{name}.shared", m.shared * f, model, last) if m.shared else [])


def _head(model: Model) -> Layer:
    name = "tokens.weight" if model.tied else "head.weight"
    found = [*_norm("norm", model), Parameter(name, (model.vocabulary, model.width), STD, True)]
    return Layer("head", "head", tuple(found), 2 * model.context * model.vocabulary * model.width)
