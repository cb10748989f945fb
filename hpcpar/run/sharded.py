"""A stage whose replicas share its memory (ZeRO): of the flat arrays this rank updates, saves and counts its own pieces.

           weights                  gradients                state        after the update
zero 1     whole                    whole                    shard        all-gather of the weights
zero 2     whole                    shard, two buckets       shard        all-gather of the weights
zero 3     shard, two layers        shard, two buckets       shard        nothing: a layer is gathered before each use

Where experts are cut over the replicas (zero 1), they are a range of their own, whose owners are those that hold the same experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpcpar.checkpoint import Checkpoint, boxes_within
from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.config import Plan, Sync
from hpcpar.forms.zero import Piece
from hpcpar.mesh import Mesh
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import initial
from hpcpar.nn.stage import Stage
from hpcpar.optim import Segment, within
from hpcpar.parallel.regions import Regions
from hpcpar.parallel.zero.cut import TIED, Cut, ranges, shards_of, tied_span
from hpcpar.parallel.zero.gradients import Scattered, Streamed, summed
from hpcpar.parallel.zero.weights import Gathered, fill, spread_start
from hpcpar.run.part import Part, Values


class Sharded(Part):
    """The arrays of stage `index` on this rank under plan.zero = 1, 2 or 3; `plan` is the plan, `tied` the model's.

    `group` are the replicas of the stage, `same` those of them that hold the same experts where ranks along dp and cp cut them.
    """

    def __init__(
        self,
        stage: Stage,
        index: int,
        holders: tuple[int, ...],
        rule: Any,
        xp: Any,
        dtype: str,
        group: Group,
        plan: Plan,
        tied: bool,
        same: Group | None = None,
    ):
        self.zero, self.tied, self.of = plan.zero, tied, group
        itemsize, groups = xp.dtype(dtype).itemsize, (group, same or group)
        every = ranges(stage.map, *(g.size for g in groups))
        cuts = [shards_of(stage.map, plan.zero, tied, plan.sync, itemsize, owners, within) for within, owners in every]
        self.cuts = Cut.all(list(zip(cuts, groups, strict=False)))
        self.shards = self.cuts[0].shards
        self.pieces = tuple(p for c in self.cuts for p in c.pieces)
        super().__init__(stage, index, holders, rule, xp, dtype)
        self.group = group

    def _allocate(self, home: Any = None) -> None:
        xp, dtype, size = self.xp, self.dtype, sum(p.stop - p.start for p in self.pieces)
        if self.zero == 3:
            self._flat[0] = xp.zeros(size, dtype)
            self._views[0] = Gathered(self.map, self.shards, self._flat[0], self.of, self.index, self.tied, xp)
        else:
            self._flat[0] = xp.zeros(self.map.size, dtype)
            self._views[0] = self.map.weights(self._flat[0])
        if self.zero == 1:
            self.gradients = Gradients(self.map, xp, dtype)
        else:
            self.gradients = Streamed(self.map, self.shards, self.of, self.index, xp, dtype)
        self.state = self.rule.state(size, xp, dtype)
        segments = [Segment(*s) for s in self.map.segments()]
        self._segments = [within(segments, p.start, p.stop) for p in self.pieces]

    def reducer(self, sync: Sync) -> Scattered | Regions | Streamed:
        """What sums this part's gradients as they become complete."""
        if isinstance(self.gradients, Streamed):
            return self.gradients
        every = self._scattered(self.gradients)
        return every[0] if len(every) == 1 else Regions(every)

    def _scattered(self, gradients: Any) -> list[Scattered]:
        return [Scattered(c.shards, gradients.flat, c.of, self.index) for c in self.cuts]

    def _summed(self, gradients: Any) -> list[Any]:
        """The sums of this rank's pieces."""
        return [g for c in self.cuts for g in summed(gradients, c.shards, c.of.index)]

    def _step(self, flat: Any, gradients: Any, rate: float, scale: float) -> None:
        """Update this rank's pieces; those of zero 1 and 2 leave for the other replicas one by one."""
        leaving: list[Pending] = []
        buckets = [(c, b) for c in self.cuts for b in range(len(c.pieces))]
        for (c, b), piece, g, segments in zip(buckets, self.pieces, self._summed(gradients), self._segments, strict=True):
            state = {kind: values[piece.at : piece.end] for kind, values in self.state.items()}
            self.rule.step(self._piece(flat, piece), g, state, segments, self.applied, rate, scale)
            self._balance(self._piece(flat, piece), g, piece.start)
            if self.zero < 3:
                leaving.append(spread_start(flat, c.shards, b, c.of, self.index))
        for pending in leaving:
            pending.wait()

    def _piece(self, flat: Any, piece: Piece) -> Any:
        """A piece of the weights where they stand."""
        return flat[piece.at : piece.end] if self.zero == 3 else flat[piece.start : piece.stop]

    def start(self, seed: int) -> None:
        """Set the first weights: from (seed, name); a shard keeps its pieces of each parameter."""
        if self.zero < 3:
            super().start(seed)
            return
        for name, span in self.map.names.items():
            values = initial(self.map.parameters[name], seed, dtype=self.dtype).reshape(-1)
            for _, piece, low, high in self._inside(name):
                at = self._flat[self.newest][piece.at + low - piece.start : piece.at + high - piece.start]
                self.put(at, values[low - span.start : high - span.start])

    def _inside(self, name: str) -> Iterator[tuple[int, Piece, int, int]]:
        """(bucket, piece, start, stop) of what this rank owns of a parameter."""
        span = self.map.names[name]
        for b, piece in enumerate(self.pieces):
            low, high = max(piece.start, span.start), min(piece.stop, span.stop)
            if low < high:
                yield b, piece, low, high

    def weights_by_name(self) -> dict[str, Any]:
        """The newest weights by parameter name: views; under zero 3 gathered copies, collective, for who looks at everything."""
        if self.zero < 3:
            return super().weights_by_name()
        flat = self._flat[self.newest]
        return self.map.by_name(self._whole([self._piece(flat, p) for p in self.pieces]))

    def state_by_name(self) -> dict[str, dict[str, Any]]:
        """Nothing: no rank has a whole state."""
        return {}

    def _counts(self, name: str) -> bool:
        """Whether this rank stands for those along tp and pp that hold the same pieces: a tied weight is the embedding's."""
        return self.map.parameters[name].counts and (name != TIED or self.stage.first)

    def held_bytes(self) -> dict[str, int]:
        """Bytes by kind, the gathered layers of zero 3 among them."""
        gathered = self._views[self.newest]
        return {**super().held_bytes(), **(gathered.held_bytes() if isinstance(gathered, Gathered) else {})}

    def sum_start(self, gradients: Any, algorithm: str) -> Sequence[Pending]:
        """Start to sum whole gradients to their owners, by the MPI's own algorithm."""
        return [scattered.leave(b) for scattered in self._scattered(gradients) for b in range(len(scattered.buckets))]

    def counted_gradients(self, gradients: Any, rank: int) -> dict[str, list[Any]]:
        """This rank's pieces of the summed gradients by name; a tied weight is counted by the embedding's stage."""
        views = self._summed(gradients)
        found: dict[str, list[Any]] = {}
        for name in self.map.names:
            if self._counts(name):
                for b, piece, low, high in self._inside(name):
                    found.setdefault(name, []).append(views[b][low - piece.start : high - piece.start])
        return found

    def tied_gradient(self, gradients: Any) -> Any:
        """This rank's piece of the tied weight's summed gradient: the other stage cuts it alike."""
        span = tied_span(self.map, self.tied)
        assert span is not None
        return summed(gradients, self.shards, self.of.index)[self.shards.bucket_at(span[0])]

    def gradients_by_name(self, gradients: Any) -> dict[str, Any]:
        """Gathered copies of the summed gradients by parameter name; collective."""
        return self.map.by_name(self._whole(self._summed(gradients)))

    def _whole(self, pieces: Sequence[Any]) -> Any:
        flat, at = self.xp.empty(self.map.size, self.dtype), 0
        for c in self.cuts:
            fill(flat, pieces[at : at + len(c.pieces)], c.shards, c.of, self.index)
            at += len(c.pieces)
        return flat

    def owned(self, mesh: Mesh, rank: int) -> Iterator[Values]:
        """The boxes of this rank's pieces, of weights and state; a tied weight is written by the embedding's stage."""
        flat = self._flat[self.newest]
        for piece in self.pieces:
            kinds = {"weights": self._piece(flat, piece), **{k: v[piece.at : piece.end] for k, v in self.state.items()}}
            for name, slices, low, high in boxes_within(self.map.names, piece.start, piece.stop):
                if self._counts(name):
                    place, shape = self.map.parameters[name].placed(slices), tuple(s.stop - s.start for s in slices)
                    for kind, values in kinds.items():
                        yield kind, name, place, values[low - piece.start : high - piece.start].reshape(shape)

    def restore(self, at: Checkpoint, optimizer: str, state: bool = True) -> None:
        """Read this rank's pieces of the state, and of the weights under zero 3; all weights otherwise."""
        flat = self._flat[self.newest]
        if self.zero < 3:
            for name, view in self.weights_by_name().items():
                self.put(view, at.read("weights", name, self.map.parameters[name].slices))
        kinds = {f"{optimizer}.{kind}": values for kind, values in self.state.items()} if state else {}
        kinds |= {"weights": flat} if self.zero == 3 else {}
        for piece in self.pieces:
            for name, slices, low, high in boxes_within(self.map.names, piece.start, piece.stop):
                place = self.map.parameters[name].placed(slices)
                for kind, values in kinds.items():
                    self.put(values[piece.at + low - piece.start : piece.at + high - piece.start], at.read(kind, name, place))
