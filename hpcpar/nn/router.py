"""From tokens to a routing, and back: router, gate, capacity, weights, auxiliary losses.

    1 z = h W'    2 choice = gate(z)    3 keep, by capacity    4 weights of what is kept    5 rows sorted by expert, then token

All is over groups of `group` whole samples, never over a microbatch or a rank. Auxiliary losses are means over the groups of the whole
global batch; their gradients go straight into dz. A routing is made once: recompute is handed the one of the forward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hpcpar.config import Moe
from hpcpar.nn.context import Microbatch, Sink
from hpcpar.nn.gates import GATES
from hpcpar.nn.gates import auxiliary as losses
from hpcpar.nn.gates.capacity import kept
from hpcpar.nn.gates.choice import Choice, Place, wanted, weights, weights_backward
from hpcpar.nn.tally import Seen
from hpcpar.ops import linear
from hpcpar.ops.array import array_module, put


class Routing(NamedTuple):
    """A rows, sorted by expert, then token: `tokens` (A,), `experts` (A,), `weights` (A,); `counts` (E,) are rows an expert.

    `choice` and `keep` (G, S, E) and the router's scores `z` (G, S, R) are what the backward needs, `way` what dispatch does.
    """

    tokens: Any
    experts: Any
    weights: Any
    counts: tuple[int, ...]
    choice: Choice
    keep: Any
    z: Any
    way: Any


def route(h: Any, w: dict[str, Any], at: Microbatch, name: str) -> Routing:
    """h (B*T, D) -> the routing; what it saw is counted."""
    place = _place(h, at, name)
    moe, gate, xp = place.moe, GATES[place.moe.gate], place.xp
    z = None
    if gate.ROUTER:  # 1
        z = linear.forward(h, w["moe.router.weight"])[0].reshape(place.groups, place.tokens, -1)
    choice = gate.choose(z, w.get("moe.router.bias"), place)  # 2
    keep = kept(choice, place)  # 3
    values = weights(choice.scores, _over(choice, keep, moe), keep) * moe.scale  # 4
    n, e = len(h), moe.experts
    at_rows = xp.flatnonzero(xp.ascontiguousarray(keep.reshape(n, e).T))  # 5
    experts, tokens = at_rows // n, at_rows % n
    counts = tuple(keep.sum(axis=(0, 1)).tolist())
    way = at.frame.dispatch.plan(counts)
    routing = Routing(tokens, experts, values.reshape(n, e)[tokens, experts].astype(h.dtype), counts, choice, keep, z, way)
    if at.training:
        at.frame.tally.add(at.step, at.first, name, _seen(routing, place, at))
    return routing


def backward(dweights: Any, routing: Routing, h: Any, w: dict[str, Any], sink: Sink, at: Microbatch, name: str) -> Any:
    """dweights (A,) -> dh (B*T, D) through the router, with the auxiliary losses; None where the gate has no router."""
    place = _place(h, at, name)
    moe, gate, choice, keep = place.moe, GATES[place.moe.gate], routing.choice, routing.keep
    if not gate.ROUTER:
        return None
    n, e = len(h), moe.experts
    dense = place.xp.zeros((n, e), h.dtype)
    dense[routing.tokens, routing.experts] = dweights * moe.scale
    over = _over(choice, keep, moe)
    dscores = weights_backward(dense.reshape(keep.shape), choice.scores, over, keep)  # 4
    dz = gate.backward(dscores, choice, place)  # 2
    balance, z_loss = coefficients(moe, at)
    if at.training and balance:
        dz = dz + balance * gate.balance_backward(choice, place)
    if at.training and z_loss:
        dz[..., :e] += z_loss * losses.z_loss_backward(routing.z[..., :e])
    dz = dz.reshape(n, -1).astype(h.dtype, copy=False)
    dh, held = linear.backward_input(dz, h, w["moe.router.weight"])  # 1
    sink("moe.router", _backward_weight, (*held, _excess(choice, moe) if "moe.router.bias" in w else None))
    return dh


def coefficients(moe: Moe, at: Microbatch) -> tuple[float, float]:
    """What a group's balance and z-loss are multiplied by: the coefficient over the number of groups of the whole global batch."""
    balance = GATES[moe.gate].BALANCE if moe.balance is None else moe.balance
    groups = (at.batch or at.samples) / moe.group
    return balance / groups, moe.z_loss / groups


def _place(h: Any, at: Microbatch, name: str) -> Place:
    moe, xp = at.frame.model.moe, array_module(h)
    assert moe is not None
    size = min(moe.group, at.samples)
    groups, tokens = at.samples // size, size * at.positions
    first = at.first * at.positions
    return Place(moe, xp, h.dtype, groups, tokens, first, at.positions, at.frame.seed, name, at.step, at.training)


def _over(choice: Choice, keep: Any, moe: Moe) -> Any:
    """What weights are divided by the sum of: wanted or kept scores, or None. A choice that chance leaves out still divides."""
    how = moe.normalise or GATES[moe.gate].NORMALISE
    return {"none": None, "before": choice.order < moe.k, "after": keep}[how]


def _excess(choice: Choice, moe: Moe) -> Any:
    """(E,): E times the number of choices of each expert, less the number of all, which is exact: the sign says who has too many."""
    counts = (choice.order < moe.k).sum(axis=(0, 1))
    return moe.experts * counts - counts.sum()


def _backward_weight(held: tuple, dw: Any, excess_sum: Any, add: bool) -> None:
    """The W of step 1; in the place of the selection bias's gradient stands what its rule needs."""
    h, dz, excess = held
    linear.backward_weight((h, dz), dw, None, add)
    if excess is not None:
        put(excess_sum, excess.astype(excess_sum.dtype), add)


def _seen(routing: Routing, place: Place, at: Microbatch) -> Seen:
    moe, choice, xp = place.moe, routing.choice, place.xp
    gate, e = GATES[moe.gate], moe.experts
    p = choice.scores / choice.scores.sum(axis=-1, keepdims=True)
    entropy = -(p * xp.log(xp.maximum(p, 1e-30))).sum()
    alone = (~routing.keep.any(axis=-1)).sum()
    chooses = moe.gate == "expert-choice"
    dropped = alone if chooses else wanted(choice, moe.k).sum() - sum(routing.counts)
    balance, z_loss = coefficients(moe, at)
    lost = balance * gate.balance(choice, place).sum() if gate.ROUTER and balance else 0.0
    z = z_loss * losses.z_loss(routing.z[..., :e]).sum() if gate.ROUTER and z_loss else 0.0
    return Seen(routing.counts, dropped, alone, entropy, place.groups * place.tokens, lost, z)
