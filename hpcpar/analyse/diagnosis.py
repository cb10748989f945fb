"""What costs most of a step, in plain words, and which setting would change it: a table of rules over the report.

    a step   |== arithmetic at the machine's rate ==|= slower arithmetic =|recompute|update|    compute of the mean rank
             |.. others work more ..|                                                           imbalance: the busiest rank above the mean
             |.. bubble ..|.. messages ..|.. collectives ..|.. copies ..|.. i/o ..|.. rest ..|  what the busiest rank stands still for

The three rows together are a step as the rank that computes longest sees it. Each rule is a function of the report: the share of the mean
step that it explains, a sentence and a setting; None where the report lacks what it needs. What costs under 1 % is not worth a line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hpcpar.mesh import Mesh
from hpcpar.schedule.closed_forms import ASYNCHRONOUS, bubble_total

LEAST = 0.01  # of a step
UNEVEN = 1.2  # tokens of the busiest expert over their mean, from which they are a cause
Report = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """A share of the mean step (0 to 1), its seconds, what it is and what would change it."""

    name: str
    share: float
    seconds: float
    sentence: str
    setting: str


def diagnosis(report: Report) -> list[dict[str, Any]]:
    """The findings of all rules that cost at least LEAST, the costliest first; empty without steps or shares."""
    if not report["steps"]["count"] or not report["shares"]:
        return []
    step_s = report["steps"]["mean_s"]
    found = [(name, rule(report)) for name, rule in RULES.items()]
    costly = [Finding(name, f[0], f[0] * step_s, f[1], f[2]) for name, f in found if f is not None and f[0] >= LEAST]
    return [asdict(f) for f in sorted(costly, key=lambda f: (-f.share, f.name))]


Cost = tuple[float, str, str] | None


def arithmetic(report: Report) -> Cost:
    """Compute that the same arithmetic at the machine's own matrix rate would not take."""
    fraction = (report["throughput"] or {}).get("fraction")
    if fraction is None:
        return None
    inside = _mean(report, "compute") - _mean(report, "recompute") - _mean(report, "update")
    reached = f"while they compute, ranks reach {fraction / inside:.0%} of the machine's matrix rate" if inside > 0 else ""
    return (
        inside - fraction,
        reached,
        "wider layers (model.width) or more samples a microbatch (train.batch, fewer plan.microbatches): small operations are slow",
    )


def recompute(report: Report) -> Cost:
    """Forwards that are done twice."""
    return _busiest(report)["recompute"], "forwards are computed a second time to save memory", 'plan.recompute = "none", if the stash fits'


def update(report: Report) -> Cost:
    """The optimizer."""
    plan = report["run"]["plan"] or {}
    cut = plan.get("dp", 1) > 1 and not plan.get("zero") and (plan.get("sync") or {}).get("mode", "bsp") == "bsp"
    setting = "plan.zero = 1: each replica updates its part alone" if cut else "plan.accumulate: fewer updates for the same samples"
    return _busiest(report)["update"], "ranks update their weights", setting


def imbalance(report: Report) -> Cost:
    """How much longer the busiest rank computes than the mean one: the others wait for it."""
    busiest, mean = _busiest(report), _mean(report, "compute")
    rank = busiest["rank"]
    says = f"rank {rank} computes {busiest['compute']:.0%} of a step, the mean rank {mean:.0%}: the others wait for it"
    return busiest["compute"] - mean, says, _evener(report, rank)


def bubble(report: Report) -> Cost:
    """What the schedule itself lets ranks wait for: filling and draining."""
    share, plan = _bubble(report), report["run"]["plan"]
    if not share:
        return None
    name, p, m, v = plan["schedule"], plan["pp"], plan.get("microbatches", 1), plan.get("chunks", 1)
    says = f"the pipeline fills and drains: {name} with {m} microbatch{'es' * (m > 1)} on {p} stages"
    now, then = bubble_total(name, p, m, v), bubble_total(name, p, 2 * m, v)
    more = f"plan.microbatches = {2 * m}"
    if now and then is not None:
        more += f" (by the closed form {then:.0%} of the pipeline's time, not {now:.0%})"
    other = "zb-h1" if name in ("naive", "gpipe", "1f1b") else "zb-v"
    return share, says, more if name == other else f'{more}, or plan.schedule = "{other}" (hpcpar draw shows what it would do)'


def messages(report: Report) -> Cost:
    """Messages that the busiest rank waits for beyond the bubble."""
    row = _busiest(report)
    share = max(0.0, row["wait_messages"] + row["send_receive"] - _bubble(report))
    kind, axis = _most(report, "message")
    where = {
        "pp": "neighbouring stages on one node (plan.order), fewer stages, or fewer and larger microbatches",
        "cp": 'context ranks on one node, or plan.context = "gather", which sends once',
        "ep": "plan.experts.overlap: the exchange of one chunk under the compute of another",
    }
    setting = where.get(axis, "ranks that exchange most on one node (plan.order)")
    return share, f"messages are late: rank {row['rank']} waits for them beyond the bubble, mostly {kind} along {axis}", setting


def collectives(report: Report) -> Cost:
    """Collectives that nothing hides."""
    row, plan = _busiest(report), report["run"]["plan"] or {}
    kind, axis = _most(report, "collective")
    where = {
        "dp": "plan.accumulate: fewer sums for the same samples; plan.sync.bucket_mb: an earlier start; plan.sync.compress: fewer bytes",
        "tp": "tensor-parallel ranks on one node (plan.order), or less plan.tp and more plan.dp or plan.pp",
        "cp": 'less plan.cp, or plan.context = "zig-zag", whose messages compute hides',
        "ep": "plan.experts.overlap: the exchange of one chunk under the compute of another; less plan.ep",
    }
    setting = where.get(axis, "fewer of them: plan.accumulate")
    if kind == "average":
        setting = "plan.sync.every: more steps between averages"
    elif axis == "dp" and plan.get("zero", 0) == 3:
        setting = "plan.zero = 2: weights are not gathered again for each forward; plan.accumulate"
    clocks = sum(w["wait_clock"] or 0.0 for w in report["workers"] if w["rank"] == row["rank"])
    share = max(0.0, row["wait_collectives"] - clocks) + row["collective"]
    return share, f"rank {row['rank']} waits for collectives, mostly {kind} along {axis}", setting


def copies(report: Report) -> Cost:
    """Copies between host and device that nothing hides."""
    row = _busiest(report)
    says = f"rank {row['rank']} waits for copies between host and device"
    return (
        row["wait_copies"] + row["copy"],
        says,
        "plan.offload: a larger device_mb, or only what does not fit (optimizer before activations)",
    )


def files(report: Report) -> Cost:
    """Reading and writing inside steps."""
    return _busiest(report)["io"], "ranks read or write files inside steps", "run.checkpoint_every: more seldom; a faster folder for --out"


def rest(report: Report) -> Cost:
    """What no event covers and no bubble explains."""
    row = _busiest(report)
    share = row["idle"] - max(0.0, _bubble(report) - row["wait_messages"] - row["send_receive"])
    says = f"rank {row['rank']} does between its actions what no event covers: the interpreter, batches, other programs on its cores"
    return share, says, "fewer and larger microbatches, or larger layers; run.threads no more than the cores of a rank"


def experts(report: Report) -> Cost:
    """Waiting for ranks that come late to the exchange of experts, where tokens are spread unevenly: part of what other rules name."""
    late_s = (report["waiting"] or {}).get("late_experts_s", 0.0)
    uneven = [(row["end"]["imbalance"], -row["block"]) for row in report["experts"] if (row["end"]["imbalance"] or 0) >= UNEVEN]
    if not late_s or not uneven:
        return None
    times, block = max(uneven)
    busiest = f"in block {-block} the busiest expert has {times:.2f} x the mean tokens"
    says = f"ranks come late to exchanges of experts, and others wait: {busiest}"
    setting = "model.moe.balance: a larger coefficient spreads tokens evenly; a smaller model.moe.capacity factor bounds the busiest expert"
    return late_s / len(report["shares"]) / report["steps"]["mean_s"], says, setting


def clocks(report: Report) -> Cost:
    """Waiting for slower workers where staleness is bounded."""
    waits = [row["wait_clock"] for row in report["workers"] if row["wait_clock"]]
    share = sum(waits) / len(report["workers"]) if waits else 0.0
    return share, "workers wait for the clocks of slower ones", 'plan.sync.staleness: a larger bound, or mode = "asp", which has none'


def unsteady(report: Report) -> Cost:
    """How much faster all steps would be if each were as fast as the fastest; nothing is said of workers with clocks of their own."""
    s = report["steps"]
    if any(row["staleness_mean"] is not None for row in report["workers"]):
        return None
    says = f"steps take {s['min_s'] * 1e3:.4g} to {s['max_s'] * 1e3:.4g} ms: something disturbs most of them"
    return (
        (s["mean_s"] - s["min_s"]) / s["mean_s"],
        says,
        "cores of its own for each rank (hpcpar doctor shows the binding); a quiet machine",
    )


RULES: dict[str, Callable[[Report], Cost]] = {
    rule.__name__: rule
    for rule in (arithmetic, recompute, update, imbalance, bubble, messages, collectives, copies, files, rest, experts, clocks, unsteady)
}


def _busiest(report: Report) -> dict[str, Any]:
    return max(report["shares"], key=lambda row: (row["compute"], -row["rank"]))


def _mean(report: Report, name: str) -> float:
    return sum(row[name] for row in report["shares"]) / len(report["shares"])


def _bubble(report: Report) -> float:
    """The schedule's own bubble as a share of the mean step: by the clock with measured times, by the closed form where that is not known,
    as measured where neither is; 0 where there is none."""
    found, plan = report["bubble"], report["run"]["plan"]
    if not found or not plan or plan.get("pp", 1) == 1 or plan.get("schedule") in (None, *ASYNCHRONOUS):
        return 0.0
    of = found["clock"] or found
    idle_s = of["cost_s"] - of["work_s"]
    if not found["clock"] and found["closed_form"]:
        idle_s = found["closed_form"]["bubble_ideal"] * found["work_s"]
    row = _busiest(report)
    stood = row["wait_messages"] + row["send_receive"] + row["idle"]
    return min(stood, idle_s / report["steps"]["mean_s"])


def _most(report: Report, kind: str) -> tuple[str, str]:
    """(operation, axis) of the kind, message or collective, that ranks wait for longest; of most bytes where they wait for none."""
    waits = [row for row in (report["waiting"] or {}).get("operations", ()) if row["kind"] == kind]
    if waits:
        return waits[0]["operation"], waits[0]["axis"]
    rows = [row for row in report["volumes"]["operations"] if row["kind"] == {"message": "send"}.get(kind, kind)]
    most = max(rows, key=lambda row: (row["bytes"] or 0, row["calls"]), default={"operation": f"{kind}s", "axis": "any axis"})
    return most["operation"], most["axis"]


def _evener(report: Report, rank: int) -> str:
    """What would share the work more evenly: between stages, or between ranks that should do the same."""
    plan = report["run"]["plan"] or {}
    slow = f"look at the host of rank {rank}: it should do what the others do (hpcpar doctor)"
    if plan.get("pp", 1) == 1 or plan.get("replicas") or "order" not in plan:
        return slow
    mesh = Mesh(tuple(plan["order"]), tuple(plan[axis] for axis in plan["order"]))
    stages = {row["rank"]: mesh.coordinates(row["rank"])["pp"] for row in report["shares"]}
    mean: dict[int, list[float]] = {}
    for row in report["shares"]:
        mean.setdefault(stages[row["rank"]], []).append(row["compute"])
    between = max(sum(x) / len(x) for x in mean.values()) - _mean(report, "compute")
    within = _busiest(report)["compute"] - sum(mean[stages[rank]]) / len(mean[stages[rank]])
    return "plan.stages: the cut that hpcpar profile and hpcpar partition choose" if between >= within else slow
