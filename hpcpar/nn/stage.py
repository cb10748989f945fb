"""A stage: consecutive layers, forward, backward and weight gradients. One stage that holds every layer is the serial model.

    forward(x) -> y, saved        backward(dy, saved) -> dx, and (layer, part, backward_weight, held) to the sink, op by op

The stage holds no arrays: weights come in (the version that the schedule names), what the backward needs goes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from hpcpar.nn import block, embedding, head
from hpcpar.nn.context import Frame, Microbatch
from hpcpar.nn.describe import Layer
from hpcpar.nn.parameters import FlatMap

WeightSink = Callable[[int, str, Callable[..., None], Any], None]  # (layer, part, backward_weight, held)


class Weights(Protocol):
    """The weights of a stage, a dict a layer: a list, or whoever fetches them as they are asked for.

    The forward iterates over them, the backward takes them by index, descending.
    """

    def __iter__(self) -> Iterator[dict[str, Any]]: ...
    def __getitem__(self, layer: int, /) -> dict[str, Any]: ...


def _nothing() -> None:
    pass


def _plainly(work: Callable[[], Any]) -> Any:
    return work()


class Stage:
    """The layers of one stage; `recompute` = "full" keeps only a block's input (and routing) and runs its forward again in the backward.

    `uncut_first` says how the flat map lies (parameters.FlatMap).
    """

    def __init__(self, layers: Sequence[Layer], frame: Frame, recompute: str = "none", uncut_first: bool = True):
        self.layers = tuple(layers)
        self.frame = frame
        self.recompute = recompute == "full"
        self.map = FlatMap(layers, uncut_first)
        self.first = self.layers[0].kind == "embedding"
        self.last = self.layers[-1].kind == "head"

    def forward(
        self,
        x: Any,
        labels: Any,
        weights: Weights,
        at: Microbatch,
        between: Callable[[], None] = _nothing,
        keep: Any = None,
    ) -> tuple[Any, Any]:
        """x: ids (B, T) on the first stage, else (B*T, D) -> y (B*T, D), on the last stage the sum of the losses; and what is saved.

        `between` is called after every layer, so that messages on their way can move. What a layer saves is appended to `keep`, a list of
        the caller's that the backward pops from, or a new one. A layer's weights are asked for just before it, and nothing of a layer is
        held when the next one begins: both may have left the device by then.
        """
        saved = [] if keep is None else keep
        ascending = iter(weights)
        for layer in self.layers:
            w = next(ascending)
            if layer.kind == "embedding":
                x, s = embedding.forward(x, w, at, layer.name)
            elif layer.kind == "head":
                x, s = head.forward(x, labels, w, at)
            elif self.recompute and at.training:
                y, s = block.forward(x, w, at, layer.name)
                x, s = y, (x, *block.routing_of(s))  # no name for what else it saves: it is gone at once
                del y
            else:
                x, s = block.forward(x, w, at, layer.name)
            saved.append(s)
            del w, s
            between()
        return x, saved

    def logits(self, x: Any, weights: Sequence[dict[str, Any]], at: Microbatch) -> Any:
        """ids (B, T) -> (B*T, V), of a stage that holds the whole model."""
        for layer, w in zip(self.layers[:-1], weights, strict=False):
            x, _ = embedding.forward(x, w, at, layer.name) if layer.kind == "embedding" else block.forward(x, w, at, layer.name)
        return head.logits(x, weights[-1], at)

    def backward(
        self,
        dy: Any,
        saved: Any,
        weights: Weights,
        sink: WeightSink,
        at: Microbatch,
        again: Callable[[Callable[[], Any]], Any] = _plainly,
    ) -> Any:
        """dy (B*T, D), on the last stage the scale of the loss -> dx (B*T, D), None on the first; consumes `saved`.

        `again` runs a block's second forward under recompute, so that whoever measures can tell it from the backward.
        """
        dx = dy
        for i in reversed(range(len(self.layers))):
            layer, w, s = self.layers[i], weights[i], saved.pop()

            def here(part: str, backward_weight: Callable[..., None], held: Any, i: int = i) -> None:
                sink(i, part, backward_weight, held)

            if layer.kind == "head":
                dx = head.backward(dx, s, w, here, at)
            elif layer.kind == "embedding":
                embedding.backward(dx, s, w, here, at, layer.name)
                dx = None
            else:
                if self.recompute:
                    s = again(lambda s=s, w=w, n=layer.name: block.forward(s[0], w, at, n, *s[1:]))[1]  # type: ignore[misc]
                dx = block.backward(dx, s, w, here, at, layer.name)
            del w, s
        return dx
