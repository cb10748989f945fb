"""What the records of an OTF2 archive refer to: locations, communicators, regions, metrics and attributes."""

from __future__ import annotations

from typing import Any

from hpcpar.draw.exports.slices import arguments, process, word
from hpcpar.groups import groups
from hpcpar.trace import Trace
from hpcpar.trace.schema import COMPUTE, Kind, Operation

SUMS = ("ALLREDUCE", "TIED", "NORM", "LOSS", "AGREE", "AVERAGE", "SOFTMAX", "SHARED", "COMBINE_WEIGHTS")
COLLECTIVES: dict[int, str] = {
    Operation.BROADCAST: "BCAST",
    Operation.BARRIER: "BARRIER",
    Operation.CLOCK_POINT: "BARRIER",
    Operation.REDUCE: "REDUCE",
    Operation.GATHER: "GATHER",
    Operation.SCATTER: "SCATTER",
    Operation.REDUCE_SCATTER: "REDUCE_SCATTER",
    Operation.KEYS_VALUES_GRADIENT: "REDUCE_SCATTER",
    Operation.ALLGATHER: "ALLGATHERV",
    Operation.KEYS_VALUES: "ALLGATHERV",
    Operation.SCORES: "ALLGATHERV",
    **{Operation[name]: "ALLREDUCE" for name in SUMS},
}


class Definitions:
    """What the records refer to: locations, communicators, regions, metrics, attributes; those that are there are given again."""

    def __init__(self, otf2: Any, archive: Any, trace: Trace):
        self.otf2, self.archive, self.all = otf2, archive, archive.definitions
        self._partners = groups(trace.description, trace.ranks)
        root = self.all.system_tree_node("machine", class_name="machine")
        names = [process(trace.description, r) for r in range(trace.ranks)]
        hosts = {n: self.all.system_tree_node(n.partition(" on ")[2] or "host", class_name="node", parent=root) for n in names}
        called = [f"{n}: {trace.missing[r]}" if r in trace.missing else n for r, n in enumerate(names)]
        self.processes = [self.all.location_group(c, system_tree_parent=hosts[n]) for c, n in zip(called, names, strict=True)]
        self.main = [self.all.location(f"rank {r}", group=g) for r, g in enumerate(self.processes)]
        self._mpi = otf2.Paradigm.MPI
        self.all.group("ranks", group_type=otf2.GroupType.COMM_LOCATIONS, paradigm=self._mpi, members=self.main)
        self._communicators: dict[tuple[str, tuple[int, ...]], Any] = {}
        self.world = self._communicator("world", tuple(range(trace.ranks)))
        self.window = self.all.rma_win("parameter server", comm=self.world)
        self.nobody = otf2.Undefined.UINT32.value  # the root of a collective that has none
        self._attributes: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}

    def _communicator(self, called: str, ranks: tuple[int, ...]) -> Any:
        if (called, ranks) not in self._communicators:
            kind = self.otf2.GroupType.COMM_GROUP
            group = self.all.group(called, group_type=kind, paradigm=self._mpi, members=tuple(self.main[r] for r in ranks))
            self._communicators[called, ranks] = self.all.comm(called, group=group)
        return self._communicators[called, ranks]

    def communicator(self, event: dict[str, int], rank: int) -> Any:
        """That of a collective at a rank; all ranks under the name of the axis where it is not known who took part."""
        ranks = self._partners(rank, event["axis"], event["stage"], event["operation"])
        name = word("axis", event["axis"])
        if ranks is None:
            return self._communicator(f"{name}: members not known", tuple(range(len(self.main))))
        return self._communicator(f"{name} {ranks[0]}" if name != "world" else name, ranks)

    def region(self, event: dict[str, int]) -> Any:
        """`F`, `wait activation`, `copy to_device`."""
        kind, operation = event["kind"], event["operation"]
        plain = kind in COMPUTE or not operation
        called = word("kind", kind) if plain else f"{word('kind', kind)} {word('operation', operation)}"
        return self.all.region(called, paradigm=self._mpi if kind == Kind.WAIT else self.otf2.Paradigm.USER)

    def collective(self, event: dict[str, int]) -> Any:
        """What OTF2 calls a collective."""
        return getattr(self.otf2.CollectiveOp, COLLECTIVES.get(event["operation"], "ALLTOALLV"))

    def metric(self, kind: str) -> Any:
        """Bytes held of a kind."""
        if kind not in self._metrics:
            types = {"metric_type": self.otf2.MetricType.USER, "value_type": self.otf2.Type.INT64}
            self._metrics[kind] = self.all.metric_class((self.all.metric_member(f"memory {kind}", unit="bytes", **types),))
        return self._metrics[kind]

    def attributes(self, event: dict[str, int]) -> dict[Any, Any]:
        """Everything that has a meaning for an event."""
        out = {}
        for name, value in arguments(event).items():
            if name not in self._attributes:
                kind = self.otf2.Type.STRING if isinstance(value, str) else self.otf2.Type.INT64
                self._attributes[name] = self.all.attribute(name, type=kind)
            out[self._attributes[name]] = value
        return out
