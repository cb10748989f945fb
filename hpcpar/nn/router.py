"""From tokens to a routing, and back: router, gate, capacity, weights, auxiliary losses.

    1 z = h W'    2 choice = gate(z)    3 keep, by capacity    4 weights of what is kept    5 rows sorted by expert, then token

Steps 1 to 4 are in float32 at least, whatever the tokens are, and weights take the tokens' type before anything is sent: selective
precision (Fedus et al. 2021, section 2.4). With `jitter`, step 1 reads h times noise. All is over groups of `group` whole samples, never
over a microbatch or a rank. Auxiliary losses are means over the groups of the whole global batch; their gradients go straight into dz. A
routing is made once: recompute is handed the one of the forward.

    a group of two samples over two ranks      scores of 1 | 0 0 1 1 1 1 0 0 | 0 0 1 1 1 1 0 0 |     shared, then 2 to 4 by both alike
                                               rows of 0   | 0 1         2 3 | 4 5         6 7 |     5 and the backward by each for its own
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hpcpar.config import Moe
from hpcpar.nn.context import Microbatch, Sink
from hpcpar.nn.gates import GATES, jitter
from hpcpar.nn.gates import auxiliary as losses
from hpcpar.nn.gates.capacity import kept, limit
from hpcpar.nn.gates.choice import Choice, Place, wanted, weights, weights_backward
from hpcpar.nn.tally import Seen
from hpcpar.ops import linear
from hpcpar.ops.array import array_module, put


class Routing(NamedTuple):
    """A rows, sorted by expert, then token: `tokens` (A,), `experts` (A,), `weights` (A,); `counts` (E,) are rows an expert.

    They are of the tokens here. `choice` and `keep` (G, S, E) and the router's scores `z` (G, S, R), None without a router, are of whole
    groups: what the backward needs. `way` is what dispatch does.
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
    """h (B*T, D), of all ranks that cut rows -> the routing; what it saw is counted."""
    place = _place(h, at, name)
    moe, gate, xp = place.moe, GATES[place.moe.gate], place.xp
    z = None
    if gate.ROUTER:  # 1
        x, weight, _ = _read(h, w, place, _here(at, xp))
        z = at.frame.scores.whole(linear.forward(x, weight)[0], at).reshape(place.groups, place.tokens, -1)
    choice = gate.choose(z, w.get("moe.router.bias"), place)  # 2
    keep = kept(choice, place)  # 3
    values = weights(choice.scores, _over(choice, keep, moe), keep) * moe.scale  # 4
    n, here = len(h), _here(at, xp)
    mine = _by_token(keep)[here]
    at_rows = xp.flatnonzero(xp.ascontiguousarray(mine.T))  # 5
    experts, tokens = at_rows // n, at_rows % n
    counts = tuple(mine.sum(axis=0).tolist())
    most = None if moe.capacity is None else place.groups * limit(moe.capacity, place.tokens, moe.experts, moe.k, at.training)
    way = at.frame.dispatch.plan(counts, most, at, name)
    routing = Routing(tokens, experts, _by_token(values)[here][tokens, experts].astype(h.dtype), counts, choice, keep, z, way)
    if at.training:
        at.frame.tally.add(at.step, at.first, name, _seen(routing, place, at))
    return routing


def backward(dweights: Any, routing: Routing, h: Any, w: dict[str, Any], sink: Sink, at: Microbatch, name: str) -> Any:
    """dweights (A,), h (this rank's rows of B*T, D) -> dh (the same rows, D) through the router, with the auxiliary losses."""
    place = _place(h, at, name)
    moe, gate, choice, keep, e = place.moe, GATES[place.moe.gate], routing.choice, routing.keep, place.moe.experts
    here = _here(at, place.xp)
    rows = at.rows if isinstance(here, slice) else here[at.rows]
    dense = place.xp.zeros((place.groups * place.tokens, e), place.dtype)
    dense[routing.tokens if isinstance(here, slice) else here[routing.tokens], routing.experts] = dweights * moe.scale
    over = _over(choice, keep, moe)
    dscores = weights_backward(dense.reshape(keep.shape), choice.scores, over, keep)  # 4
    dz = gate.backward(dscores, choice, place)  # 2
    balance, z_loss = coefficients(moe, at)
    if at.training and balance:
        dz = dz + balance * gate.balance_backward(choice, place)
    if at.training and z_loss:
        dz[..., :e] += z_loss * losses.z_loss_backward(routing.z[..., :e])
    dz = _by_token(dz)[rows].astype(place.dtype, copy=False)
    x, weight, u = _read(h, w, place, rows)
    dx, held = linear.backward_input(dz, x, weight)  # 1
    sink("moe.router", _backward_weight, (*held, _excess(choice, moe, rows) if "moe.router.bias" in w else None))
    return (dx if u is None else dx * u).astype(h.dtype, copy=False)


def _read(h: Any, w: dict[str, Any], place: Place, rows: Any) -> tuple[Any, Any, Any]:
    """What step 1 multiplies, h u and W, in the router's precision, and u or None; h are `rows` of those of whole samples."""
    u = jitter.factors(place, h.shape[1])
    x, weight = (a.astype(place.dtype, copy=False) for a in (h, w["moe.router.weight"]))
    return (x, weight, None) if u is None else (x * u[rows], weight, u[rows])


def coefficients(moe: Moe, at: Microbatch) -> tuple[float, float]:
    """What a group's balance and z-loss are multiplied by: the coefficient over the number of groups of the whole global batch."""
    balance = GATES[moe.gate].BALANCE if moe.balance is None else moe.balance
    groups = (at.batch or at.samples) / moe.group
    return balance / groups, moe.z_loss / groups


def _place(h: Any, at: Microbatch, name: str) -> Place:
    moe, xp = at.frame.model.moe, array_module(h)
    assert moe is not None
    size = min(moe.group, at.samples)
    groups, tokens = at.samples // size, size * at.length
    first = at.first * at.length
    wide = np.promote_types(h.dtype, np.float32)
    return Place(moe, xp, wide, groups, tokens, first, at.length, at.frame.seed, name, at.step, at.training)


def _here(at: Microbatch, xp: Any) -> Any:
    """What selects the B*T tokens here from those of whole samples."""
    places = at.places(xp)
    return slice(None) if places is None else places


def _by_token(a: Any) -> Any:
    """a (G, S, E) -> (G*S, E)."""
    return a.reshape(-1, a.shape[-1])


def _over(choice: Choice, keep: Any, moe: Moe) -> Any:
    """What weights are divided by the sum of: wanted or kept scores, or None. A choice that chance leaves out still divides."""
    how = moe.normalise or GATES[moe.gate].NORMALISE
    return {"none": None, "before": choice.order < moe.k, "after": keep}[how]


def _excess(choice: Choice, moe: Moe, rows: Any) -> Any:
    """(E,): E times the choices of each expert by some rows, less the choices of all, which is exact: the sum's sign says who has many."""
    counts = (_by_token(choice.order)[rows] < moe.k).sum(axis=0)
    return moe.experts * counts - counts.sum()


def _backward_weight(held: tuple, dw: Any, excess_sum: Any, add: bool) -> None:
    """The W of step 1; in the place of the selection bias's gradient stands what its rule needs."""
    h, dz, excess = held
    linear.backward_weight((h, dz), dw, None, add)
    if excess is not None:
        put(excess_sum, excess.astype(excess_sum.dtype), add)


def _seen(routing: Routing, place: Place, at: Microbatch) -> Seen:
    moe, choice, xp = place.moe, routing.choice, place.xp
    gate, e, here = GATES[moe.gate], moe.experts, _here(at, xp)
    p = _by_token(choice.scores)[here]
    p = p / p.sum(axis=-1, keepdims=True)
    entropy = -(p * xp.log(xp.maximum(p, 1e-30))).sum()
    alone = (~_by_token(routing.keep)[here].any(axis=-1)).sum()
    chooses = moe.gate == "expert-choice"
    asked = None
    if not chooses and moe.capacity is not None:
        asked = tuple(_by_token(wanted(choice, moe.k))[here].sum(axis=0).tolist())
    dropped = alone if chooses else sum(asked or routing.counts) - sum(routing.counts)
    balance, z_loss = coefficients(moe, at) if at.frame.scores.counts else (0.0, 0.0)
    lost = balance * gate.balance(choice, place).sum() if gate.ROUTER and balance else 0.0
    z = z_loss * losses.z_loss(routing.z[..., :e]).sum() if gate.ROUTER and z_loss else 0.0
    return Seen(routing.counts, dropped, alone, entropy, at.samples * at.positions, lost, z, asked)
