"""Where weight gradients of a stage land: one flat array, written by the first microbatch of a step, added to by the others.

The flat array is never zeroed: the first write of a part overwrites. `ready(start, stop)` is called for each part of the last
microbatch as soon as its gradient is complete, in the order of the backward, so that its bucket can leave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpcpar.nn.parameters import FlatMap, Span


def keys_of(views: Mapping[str, Any], part: str) -> tuple[str, str]:
    """The short names of a part's weight and bias (or second table), whether the layer has them or not."""
    if " " in part:  # the embedding's two tables
        tokens, positions = part.split()
        return f"{tokens}.weight", f"{positions}.weight"
    gain = f"{part}.gain"
    return (gain if gain in views else f"{part}.weight"), f"{part}.bias"


class Gradients:
    """The gradients of one stage (elements: map.total)."""

    def __init__(self, at: FlatMap, xp: Any, dtype: str):
        self.map = at
        self.flat = xp.zeros(at.total, dtype)
        self.views = at.gradients(self.flat)
        self.written: set[tuple[int, str]] = set()
        self.last = False  # the microbatch in hand is the last of the step
        self.ready: Callable[[int, int], None] | None = None

    def begin(self) -> None:
        """Start a step: what is there is overwritten."""
        self.written.clear()

    def add(self, layer: int, part: str, backward_weight: Callable[..., None], held: Any) -> None:
        """Run one W: the gradient of a part of a layer."""
        views = self.views[layer]
        first, second = keys_of(views, part)
        key = (layer, part)
        backward_weight(held, views[first], views.get(second), key in self.written)
        self.written.add(key)
        if self.last:
            self._done(layer, (first, second))

    def _done(self, layer: int, keys: tuple[str, str]) -> None:
        spans = [self.map.gradient_spans[layer][k] for k in keys if k in self.views[layer]]
        kind = self.map.layers[layer].kind
        if kind == "embedding":
            self.merge()
        if self.ready:
            for span in spans:
                if span is not self.map.second:
                    self.ready(span.start, span.stop)

    def merge(self) -> None:
        """Sum the two uses of a tied weight that one stage holds both of; each accumulated its own gradient."""
        second: Span | None = self.map.second
        if second and self.map.twice:
            first = self.map.names[self.map.twice]
            self.flat[first.start : first.stop] += self.flat[second.start : second.stop]

    def by_name(self) -> dict[str, Any]:
        """Views by parameter name (a tied weight's are the sum of its uses after the step's last microbatch)."""
        return self.map.by_name(self.flat)

    def held_bytes(self) -> dict[str, int]:
        """Bytes by kind; the second use of a tied weight is counted apart."""
        apart = (self.map.total - self.map.size) * self.flat.itemsize
        return {"gradients": self.flat.nbytes - apart, **({"tied gradient": apart} if apart else {})}
