"""A weight that the embedding and the head share: where they stand on two ranks, each holds the weight and its own use's gradient.

rank of stage 0   g(embedding) --->.<--- g(head)   rank of the last stage        both then hold g(embedding) + g(head)
"""

from __future__ import annotations

from typing import Any

from hpcpar.comm.world import World
from hpcpar.ops.array import array_module
from hpcpar.ops.update import add_

TAG = 29000


class Exchange:
    """The other rank's use on its way to `gradient`, and this rank's on its way there."""

    def __init__(self, world: World, gradient: Any, peer: int, stage: int):
        self._gradient = gradient
        self._other = array_module(gradient).empty_like(gradient)
        self._receive = world.receive_start(self._other, peer, TAG, "tied", axis="tied", stage=stage)
        self._send = world.send_start(gradient.copy(), peer, TAG, "tied", axis="tied", stage=stage)
        self._added = False

    def finish(self) -> None:
        """Add the other use, in place, once: a + b is b + a, so both ranks hold the same bits."""
        if not self._added:
            self._receive.wait()
            self._send.wait()
            add_(self._gradient.reshape(-1), self._other.reshape(-1))
            self._added = True


def follow(world: World, weight: Any, peer: int, stage: int, leads: bool) -> None:
    """Give `weight` to the rank `peer` (`leads`), or take it from there, in place: the same bits on both."""
    if leads:
        world.send_start(weight, peer, TAG, "tied", axis="tied", stage=stage).wait()
    else:
        world.receive_start(weight, peer, TAG, "tied", axis="tied", stage=stage).wait()
