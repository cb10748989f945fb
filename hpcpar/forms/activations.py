"""What a microbatch leaves in the stash from its forward to its backward, item by item, and what lives only while a layer runs: bytes.

    a block, N = B T rows here, D width, F inner width, H K of all heads, e bytes an element    tp = t       with sequence
    norm inputs          2 N D e                                                                 2           2 / t
    linear inputs        2 N D e    of the matrices after the norms                              2           2 / t
    query, key, value    N (H + 2 G) K e                                                         3 / t
    attention output     N H K e                                                                 1 / t
    MLP                  2 N F e, gated 3 N F e     in and out of the activation                 8 / t
                                                                          in units of N D e:     4 + 12 / t  16 / t
    log-sum-exp          N H e
    norm statistics      2 or 4 numbers a row: means (layer norm) and reciprocal deviations

The right side is for multi-head attention, F = 4 D and cuts that divide: e s b h (4 + 12 / t). Attention runs in tiles, so that no T x T
array is kept; a dropout mask is a hash of the element's index, so that none is kept. With recompute a block keeps its input alone. Where
samples are cut, N is that of the positions here; Ulysses keeps query, key, value and output of all positions for its own heads instead, and
the output here beside them. Korthikanti et al., arXiv:2205.05198, section 4, for the same layer without tiles.

Not counted: what lives inside one operation (a tile of attention's scores, the product that is added to a weight's gradient), and vectors
of a layer's width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hpcpar.errors import PlanError
from hpcpar.forms import context
from hpcpar.forms.tensor import heads_of
from hpcpar.layout import cut
from hpcpar.nn.describe import Layer

if TYPE_CHECKING:
    from hpcpar.config import Model, Plan, Train

ITEM = {"float32": 4, "float64": 8}
TOKEN = 4  # bytes of a token id or label
LOSS = 8  # the log-sum-exp of the loss is kept in float64
BATCH = ("ids", "labels")  # items that are the batch: kept, but no activations


@dataclass(frozen=True)
class Shape:
    """A microbatch of `samples` on one rank, in numbers of `itemsize` bytes; `recompute`: blocks keep their input alone.

    The rank is number `index` of `tp`, which cut a layer (under `sequence` its rows too), and `place` of `cp`, which cut samples by `form`.
    """

    model: Model
    samples: int
    itemsize: int
    recompute: bool = False
    tp: int = 1
    index: int = 0
    sequence: bool = False
    cp: int = 1
    place: int = 0
    form: str = "zig-zag"

    @classmethod
    def of(cls, model: Model, plan: Plan, train: Train, samples: int, index: int = 0, place: int = 0) -> Shape:
        """The shape on rank `index` along tp and `place` along cp of a plan."""
        recompute = plan.recompute == "full"
        return cls(model, samples, ITEM[train.precision], recompute, plan.tp, index, plan.sequence, plan.cp, place, plan.context)

    @property
    def positions(self) -> int:
        """T, the positions of a sample that are here."""
        return context.length(context.runs(self.form, self.model.context, self.cp, self.place)) if self.cp > 1 else self.model.context

    @property
    def rows(self) -> int:
        """N."""
        return self.samples * self.positions

    @property
    def shard(self) -> int:
        """The rows that norms, dropouts and residuals see."""
        mine = cut(self.rows, self.tp, self.index) if self.sequence else slice(0, self.rows)
        return mine.stop - mine.start

    @property
    def border_bytes(self) -> int:
        """What goes from one layer to the next, (N, D) or this rank's rows of it, forward or backward."""
        return self.shard * self.model.width * self.itemsize

    @property
    def dropped_bytes(self) -> int:
        """What dropout makes beside its input; 0 without dropout."""
        return self.border_bytes if self.model.dropout else 0

    @property
    def token_bytes(self) -> int:
        """ids and labels of the microbatch, int32."""
        return 2 * TOKEN * self.rows

    @cached_property
    def heads(self) -> tuple[int, int]:
        """The heads and the key/value heads here."""
        heads, groups, _ = heads_of(self.model, self.tp, self.index)
        return heads.stop - heads.start, groups.stop - groups.start

    def part(self, size: int) -> int:
        """This rank's part of a width that tp cuts."""
        mine = cut(size, self.tp, self.index)
        return mine.stop - mine.start


def items(layer: Layer, at: Shape) -> Counter[str]:
    """{item: bytes} that one layer keeps of a microbatch; raises PlanError for a block with experts."""
    if at.model.moe and any(".experts." in p.name for p in layer.parameters):
        raise PlanError(
            f"{layer.name} has model.moe.experts = {at.model.moe.experts}: the rows that they keep are known by the routing alone, no "
            "arithmetic itemises them; use a model without experts"
        )
    if layer.kind == "embedding":
        return Counter({"ids": at.rows * TOKEN})
    if layer.kind == "block":
        return Counter({"block inputs": at.border_bytes}) if at.recompute else _block(at)
    return Counter(
        {
            "norm inputs": at.border_bytes,
            "norm statistics": _statistics(at),
            "linear inputs": at.border_bytes,
            "logits": at.rows * at.part(at.model.vocabulary) * at.itemsize,
            "log-sum-exp": at.rows * LOSS,
            "labels": at.rows * TOKEN,
        }
    )


def stage_items(layers: Iterable[Layer], at: Shape) -> Counter[str]:
    """{item: bytes} that the layers of a stage keep of a microbatch."""
    found: Counter[str] = Counter()
    for layer in layers:
        found += items(layer, at)
    return found


def held_items(layer: Layer, at: Shape) -> Counter[str]:
    """{item: bytes} that a layer without experts holds of a microbatch from I to W, where these are apart: the input and output gradient
    of every matrix, and vector gradients, which are made in I. A block's are 16 N D elements (multi-head, F = 4 D), as many as it saves:
    the 32 s b h bytes of halves of Qi et al., arXiv:2401.10241, table 1.
    """
    m, rows = at.model, at.rows
    full = rows * m.width * at.itemsize
    if layer.kind == "embedding":
        return Counter({"ids": rows * TOKEN, "output gradients": full + at.sequence * at.border_bytes})
    vectors = (2 if m.norm == "layer" else 1) * m.width * at.itemsize
    if layer.kind == "head":
        logits = rows * at.part(m.vocabulary) * at.itemsize
        return Counter({"linear inputs": at.border_bytes, "logits": logits, "vector gradients": vectors})
    (h, g), inner = at.heads, at.part(m.inner)
    return Counter(
        {
            "linear inputs": 2 * at.border_bytes,
            "query, key, value": rows * (h + 2 * g) * m.head_width * at.itemsize,
            "attention output": rows * h * m.head_width * at.itemsize,
            "MLP": (2 if m.mlp == "gelu" else 3) * rows * inner * at.itemsize,
            "output gradients": 2 * full,
            "vector gradients": 2 * vectors,
        }
    )


def block_elements(rows: float, width: int, degree: int, sequence: bool) -> float:
    """Elements of a block's activations by the closed form (multi-head, F = 4 D): N D (4 + 12 / t), with sequence 16 / t."""
    return rows * width * (16 / degree if sequence else 4 + 12 / degree)


def saved_bytes(layer: Layer, at: Shape) -> int:
    """What stays from a layer's forward to its backward, without the batch; its input counts, its output is the next layer's."""
    return sum(size for item, size in items(layer, at).items() if item not in BATCH)


def forward_bytes(layer: Layer, at: Shape) -> int:
    """The most that lives beside the saved arrays while the forward of a whole layer runs, without its output."""
    if layer.kind == "block" and at.recompute:
        return _block(at).total() - at.border_bytes + at.dropped_bytes
    return 0 if layer.kind == "head" else at.dropped_bytes


def backward_bytes(layer: Layer, at: Shape) -> int:
    """The most that lives beside the saved arrays while the backward of a whole layer runs, without the gradients of output and input."""
    if layer.kind == "embedding":
        return at.dropped_bytes
    if layer.kind == "head":
        return at.border_bytes  # of h; that of the logits takes their place
    m = at.model
    inner = m.inner if m.mlp == "gelu" else 3 * m.inner  # GELU's gradient takes the place of its output's
    attention = (2 * m.heads + 2 * m.groups) * m.head_width + 2 * m.width  # dqkv, do, the gradient between the halves, dh
    columns = max(inner + m.width, attention)  # one half after the other: du and dh are gone when attention's come
    again = _block(at).total() - at.border_bytes if at.recompute else 0
    return again + at.rows * columns * at.itemsize + at.dropped_bytes


def _statistics(at: Shape) -> int:
    return (2 if at.model.norm == "layer" else 1) * at.shard * at.itemsize  # mean and 1 / deviation, or 1 / root mean square


def _block(at: Shape) -> Counter[str]:
    """What the forward of a block leaves, without recomputation."""
    m, e, (h, g), n = at.model, at.itemsize, at.heads, at.rows
    out = n * h * m.head_width * e
    if at.cp > 1 and at.form == "ulysses":  # all positions of some of the heads
        mine, theirs = context.heads_of(h, g, at.cp, at.place)
        h, g, n = mine.stop - mine.start, theirs.stop - theirs.start, at.samples * m.context
        out += n * h * m.head_width * e
    return Counter(
        {
            "norm inputs": 2 * at.border_bytes,
            "norm statistics": 2 * _statistics(at),
            "linear inputs": 2 * at.border_bytes,
            "query, key, value": n * (h + 2 * g) * m.head_width * e,
            "attention output": out,
            "log-sum-exp": n * h * e,
            "MLP": (2 if m.mlp == "gelu" else 3) * at.rows * at.part(m.inner) * e,
        }
    )
