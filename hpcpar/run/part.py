"""One stage on this rank, with its arrays: weights by version, gradients, optimizer state.

version   0    1    2         F and B take the version that the schedule names; U of version v makes v from v - 1:
weights   w0   w1   w2        in place where no one needs v - 1 any more, else in a copy
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpcpar.checkpoint import Checkpoint
from hpcpar.comm.pending import Pending
from hpcpar.comm.world import Group
from hpcpar.config import Sync
from hpcpar.mesh import Mesh
from hpcpar.nn.describe import Parameter
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import FlatMap, initial
from hpcpar.nn.stage import Stage
from hpcpar.optim import selection
from hpcpar.parallel.buckets import Buckets
from hpcpar.parallel.regions import Regions
from hpcpar.parallel.shared import Shared
from hpcpar.parallel.zero.gradients import Streamed
from hpcpar.run.expert import same_experts

Values = tuple[str, str, tuple[slice, ...], Any]  # "weights" or a state of the optimizer, parameter, slices of it, values


class Part:
    """The arrays of stage `index` on this rank.

    `holders` are the pipeline ranks that hold a copy of this stage, the first of which counts its parameters in norms and checkpoints.
    """

    def __init__(self, stage: Stage, index: int, holders: tuple[int, ...], rule: Any, xp: Any, dtype: str):
        self.stage, self.index, self.holders, self.rule, self.xp, self.dtype = stage, index, holders, rule, xp, dtype
        self.map: FlatMap = stage.map
        self.newest = 0
        self.applied = 0  # updates, without those that were skipped: Adam's bias correction counts these
        self.group: Group | None = None  # the ranks that hold this stage too: replicas and copies
        self.expert_group: Group | None = None  # those of them that hold the same experts, where they are cut
        self.place = (0, 1)  # which piece of the experts is here, and of how many
        self.buckets: Buckets | Regions | Streamed | None = None
        self.shared: Shared | None = None  # where several ranks cut the stage's layers
        self.beside: dict[str, int] = {}  # bytes by kind of what is kept with this stage for the sake of its replicas
        self._flat: dict[int, Any] = {}
        self._views: dict[int, Sequence[dict[str, Any]]] = {}
        self._allocate()

    def _allocate(self, home: Any = None) -> None:
        """Make the arrays; `home` makes those of weights and optimizer state where they are not `xp`'s own."""
        xp, dtype = self.xp, self.dtype
        self._flat[0] = (home or xp).zeros(self.map.size, dtype)
        self._views[0] = self.map.weights(self._flat[0])
        self.gradients: Any = Gradients(self.map, xp, dtype)  # or what stands in its place where gradients are sharded
        self.state = self.rule.state(self.map.size, home or xp, dtype)
        self.segments = self.map.segments()

    def start(self, seed: int) -> None:
        """Set the first weights: from (seed, name)."""
        for name, view in self.weights_by_name().items():
            self.put(view, initial(self.map.parameters[name], seed, dtype=self.dtype))

    def put(self, view: Any, values: Any) -> None:
        """Copy host values into a view of an array of this part."""
        view[...] = self.xp.asarray(values).reshape(view.shape)

    def weights(self, version: int | None = None) -> Sequence[dict[str, Any]]:
        """A version of the weights (the newest) by short name, a dict a layer."""
        return self._views[self.newest if version is None else version]

    def weights_by_name(self) -> dict[str, Any]:
        """Views of the newest weights by parameter name."""
        return self.map.by_name(self._flat[self.newest])

    def state_by_name(self) -> dict[str, dict[str, Any]]:
        """Views of the optimizer state: {state: {parameter: view}}."""
        return {kind: self.map.by_name(flat) for kind, flat in self.state.items()}

    @property
    def flat(self) -> Any:
        """The newest weights (n,)."""
        return self._flat[self.newest]

    @property
    def versions(self) -> list[int]:
        """The versions that are alive."""
        return sorted(self._flat)

    def advance(self, version: int, needed: bool, gradients: Any, rate: float, scale: float | None) -> None:
        """Make `version` from the newest weights and the gradients; `scale` None skips the update: the version is then a copy.

        `needed` says that the weights before are still in use, so that a copy is updated.
        """
        old = self.newest
        if needed:
            self._flat[version] = self._flat[old].copy()
            self._views[version] = self.map.weights(self._flat[version])
        else:
            self._flat[version], self._views[version] = self._flat.pop(old), self._views.pop(old)
        self.newest = version
        if scale is not None:
            self.applied += 1
            self._step(self._flat[version], gradients, rate, scale)

    def _step(self, flat: Any, gradients: Any, rate: float, scale: float) -> None:
        g = gradients.flat[: self.map.size]
        self.rule.step(flat, g, self.state, self.segments, self.applied, rate, scale)
        self._balance(flat, g)

    def _balance(self, weights: Any, gradients: Any, start: int = 0) -> None:
        """Move what lies of selection biases in these pieces of the flat arrays, which begin at `start`."""
        moe, stop = self.stage.frame.model.moe, start + len(gradients)
        for span in self.map.balanced() if moe else ():
            at = slice(max(span.start, start) - start, max(min(span.stop, stop) - start, 0))
            selection.balance(weights[at], gradients[at], moe.bias_rate)  # type: ignore[union-attr]

    def rename(self, version: int) -> None:
        """The newest weights, the only ones, are those of `version`."""
        self._flat, self._views = {version: self._flat[self.newest]}, {version: self._views[self.newest]}
        self.newest = version

    def drop(self, version: int) -> None:
        """Free a version that nobody needs any more."""
        if version != self.newest:
            del self._flat[version], self._views[version]

    def held_bytes(self) -> dict[str, int]:
        """Bytes by kind."""
        return {
            "parameters": sum(f.nbytes for f in self._flat.values()),
            "optimizer": sum(f.nbytes for f in self.state.values()),
            **self.gradients.held_bytes(),
            **self.beside,
        }

    def reducer(self, sync: Sync) -> Buckets | Regions | Streamed:
        """What sums this part's gradients over `group` as they become complete, those of experts that are cut over their own."""
        at, sizes = self.map, (sync.bucket_mb, sync.first_bucket_mb, sync.algorithm)
        assert self.group is not None and isinstance(self.gradients, Gradients)
        every = Buckets(at, self.gradients.flat, self.group, self.index, *sizes, within=(0, at.common))
        if not self.expert_group or at.common == at.size:
            return every
        return Regions([every, Buckets(at, self.gradients.flat, self.expert_group, self.index, *sizes, within=(at.common, at.size))])

    def sum_start(self, gradients: Any, algorithm: str) -> Sequence[Pending]:
        """Start to sum whole gradients over the replicas of the stage."""
        assert self.group is not None
        return [self.group.allreduce_start(gradients.flat[: self.map.size], "sum", "allreduce", algorithm, stage=self.index)]

    def counted_gradients(self, gradients: Any, rank: int) -> dict[str, list[Any]]:
        """What pipeline rank `rank` adds to the norm, by name: pieces whose squares, over all ranks, are each parameter's once."""
        named, first = gradients.by_name(), self.place[0] == 0  # of the ranks that exchange rows, for what all of them hold
        return {n: [named[n]] for n, p in self.counted(rank).items() if first or p.dispersed}

    def tied_gradient(self, gradients: Any) -> Any:
        """What the two stages that hold a tied weight exchange: the sums over replicas that this rank updates with."""
        return gradients.by_name()["tokens.weight"]

    def gradients_by_name(self, gradients: Any) -> dict[str, Any]:
        """Views of the summed gradients by parameter name; collective where they are sharded: for who looks at everything."""
        return gradients.by_name()

    def owned(self, mesh: Mesh, rank: int) -> Iterator[Values]:
        """What an MPI rank writes to a checkpoint: of the n replicas along dp and cp of a parameter, number i % n has parameter i."""
        kinds = {"weights": self.weights_by_name(), **self.state_by_name()}
        every, same = mesh.group(("dp", "cp"), rank), same_experts(mesh, self.place[1], rank)
        for i, (name, parameter) in enumerate(self.counted(mesh.coordinates(rank)["pp"]).items()):
            replicas = same if parameter.dispersed else every
            if replicas[i % len(replicas)] == rank:
                yield from ((kind, name, parameter.slices, views[name]) for kind, views in kinds.items())

    def restore(self, at: Checkpoint, optimizer: str, state: bool = True) -> None:
        """Read weights and (where `state`) the optimizer's state; raises CheckpointError where they are not there."""
        for name, view in self.weights_by_name().items():
            self.put(view, at.read("weights", name, self.map.parameters[name].slices))
        for kind, views in self.state_by_name().items() if state else ():
            for name, view in views.items():
                self.put(view, at.read(f"{optimizer}.{kind}", name, self.map.parameters[name].slices))

    def counted(self, rank: int) -> dict[str, Parameter]:
        """The parameters that this rank, pipeline rank `rank`, counts: it is their first holder; a tied weight is the embedding's."""
        if rank != self.holders[0]:
            return {}
        own = self.map.parameters
        return {n: p for n, p in own.items() if p.counts and not (n == "tokens.weight" and not self.stage.first)}
