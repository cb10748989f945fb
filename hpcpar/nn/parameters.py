"""The parameters of one stage in one flat array, and their first values.

    flat weights    | tokens | positions | blocks.0.norm1.gain | query key value | ... |
    flat gradients  | the same places                                                  | second use of a tied weight |

Layers see views. Matrices that multiply the same input lie side by side, so query, key and value (gate and up) are also one matrix
without a copy. Updates, buckets and shards are slices of the flat arrays.
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
    number of gradients: a tied weight that the embedding and the head of one stage both use has a gradient for each use.
    """

    def __init__(self, layers: Sequence[Layer]):
        self.layers = tuple(layers)
        self.names: dict[str, Span] = {}
        self.parameters: dict[str, Parameter] = {}
        for p in (p for layer in layers for p in layer.parameters if p.name not in self.names):
            start = self.size
            self.parameters[p.name] = p
            self.names[p.name] = Span(start, start + p.size, p.shape)
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
        """(start, stop, decay) of every parameter, in the order in which they lie."""
        return [(s.start, s.stop, self.parameters[n].decay) for n, s in self.names.items()]

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
    """The first values of a parameter, or of a slice of it: from (seed, name) alone, so that every plan starts with the same model."""
    if isinstance(parameter.start, str):
        full = np.full(parameter.shape, float(parameter.start == "ones"))
    else:
        digest = hashlib.sha256(f"{seed}/{parameter.name}".encode()).digest()
        bits = np.random.Philox(key=np.frombuffer(digest[:16], np.uint64))
        full = np.random.Generator(bits).standard_normal(parameter.shape) * parameter.start
    return np.ascontiguousarray(full[slices], dtype=dtype) if slices else full.astype(dtype)
