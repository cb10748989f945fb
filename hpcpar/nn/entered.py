"""A linear behind the boundary `enter`: what is kept is what stands before the boundary, and W runs while its backward is on its way.

forward    h = enter(x) ; y = h w' + b                                 kept: x
backward   dh = dy w --- enter' starts ------------------ finishes     -> dx
                         | W: dw = dy' h, db                |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcpar.nn.context import Microbatch, Sink
from hpcpar.ops import linear


def forward(x: Any, w: Any, b: Any, at: Microbatch) -> tuple[Any, Any]:
    """x (this rank's rows of B*T, D) -> y (B*T, O), saved x; w (O, D), b (O,) or None."""
    y, _ = linear.forward(at.frame.enter.forward(x, at), w, b)
    return y, x


def backward(dy: Any, x: Any, w: Any, part: str, backward_weight: Callable[..., None], sink: Sink, at: Microbatch) -> Any:
    """dy (B*T, O), saved x -> dx (this rank's rows, D); the sink gets W under the name `part`."""
    enter = at.frame.enter
    kept = enter.again(x, at)
    dh, held = linear.backward_input(dy, kept, w)
    begun = enter.start(dh, at)

    def weight(held: Any, dw: Any, db: Any, add: bool) -> None:
        backward_weight((enter.input(held[0], at), held[1]), dw, db, add)

    sink(part, weight, held)
    return enter.finish(begun)
