"""Carries out the moves of a placement while a rank trains: the accesses come as they were foreseen, and each finds its buffers.

    begin(access)   moves of its slot are issued; wait for what it uses and for room for what it makes
    end()           what it freed is gone; behind the last access of a round: the last slot, and wait until nothing moves

A move out starts when it is issued. A move in starts, in order, when there is room: at the latest when those out have ended, which the
plan has seen to. Only this object takes from and gives to the pool.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcpar.comm.pending import Record, Waiter
from hpcpar.forms.accesses import Access, Buffer, Pass
from hpcpar.forms.offload import Move, Placement
from hpcpar.parallel.offload.copies import Copies, Copy
from hpcpar.parallel.offload.pool import Pool


@dataclass
class Block:
    """The arrays of a buffer: on the device, on the host, or on both; `dirty`: the host's are out of date."""

    host: list[Any] = field(default_factory=list)
    device: list[Any] | None = None
    dirty: bool = False
    coming: Copy | None = None
    tree: Any = None  # of saved activations: nested tuples in which Place stands for an array


@dataclass(frozen=True)
class Place:
    """Where an array of a tree is: its index among the arrays of the block."""

    index: int


class Traffic:
    """The moves of one rank.

    `step` is the placement of a training step, `passes` that of one forward for evaluation, by stage; `blocks` hold weights and optimizer
    state on the host. `device_empty` and `host_empty` make arrays of a shape and type. `sample` is told of the most that the device held.
    """

    def __init__(
        self,
        step: Placement,
        passes: Mapping[int, Placement],
        blocks: dict[Buffer, Block],
        copies: Copies,
        device_empty: Callable[..., Any],
        host_empty: Callable[..., Any],
        record: Callable[[], Record],
        waiter: Waiter,
        sample: Callable[[int], None],
    ):
        self.step, self.passes, self.blocks = step, passes, blocks
        self.pool = Pool(step.limit)
        self.pool.take(step.fixed)
        self.at_home = True  # nothing but `fixed` is on the device
        self._copies, self._device_empty, self._host_empty = copies, device_empty, host_empty
        self._record, self._waiter, self._sample = record, waiter, sample
        self._plan, self._cursor = step, 0
        self._open: Access | None = None
        self._beside = 0  # bytes taken for the access in hand, or carried to the next one
        self._waiting: deque[Buffer] = deque()  # moves in that have not started
        self._moving: deque[tuple[Move, Copy]] = deque()

    # what the layers and updates ask for

    def begin(self, kind: Pass, stage: int, index: int, microbatch: int = -1) -> None:
        """The next access begins: its buffers are on the device and there is room for what it makes. Raises if it was not foreseen."""
        if self._cursor == 0:
            self._plan = self.passes[stage] if kind == "F" and microbatch < 0 else self.step
            self._load()
        access = self._plan.accesses[self._cursor]
        if (access.kind, access.stage, access.index, access.microbatch) != (kind, stage, index, microbatch):
            raise RuntimeError(f"access {self._cursor} is {kind} of {stage}.{index}, microbatch {microbatch}; foreseen was {access}")
        self._issue(self._plan.moves[self._cursor])
        for b in access.uses:
            self._await(b)
        more = access.beside + sum(self._plan.sizes[b] for b in access.makes) - self._beside
        self._until(lambda: self.pool.fits(more), "to_host", stage, more)
        self._take(more)
        self._beside += more
        self._open = access

    def end(self) -> None:
        """The access in hand is over."""
        access, sizes = self._open, self._plan.sizes
        assert access is not None
        self._beside -= sum(sizes[b] for b in access.makes)  # they stay, for themselves
        for b in access.frees:
            del self.blocks[b]
            self.pool.give(sizes[b])
        for b in access.writes:
            self.blocks[b].dirty = True
        self.pool.give(self._beside - access.carried)
        self._beside, self._open = access.carried, None
        self._cursor += 1
        if self._cursor == len(self._plan.accesses):
            self._issue(self._plan.moves[-1])
            self._drain()
            self._cursor = 0
        self._sample(self.pool.recent())

    def arrays(self, b: Buffer) -> list[Any]:
        """The arrays of a buffer of the access in hand, on the device."""
        found = self.blocks[b].device
        assert found is not None
        return found

    def keep(self, b: Buffer, tree: Any) -> None:
        """What the layer in hand saved: nested tuples of arrays. Token ids stay. Raises if its size is not the planned.

        The caller holds no array of it when the next access begins.
        """
        arrays: list[Any] = []
        block = Block(device=arrays, dirty=True, tree=_taken(tree, arrays))
        held = sum(a.nbytes for a in arrays)
        if held != self._plan.sizes[b]:
            raise RuntimeError(f"{b} holds {held} bytes, planned were {self._plan.sizes[b]}")
        self.blocks[b] = block

    def saved(self, b: Buffer) -> Any:
        """The tree of a buffer of the access in hand."""
        return _given(self.blocks[b].tree, self.arrays(b))

    def bring_home(self) -> None:
        """Copy what is newer on the device to the host and leave the device to `fixed`; between rounds alone."""
        if self._cursor or self._open:
            raise RuntimeError("a step is under way: its weights are on the device in part")
        for b, block in self.blocks.items():
            if block.device is not None:
                self._issue((Move("out" if block.dirty else "drop", b),))
        self._drain()
        self.at_home = True

    # moves

    def _load(self) -> None:
        """What a round begins with comes to the device, unless it is there."""
        if self.at_home:
            self.at_home = False
            self._issue(tuple(Move("in", b) for b in self.step.home))
            self._drain()

    def _issue(self, moves: tuple[Move, ...]) -> None:
        for move in moves:
            block = self.blocks[move.buffer]
            if move.kind == "in":
                self._waiting.append(move.buffer)
            elif move.kind == "drop":
                block.device, block.coming = None, None
                self.pool.give(self.step.sizes[move.buffer])
            else:
                if not block.host:
                    block.host = [self._host_empty(a.shape, a.dtype) for a in block.device or ()]
                pairs = list(zip(block.device or (), block.host, strict=True))
                self._moving.append((move, self._copies.to_host(pairs)))
        self.pump()

    def pump(self) -> None:
        """Let moves go on: see which have ended, start those that there is room for. Raises what went wrong in one."""
        while self._moving and self._moving[0][1].done():
            move, copy = self._moving.popleft()
            self._ended(move, copy)
        while self._waiting and self._may_start(self._waiting[0]):
            self._start(self._waiting.popleft())

    def _may_start(self, b: Buffer) -> bool:
        """Whether there is room for a buffer, and it is not still on its way out."""
        return self.blocks[b].device is None and self.pool.fits(self.step.sizes[b])

    def _start(self, b: Buffer) -> None:
        block = self.blocks[b]
        self._take(self.step.sizes[b])
        block.device = [self._device_empty(a.shape, a.dtype) for a in block.host]
        block.dirty = False
        block.coming = self._copies.to_device(list(zip(block.host, block.device, strict=True)))
        self._moving.append((Move("in", b), block.coming))

    def _ended(self, move: Move, copy: Copy) -> None:
        b, (start, end) = move.buffer, copy.span()
        if move.kind == "out":
            block = self.blocks[b]
            block.device, block.coming, block.dirty = None, None, False
            self.pool.give(self.step.sizes[b])
        facts = {"stage": b.stage, "microbatch": b.microbatch, "bytes": self.step.sizes[b]}
        self._record()("copy", start, end, operation="to_device" if move.kind == "in" else "to_host", **facts)

    def _await(self, b: Buffer) -> None:
        """Return when a buffer can be used."""
        block = self.blocks[b]
        self._until(lambda: block.device is not None and (block.coming is None or block.coming.usable()), "to_device", b.stage, 0)
        block.coming = None

    def _drain(self) -> None:
        self._until(lambda: not self._waiting and not self._moving, "to_host", -1, 0)

    def _until(self, there: Callable[[], bool], operation: str, stage: int, size: int) -> None:
        """Wait, as for a message: with a timeout, and hearing of other ranks' failures; the time is a WAIT."""

        def reached() -> bool:
            self.pump()
            return there()

        if reached():
            return
        start = time.perf_counter_ns()
        self._waiter.until(reached, lambda: f"a copy ({operation}) of stage {stage}: {self.describe()}")
        self._record()("wait", start, time.perf_counter_ns(), operation=operation, stage=stage, bytes=size)

    def _take(self, size: int) -> None:
        if size < 0:
            self.pool.give(-size)
        else:
            self.pool.take(size)

    def describe(self) -> str:
        """What moves, in words."""
        moving = ", ".join(f"{m.kind} {m.buffer}" for m, _ in self._moving)
        return f"under way [{moving}], not started {list(self._waiting)}; {self.pool.used} of {self.pool.limit} bytes are held"


def _taken(tree: Any, into: list[Any]) -> Any:
    """The tree with places for its arrays of numbers with a point, which go to `into`."""
    if isinstance(tree, tuple | list):
        return tuple(_taken(t, into) for t in tree)
    if getattr(getattr(tree, "dtype", None), "kind", "") == "f":
        into.append(tree)
        return Place(len(into) - 1)
    return tree


def _given(tree: Any, arrays: list[Any]) -> Any:
    """The tree with its arrays."""
    if isinstance(tree, tuple):
        return tuple(_given(t, arrays) for t in tree)
    return arrays[tree.index] if isinstance(tree, Place) else tree
