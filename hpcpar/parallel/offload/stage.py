"""A stage whose weights come to the device as its layers need them, and whose saved activations may leave it in between.

    forward    weights[i] -> begin access, wait    block.forward    keep.append(saved) -> end access
    backward   weights[i] -> begin access, wait    keep.pop() -> saved    block.backward    next layer or return -> end access

It stands where an nn.Stage stands; the layers' code does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hpcpar.forms.accesses import Buffer, Pass, units
from hpcpar.nn.context import Microbatch
from hpcpar.nn.parameters import FlatMap, Span
from hpcpar.nn.stage import Stage, WeightSink
from hpcpar.parallel.offload.traffic import Traffic


class Paged:
    """Stage `index` of a rank with `traffic`; `microbatch` tells which one is in hand."""

    def __init__(self, stage: Stage, index: int, traffic: Traffic, microbatch: Callable[[], int]):
        self.layers, self.frame, self.map, self.first, self.last = stage.layers, stage.frame, stage.map, stage.first, stage.last
        self.spans = [_within_units(stage.map, i) for i in range(len(stage.layers))]
        self._stage, self._index, self._traffic, self._microbatch = stage, index, traffic, microbatch

    def forward(self, x: Any, labels: Any, weights: Any, at: Microbatch, between: Callable[[], None]) -> tuple[Any, Any]:
        """nn.Stage.forward; `weights`, which are the host's, are not read."""
        k = self._microbatch() if at.training else -1

        def moving() -> None:
            self._traffic.pump()
            between()

        keep: Any = Kept(self._traffic, self._index, k, self._saved_bytes(k)) if at.training else _Dropped(self._traffic)
        return self._stage.forward(x, labels, _Fetched(self, self._traffic, "F", k), at, moving, keep)

    def backward(
        self, dy: Any, saved: Any, weights: Any, sink: WeightSink, at: Microbatch, again: Callable[[Callable[[], Any]], Any]
    ) -> Any:
        """nn.Stage.backward."""

        def moving(*item: Any) -> None:
            sink(*item)
            self._traffic.pump()

        dx = self._stage.backward(dy, saved, _Fetched(self, self._traffic, "B", self._microbatch()), moving, at, again)
        self._traffic.end()
        return dx

    def views(self, layer: int) -> dict[str, Any]:
        """The weights of a layer by short name, as views of its units on the device."""
        out = {}
        for key, (unit, span) in self.spans[layer].items():
            (flat,) = self._traffic.arrays(Buffer("weights", self._index, unit))
            out[key] = flat[span.start : span.stop].reshape(span.shape)
        return out

    def begin(self, kind: Pass, layer: int, k: int) -> None:
        """The access of a layer begins."""
        self._traffic.begin(kind, self._index, layer, k)

    def _saved_bytes(self, k: int) -> int:
        sizes = self._traffic.step.sizes
        return sum(sizes.get(Buffer("saved", self._index, i, k), 0) for i in range(len(self.layers)))


class _Fetched:
    """The weights of the layers, each there once it is asked for."""

    def __init__(self, stage: Paged, traffic: Traffic, kind: Pass, microbatch: int):
        self._stage, self._traffic, self._kind, self._microbatch = stage, traffic, kind, microbatch
        self._open = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[layer] for layer in range(len(self._stage.layers)))

    def __getitem__(self, layer: int) -> dict[str, Any]:
        if self._open and self._kind == "B":  # a forward ends its access where it saves
            self._traffic.end()
        self._open = True
        self._stage.begin(self._kind, layer, self._microbatch)
        return self._stage.views(layer)


class Kept:
    """What the layers of a stage saved of a microbatch, wherever it lies; `nbytes` is how much that is.

    It stands where a list of what was saved stands.
    """

    def __init__(self, traffic: Traffic, stage: int, microbatch: int, nbytes: int):
        self._traffic, self._stage, self._microbatch = traffic, stage, microbatch
        self._layers = 0
        self.nbytes = nbytes

    def append(self, saved: Any) -> None:
        """The next layer's forward is over."""
        self._traffic.keep(self._buffer(self._layers), saved)
        self._layers += 1
        self._traffic.end()

    def pop(self) -> Any:
        """What the last layer saved that was not popped yet."""
        self._layers -= 1
        return self._traffic.saved(self._buffer(self._layers))

    def _buffer(self, layer: int) -> Buffer:
        return Buffer("saved", self._stage, layer, self._microbatch)


class _Dropped:
    """Where no backward follows."""

    def __init__(self, traffic: Traffic):
        self._traffic = traffic

    def append(self, saved: Any) -> None:
        self._traffic.end()


def _within_units(at: FlatMap, layer: int) -> dict[str, tuple[int, Span]]:
    """Where the arrays of a layer lie: {short name: (unit, span within it)}."""
    out = {}
    edges = unit_spans(at)
    for key, span in at.weight_spans[layer].items():
        unit = next(u for u, (start, stop) in enumerate(edges) if start <= span.start and span.stop <= stop)
        out[key] = (unit, Span(span.start - edges[unit][0], span.stop - edges[unit][0], span.shape))
    return out


def unit_spans(at: FlatMap) -> list[tuple[int, int]]:
    """(start, stop) of each unit of a stage in its flat arrays."""
    return [(at.names[u.names[0]].start, at.names[u.names[-1]].stop) for u in units(at.layers)]
