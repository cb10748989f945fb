"""One stage on this rank, with its arrays: weights by version, gradients, optimizer state.

version   0    1    2         F and B take the version that the schedule names; U of version v makes v from v - 1:
weights   w0   w1   w2        in place where no one needs v - 1 any more, else in a copy
"""

from __future__ import annotations

from typing import Any

from hpcpar.comm.world import Group
from hpcpar.nn.describe import Parameter
from hpcpar.nn.gradients import Gradients
from hpcpar.nn.parameters import FlatMap, initial
from hpcpar.nn.stage import Stage
from hpcpar.parallel.buckets import Buckets


class Part:
    """The arrays of stage `index` on this rank.

    `holders` are the pipeline ranks that hold a copy of this stage, the first of which counts its parameters in norms and checkpoints.
    """

    def __init__(self, stage: Stage, index: int, holders: tuple[int, ...], rule: Any, xp: Any, dtype: str):
        self.stage, self.index, self.holders, self.rule, self.xp, self.dtype = stage, index, holders, rule, xp, dtype
        self.map: FlatMap = stage.map
        self.newest = 0
        self.applied = 0  # updates, without those that were skipped: Adam's bias correction counts these
        self._flat = {0: xp.zeros(self.map.size, dtype)}
        self._views = {0: self.map.weights(self._flat[0])}
        self.gradients = Gradients(self.map, xp, dtype)
        self.state = rule.state(self.map.size, xp, dtype)
        self.segments = self.map.segments()
        self.group: Group | None = None  # the ranks that hold this stage too: replicas and copies
        self.buckets: Buckets | None = None

    def start(self, seed: int) -> None:
        """Set the first weights: from (seed, name)."""
        for name, view in self.weights_by_name().items():
            self.put(view, initial(self.map.parameters[name], seed, dtype=self.dtype))

    def put(self, view: Any, values: Any) -> None:
        """Copy host values into a view of an array of this part."""
        view[...] = self.xp.asarray(values).reshape(view.shape)

    def weights(self, version: int | None = None) -> list[dict[str, Any]]:
        """Views of a version of the weights (the newest), a dict a layer."""
        return self._views[self.newest if version is None else version]

    def weights_by_name(self) -> dict[str, Any]:
        """Views of the newest weights by parameter name."""
        return self.map.by_name(self._flat[self.newest])

    def state_by_name(self) -> dict[str, dict[str, Any]]:
        """Views of the optimizer state: {state: {parameter: view}}."""
        return {kind: self.map.by_name(flat) for kind, flat in self.state.items()}

    @property
    def versions(self) -> list[int]:
        """The versions that are alive."""
        return sorted(self._flat)

    def advance(self, version: int, needed: bool, gradients: Gradients, rate: float, scale: float | None) -> None:
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
            g = gradients.flat[: self.map.size]
            self.rule.step(self._flat[version], g, self.state, self.segments, self.applied, rate, scale)

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
            "gradients": self.gradients.flat.nbytes,
            "optimizer": sum(f.nbytes for f in self.state.values()),
        }

    def counted(self, rank: int) -> dict[str, Parameter]:
        """The parameters that pipeline rank `rank` counts: those of which it is the first holder; a tied weight is the embedding's."""
        if rank != self.holders[0]:
            return {}
        own = self.map.parameters
        return {n: p for n, p in own.items() if not (n == "tokens.weight" and not self.stage.first)}
