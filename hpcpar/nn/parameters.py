"""The parameters of one stage in one flat array, and their first values.

    flat weights    | tokens | positions | blocks.0.norm1.gain | query key value | ... |
    flat gradients  | the same places                                                  | second use of a tied weight |

Layers see views. Matrices that multiply the same input lie side by side, so query, key and value (gate and up) are also one matrix
without a copy. Updates, buckets and shards are slices of the flat arrays. Where several ranks cut a layer, each has its pieces alone; the
parameters that all of them hold whole lie first, as one slice, which the backward completes last: no bucket reaches across its border, so
that they stand alike in sums over replicas, whose order may depend on the place, and come out as the same bits on all of those ranks.
Where experts are cut over the replicas of a stage, those that are here lie last: their gradients are summed over fewer ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.nn.describe import Layer, Parameter

# Parameters that one matrix product serves, in the order in which they lie.
FUSED = {
    "attention.query": "qkv",
    "attention.key": "qkv",
    "attention.value": "qkv",
    "attention.out": "out",
    "mlp.gate": "up",
    "mlp.up": "up",
    "mlp.down": "down",
    "moe.noise": "moe.router",
    "moe.shared.gate": "moe.shared.up",
}


@dataclass(frozen=True)
class Span:
    """Where a parameter, or several side by side, lie in a flat array: [start, stop), seen as `shape`."""

    start: int
    stop: int
    shape: tuple[int, ...]


class FlatMap:
    """Where each parameter of a stage lies.

    `names` maps a parameter's name to its span, `parameters` to its description; `size` is the number of weights and `total` the
    number of gradients: a tied weight that the embedding and the head of one stage both use has a gradient for each use. `border` is the
    number of elements, the first ones, that all ranks which cut the layers hold whole (`uncut_first`); `common` that of those, the first
    ones too, which every replica of the stage holds: behind them are experts that only some do.
    """

    def __init__(self, layers: Sequence[Layer], uncut_first: bool = True):
        self.layers = tuple(layers)
        self.names: dict[str, Span] = {}
        self.parameters: dict[str, Parameter] = {}
        own = {p.name: p for layer in layers for p in layer.parameters}
        where = {p: 0 if uncut_first and self._uncut(p) else 1 + p.dispersed for p in own.values()}
        self.border = sum(p.local_size for p, at in where.items() if at == 0)
        self.common = sum(p.local_size for p, at in where.items() if at < 2)
        for p in sorted(where, key=lambda p: where[p]):
            start = self.size
            self.parameters[p.name] = p
            self.names[p.name] = Span(start, start + p.local_size, p.local_shape)
        self.total = self.size
        self.second: Span | None = None  # the second use's gradient
        uses = [p.name for layer in layers for p in layer.parameters]
        twice = [n for n in self.names if uses.count(n) > 1]
        for name in twice:
            first = self.names[name]
            self.second = Span(self.total, self.total + first.stop - first.start, first.shape)
            self.total = self.second.stop
        self.twice = twice[0] if twice else None
        self.weight_spans = [self._spans(layer, False) for layer in layers]
        self.gradient_spans = [self._spans(layer, True) for layer in layers]

    @property
    def size(self) -> int:
        """The number of weights."""
        return max((s.stop for s in self.names.values()), default=0)

    @staticmethod
    def _uncut(p: Parameter) -> bool:
        """Whether all of several ranks hold the whole parameter; a key or value stays in its matrix."""
        whole = p.piece is not None and len(p.piece.holders) > 1 and p.local_size == p.size
        return whole and not p.name.endswith(("key.weight", "key.bias", "value.weight", "value.bias"))

    def _spans(self, layer: Layer, gradient: bool) -> dict[str, Span]:
        out: dict[str, Span] = {}
        for p in layer.parameters:
            span = self.names[p.name]
            if gradient and p.name == self.twice and layer.kind == "head" and self.second:
                span = self.second
            key = short(layer, p.name)
            if key in out:  # it joins the matrix before it
                before = out[key]
                if before.stop != span.start:
                    raise AssertionError(f"{p.name} does not lie beside its neighbours")
                span = Span(before.start, span.stop, (before.shape[0] + span.shape[0], *span.shape[1:]))
            out[key] = span
        return out

    def weights(self, flat: Any) -> list[dict[str, Any]]:
        """Views of flat weights by short name, a dict a layer."""
        return [{k: flat[s.start : s.stop].reshape(s.shape) for k, s in spans.items()} for spans in self.weight_spans]

    def gradients(self, flat: Any) -> list[dict[str, Any]]:
        """Views of flat gradients by short name, a dict a layer."""
        return [{k: flat[s.start : s.stop].reshape(s.shape) for k, s in spans.items()} for spans in self.gradient_spans]

    def segments(self) -> list[tuple[int, int, bool]]:
        """(start, stop, decay) of every parameter that the optimizer trains, in the order in which they lie."""
        return [(s.start, s.stop, self.parameters[n].decay) for n, s in self.names.items() if self.parameters[n].trained]

    def balanced(self) -> list[Span]:
        """Where the parameters lie that the optimizer leaves alone: selection biases of routers."""
        return [s for n, s in self.names.items() if not self.parameters[n].trained]

    def by_name(self, flat: Any) -> dict[str, Any]:
        """Views by parameter name."""
        return {n: flat[s.start : s.stop].reshape(s.shape) for n, s in self.names.items()}


def short(layer: Layer, name: str) -> str:
    """The key under which a layer's code knows a parameter: blocks.3.attention.key.weight is qkv.weight."""
    if layer.kind == "head" and name in ("tokens.weight", "head.weight"):
        return "vocabulary.weight"
    owner, _, leaf = name.removeprefix(f"{layer.name}.").rpartition(".")
    return f"{FUSED.get(owner, owner)}.{leaf}"


def initial(parameter: Parameter, seed: int, slices: tuple[slice, ...] = (), dtype: str = "float32") -> np.ndarray:
    """The first values of what this rank holds of a parameter, or of other slices: from (seed, name) alone, the same for every plan."""
    slices = slices or (parameter.slices if parameter.piece else ())
    if isinstance(parameter.start, str):
        full = np.full(parameter.shape, float(parameter.start == "ones"))
    else:
        digest = hashlib.sha256(f"{seed}/{parameter.name}".encode()).digest()
        bits = np.random.Philox(key=np.frombuffer(digest[:16], np.uint64))
        full = np.random.Generator(bits).standard_normal(parameter.shape) * parameter.start
    return np.ascontiguousarray(full[slices], dtype=dtype) if slices else full.astype(dtype)
