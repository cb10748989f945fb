"""Ring attention: keys and values travel from rank to rank while attention to those in hand is computed.

    step      0        1        2                    rank 1 of 3, zig-zag
    block    kv1 .    kv0 .    kv2                   arrives from rank 0 while the one before is computed
    rank 2      `->      `->                         leaves for rank 2 when it has arrived

    backward: kv as before;     dkv1 .    dkv0 .    dkv2 -> home, to rank 2     a hop behind: own part added to what arrived
              dkv1 comes home from rank 0                 `->       `->

Partial results are merged by their log-sum-exp (Liu et al., arXiv:2310.01889, section 3); the backward of a block takes that of the
whole row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.forms.context import Block, blocks, length, reach, runs
from hpcpar.ops import attention
from hpcpar.ops.array import array_module

KEYS_VALUES, GRADIENT = 26000, 26001  # the channels of keys and values, and of their gradients


class Ring:
    """Attention over the ranks of `group`; a contiguous cut or, as form "zig-zag", two chunks a rank."""

    def __init__(self, group: Group, form: str, positions: int):
        self.group, self.world = group, group.world
        n, r = group.size, group.index
        self.steps = blocks(form, positions, n, r)
        self.lengths = [length(runs(form, positions, n, i)) for i in range(n)]
        self._reach = [reach(form, n, i) for i in range(n)]
        self._after, self._before = group.ranks[(r + 1) % n], group.ranks[(r - 1) % n]

    def forward(self, q: Any, k: Any, v: Any, out: Any) -> attention.Saved:
        """q (B, T, H, K), k and v (B, T, G, K) of this rank's T positions -> out (B, T, H, K), written; saved as by ops.attention."""
        xp, lse = array_module(q), None
        for block, kv in self.travel(stacked(k, v)):
            if lse is None:
                lse = attention.forward(q, k, v, out, 0, self.world.progress)[4]
            elif block.scores:
                rows, columns = block.rows, block.columns
                part = xp.empty((len(q), rows.stop - rows.start, *q.shape[2:]), q.dtype)
                keys, values = kv[0][:, columns], kv[1][:, columns]
                other = attention.forward(q[:, rows], keys, values, part, columns.stop, self.world.progress)[4]
                attention.merge(out[:, rows], lse[:, :, rows], part, other)
        return q, k, v, out, lse

    def backward_input(self, dout: Any, saved: attention.Saved, dq: Any, dk: Any, dv: Any) -> None:
        """dout (B, T, H, K) -> dq, dk and dv, written."""
        q, k, v, out, lse = saved
        xp = array_module(q)
        home = Home(self, (2, *k.shape), k.dtype, xp)
        for block, kv in self.travel(stacked(k, v)):
            dkv = xp.zeros(kv.shape, kv.dtype)
            if block.causal:
                attention.backward_input(dout, saved, dq, dkv[0], dkv[1], 0, self.world.progress)
            elif block.scores:
                rows, columns = block.rows, block.columns
                mine = q[:, rows], kv[0][:, columns], kv[1][:, columns], out[:, rows], xp.ascontiguousarray(lse[:, :, rows])
                part = xp.empty(mine[0].shape, q.dtype)
                d = dkv[0][:, columns], dkv[1][:, columns]
                attention.backward_input(dout[:, rows], mine, part, *d, columns.stop, self.world.progress)
                dq[:, rows] += part
            home.add(block, dkv)
        total = home.finish()
        dk[...], dv[...] = total[0], total[1]

    def travel(self, own: Any) -> Iterator[tuple[Block, Any]]:
        """The steps' blocks with the keys and values (2, B, T', G, K) of their sources: the next ones arrive while one is in hand."""
        xp, kv = array_module(own), own
        sends: list[Pending] = []
        for step, block in enumerate(self.steps):
            following = None
            if step + 1 < len(self.steps):
                into = xp.empty(self._shape(own, step + 1), own.dtype)
                following = self.world.receive_start(into, self._before, KEYS_VALUES, "keys_values", "cp")
            if step + 1 < self._reach[block.source]:
                sends.append(self.world.send_start(kv, self._after, KEYS_VALUES, "keys_values", "cp"))
            yield block, kv
            if following:
                following.wait()
                kv = into
        for pending in sends:
            pending.wait()

    def _shape(self, own: Any, step: int) -> tuple[int, ...]:
        return (*own.shape[:2], self.lengths[self.steps[step].source], *own.shape[3:])


class Home:
    """Gradients of keys and values on their way: a rank adds its part to what came so far and passes it on, the last one home.

    The adjoint of `Ring.travel`.
    """

    def __init__(self, ring: Ring, shape: tuple[int, ...], dtype: Any, xp: Any):
        self._ring, self._world, self._xp = ring, ring.world, xp
        self._shape, self._dtype = shape, dtype
        self._step = 0
        self._own: Any = None
        self._arriving: tuple[Pending, Any] | None = None
        self._sends: list[Pending] = []

    def add(self, block: Block, dkv: Any) -> None:
        """Add dkv (2, B, T', G, K), this rank's part of the gradient of the block's source, to what came from the rank before."""
        ring, r = self._ring, self._ring.group.index
        if self._arriving:
            pending, so_far = self._arriving
            pending.wait()
            dkv += so_far
        self._step += 1
        if self._step < len(ring.steps):
            self._receive(ring._before, ring.lengths[ring.steps[self._step].source])
        if self._step < ring._reach[block.source]:
            self._send(dkv, ring._after)
        elif block.source != r:
            self._send(dkv, ring.group.ranks[block.source])
        else:
            self._own = dkv  # no other rank has seen these keys

    def finish(self) -> Any:
        """The whole gradient (2, B, T, G, K) of this rank's keys and values."""
        ring, r = self._ring, self._ring.group.index
        if self._own is None:
            self._receive(ring.group.ranks[(r + ring._reach[r] - 1) % ring.group.size], ring.lengths[r])
            pending, self._own = self._arriving  # type: ignore[misc]
            pending.wait()
        for pending in self._sends:
            pending.wait()
        return self._own

    def _send(self, dkv: Any, to: int) -> None:
        self._sends.append(self._world.send_start(dkv, to, GRADIENT, "keys_values_gradient", "cp"))

    def _receive(self, source: int, positions: int) -> None:
        into = self._xp.empty((*self._shape[:2], positions, *self._shape[3:]), self._dtype)
        self._arriving = self._world.receive_start(into, source, GRADIENT, "keys_values_gradient", "cp"), into


def stacked(k: Any, v: Any) -> Any:
    """k and v (B, T, G, K) as one array (2, B, T, G, K), so that both are one message."""
    xp = array_module(k)
    kv = xp.empty((2, *k.shape), k.dtype)
    kv[0], kv[1] = k, v
    return kv
