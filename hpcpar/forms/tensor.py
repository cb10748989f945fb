"""Tensor parallelism, Megatron's cut of a layer over t ranks, and sequence parallelism: what each rank holds and what is sent.

    rank 0  | query rows  key rows  value rows | out columns |   up rows  (gate rows) | down columns |    vocabulary rows
    rank 1  |  of its heads, of their groups   | of its heads|     of its inner width | of the same  |    of its slice
            f                                  g             f                        g

Two exchanges a half of a block, adjoint to each other:         sequence = false              sequence = true
    f  before the matrices that are cut by rows                 identity / all-reduce         all-gather / reduce-scatter
    g  after the matrix that is cut by columns                  all-reduce / identity         reduce-scatter / all-gather
                                                                (forward / backward; with sequence, f's input is gathered again for W)

Heads are cut by whole groups, unevenly where t does not divide them. With fewer key/value heads than ranks each of them is held by t / G
ranks, which cut its queries, and its gradient is the sum of theirs. The vocabulary is cut unevenly instead of being padded: there are no
rows that would have to be kept out of the softmax. Norms, positions and the biases behind g are held by all ranks. With sequence norms and
positions see a rank's own rows, and their gradients are summed over t; the biases' are made where g's adjoint has gathered all rows, and
agree. Without sequence all agree, and none is summed.

Experts are cut like the MLP, each of them, and every rank routes all rows. A router's gradient is of a rank's own rows.

Shoeybi et al., arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198, section 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcpar.errors import PlanError
from hpcpar.layout import cut
from hpcpar.nn.describe import Layer, Parameter, Piece

if TYPE_CHECKING:
    from hpcpar.config import Config, Model

BEHIND = ("attention.out.bias", "mlp.down.bias", "moe.experts.down.bias", "moe.shared.down.bias")

Sent = tuple[str, int]  # an operation of the trace, and the bytes of its whole array


def heads_of(model: Model, degree: int, index: int) -> tuple[slice, slice, tuple[int, ...]]:
    """The heads and the key/value heads of rank `index` of `degree`, and the ranks that hold these key/value heads."""
    groups, many = model.groups, model.heads // model.groups
    if groups >= degree:
        mine = cut(groups, degree, index)
        return slice(mine.start * many, mine.stop * many), mine, (index,)
    share = degree // groups
    group, place = divmod(index, share)
    heads = cut(many, share, place)
    holders = tuple(range(group * share, (group + 1) * share))
    return slice(group * many + heads.start, group * many + heads.stop), slice(group, group + 1), holders


def fewest_heads(model: Model, degree: int) -> int:
    """The heads of the rank that has the fewest."""
    each = (heads_of(model, degree, i)[0] for i in range(degree))
    return min(h.stop - h.start for h in each)


def check(config: Config, rows: int) -> None:
    """Raise PlanError where tensor or sequence parallelism cannot be; `rows` is B T of a microbatch."""
    m, p = config.model, config.plan
    if p.tp == 1:
        if p.sequence:
            raise PlanError("plan.sequence = true needs tensor parallelism, and plan.tp = 1; use plan.tp > 1 or plan.sequence = false")
        return
    if p.tp > m.heads:
        raise PlanError(f"model.heads = {m.heads} cannot be cut over plan.tp = {p.tp} ranks; use plan.tp <= {m.heads}")
    if m.groups < p.tp and p.tp % m.groups:
        up = m.groups * -(-p.tp // m.groups)
        more = f" or {up}" if up <= m.heads else ""
        raise PlanError(
            f"model.kv_heads = {m.groups} can neither be cut over plan.tp = {p.tp} ranks nor held by equally many of them; "
            f"use plan.tp <= {m.groups}{more}"
        )
    inner = {"mlp_width": m.inner} if not m.moe or m.moe.every > 1 else {}
    experts = {"moe.width" if m.moe.width else "mlp_width": m.expert_width} if m.moe else {}
    for name, size in {"vocabulary": m.vocabulary, **inner, **experts}.items():
        if size < p.tp:
            raise PlanError(f"model.{name} = {size} cannot be cut over plan.tp = {p.tp} ranks; use plan.tp <= {size}")
    if p.sequence and rows < p.tp:
        raise PlanError(
            f"plan.sequence = true cuts the {rows} rows (samples x context) of a microbatch over plan.tp = {p.tp} ranks; "
            f"use plan.tp <= {rows} or larger microbatches"
        )
    if config.train.emulate:
        raise PlanError(f"train.emulate with plan.tp = {p.tp}: exchanges within a layer are not emulated; use plan.tp = 1")


def cut_layer(layer: Layer, model: Model, degree: int, index: int, sequence: bool) -> Layer:
    """The layer with the pieces that rank `index` of `degree` holds of its parameters; the layer itself for degree 1."""
    if degree == 1:
        return layer
    found = tuple(replace(p, piece=piece(p, model, degree, index, sequence)) for p in layer.parameters)
    return replace(layer, parameters=found)


def piece(p: Parameter, model: Model, degree: int, index: int, sequence: bool) -> Piece:
    """What rank `index` of `degree` holds of a parameter."""
    everyone = tuple(range(degree))
    box = [(0, n) for n in p.shape]
    dim, mine, holders = _cut_of(p, model, degree, index)
    if mine is None:
        behind = p.name.endswith(BEHIND)  # its gradient is made of all rows, gathered by g's adjoint
        return Piece(tuple(box), everyone, index, sequence and not behind)
    box[dim] = (mine.start, mine.stop)
    return Piece(tuple(box), holders, index, len(holders) > 1)


def _cut_of(p: Parameter, model: Model, degree: int, index: int) -> tuple[int, slice | None, tuple[int, ...]]:
    """(dim, its slice or None where all hold all, holders)."""
    owner, _, leaf = p.name.rpartition(".")
    alone, width = (index,), model.head_width
    heads, groups, sharers = heads_of(model, degree, index)
    if owner in ("tokens", "head"):
        return 0, cut(model.vocabulary, degree, index), alone
    if owner.endswith("attention.query"):
        return 0, _times(heads, width), alone
    if owner.endswith(("attention.key", "attention.value")):
        return 0, _times(groups, width), sharers
    if owner.endswith("attention.out") and leaf == "weight":
        return 1, _times(heads, width), alone
    if owner.endswith(("mlp.gate", "mlp.up", "moe.shared.gate", "moe.shared.up")):
        return 0, cut(p.shape[0], degree, index), alone
    if owner.endswith(("mlp.down", "moe.shared.down")) and leaf == "weight":
        return 1, cut(p.shape[1], degree, index), alone
    if owner.endswith("moe.experts.up"):  # (E, F, D) or (E, 2, F, D), biases without D
        dim = len(p.shape) - (2 if leaf == "weight" else 1)
        return dim, cut(p.shape[dim], degree, index), alone
    if owner.endswith("moe.experts.down") and leaf == "weight":
        return 2, cut(p.shape[2], degree, index), alone
    return 0, None, alone


def _times(at: slice, width: int) -> slice:
    return slice(at.start * width, at.stop * width)


def sent(layer: Layer, model: Model, rows: int, itemsize: int, sequence: bool, recompute: bool = False, routed: int = 0) -> Counter[Sent]:
    """What one rank sends for a layer and microbatch of `rows` B T, forward and backward together: calls by (operation, whole bytes).

    Experts of `routed` rows send what an MLP does, and the gradients of their weights; what W needs of gathered rows they keep.
    """
    whole = rows * model.width * itemsize
    f = ["allgather", "reduce_scatter", "allgather"] if sequence else ["allreduce"]  # the second gather is W's
    g = ["reduce_scatter", "allgather"] if sequence else ["allreduce"]
    if layer.kind == "embedding":
        return Counter((o, whole) for o in g)
    if layer.kind == "head":
        return Counter((o, whole) for o in f) + Counter({("softmax", rows * 8): 3})
    again = ["allgather", "reduce_scatter"] if sequence else ["allreduce"]  # the forward's, when it runs a second time
    found = Counter((o, whole) for o in 2 * (f + g + again * recompute))
    if any(".experts." in p.name for p in layer.parameters):
        found -= Counter([("allgather", whole)] * sequence)
        found += Counter([("combine_weights", routed * itemsize)] * any(".router." in p.name for p in layer.parameters))
    return found


def sent_shared(layers: Iterable[Layer], itemsize: int) -> Counter[Sent]:
    """The sums over tp at the end of a step, of the gradients that several ranks make together, for one stage of cut layers."""
    sizes: dict[tuple[int, ...], int] = {}
    for p in {p.name: p for layer in layers for p in layer.parameters}.values():
        if p.summed and p.piece:
            sizes[p.piece.holders] = sizes.get(p.piece.holders, 0) + p.local_size
    return Counter(("shared", n * itemsize) for n in sizes.values())


def link_elements(operation: str, elements: float, degree: int) -> float:
    """Elements that one rank sends in a ring for a collective on a whole array of `elements`."""
    passes = {"allgather": 1, "reduce_scatter": 1}.get(operation, 2)  # the others are all-reduces
    return passes * elements * (degree - 1) / degree


def layer_elements(rows: int, width: int, degree: int, sequence: bool) -> float:
    """Elements that a rank sends for a block, forward and backward, no recompute: 8 b s h (t - 1) / t, with sequence 10."""
    return (10 if sequence else 8) * rows * width * (degree - 1) / degree
