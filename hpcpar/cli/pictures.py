"""The pictures of `hpcpar analyse --png F --picture NAME`: what each takes from the traces, and who draws it. To add one, add a function.

timeline    some steps, a lane a rank                           analyse/steps.py      draw/timeline.py
memory      what ranks hold over time, by kind                  analyse/memory.py     draw/memory.py
messages    bytes by pair of ranks                              analyse/exchange.py   draw/messages.py
scaling     tokens/s of several runs against their ranks        analyse/report.py     draw/scaling.py
bubble      of every schedule against its microbatches          schedule/clock.py     draw/bubble.py
experts     tokens of each expert, step by step, by block       analyse/experts.py    draw/experts.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hpcpar.errors import PlanError

if TYPE_CHECKING:
    from hpcpar.trace import Trace

Picture = Callable[["Sequence[Trace]", "str | None", str], str]  # (traces, --step, file) -> what is drawn, in words


def timeline(traces: Sequence[Trace], step: str | None, path: str) -> str:
    """Some steps of one run."""
    from hpcpar.analyse.steps import chosen_steps, of_steps, steps
    from hpcpar.draw.timeline import timeline as draw

    trace = only(traces, "timeline")
    found = steps(trace)
    first, last = chosen_steps(trace, found, step)
    words = f"step {first}" if first == last else f"steps {first} to {last}"
    start, end, lanes = of_steps(trace, found, first, last)
    draw(lanes, trace.ranks, start, end, f"{trace.folder.resolve().name}, {words}", path)
    return words


def memory(traces: Sequence[Trace], step: str | None, path: str) -> str:
    """What the ranks of one run held over time."""
    from hpcpar.analyse.memory import samples
    from hpcpar.analyse.steps import chosen_steps, steps
    from hpcpar.draw.memory import memory as draw

    trace = only(traces, "memory")
    chosen = None if step is None else chosen_steps(trace, steps(trace), step)
    words = "" if chosen is None else f", step {chosen[0]}" if chosen[0] == chosen[1] else f", steps {chosen[0]} to {chosen[1]}"
    draw(samples(trace, chosen), f"{trace.folder.resolve().name}{words}: bytes held", path)
    return f"memory over time{words}"


def messages(traces: Sequence[Trace], step: str | None, path: str) -> str:
    """Who sent how much to whom in a step of one run."""
    from hpcpar.analyse.exchange import between
    from hpcpar.analyse.steps import steps
    from hpcpar.analyse.volumes import volumes
    from hpcpar.draw.messages import messages as draw

    trace = only(traces, "messages")
    every_step(step, "messages")
    found = steps(trace)
    title = f"{trace.folder.resolve().name}: messages of a step"
    draw(between(trace, found, volumes(trace, found)["pairs"]), trace.ranks, len(found.numbers), title, path, tuple(trace.missing))
    return "bytes by pair of ranks"


def scaling(traces: Sequence[Trace], step: str | None, path: str) -> str:
    """Tokens a second of several runs against their ranks."""
    from hpcpar.analyse.report import report
    from hpcpar.draw.scaling import scaling as draw

    every_step(step, "scaling")
    draw([_point(trace.folder.resolve().name, report(trace)) for trace in traces], path)
    return f"the scaling of {len(traces)} runs"


def bubble(traces: Sequence[Trace], step: str | None, path: str) -> str:
    """The bubble of every schedule on the stages of one run, with what the run measured."""
    from hpcpar.analyse.bubble import bubble as measured
    from hpcpar.analyse.bubble import mean_times
    from hpcpar.analyse.steps import steps
    from hpcpar.analyse.throughput import config
    from hpcpar.draw.bubble import bubble as draw

    trace = only(traces, "bubble")
    every_step(step, "bubble")
    described, all_steps = config(trace), steps(trace)
    if described is None or described.plan.pp == 1:
        raise PlanError(f"{trace.folder} has no pipeline: a bubble needs plan.pp of 2 or more")
    p, found = described.plan, measured(trace, all_steps)
    point = (p.schedule, p.microbatches, found["bubble_total"]) if found and found["bubble_total"] is not None else None
    draw(p.pp, mean_times(trace, all_steps), point, f"{trace.folder.resolve().name}: bubble of {p.pp} stages", path)
    return f"the bubble of every schedule on {p.pp} stages"


def experts(traces: Sequence[Trace], step: str | None, path: str) -> str:
    """All steps of one run with mixtures of experts."""
    from hpcpar.analyse.experts import heat
    from hpcpar.draw.experts import heat_map

    trace = only(traces, "experts")
    every_step(step, "experts")
    blocks = heat(trace)
    heat_map(blocks, f"{trace.folder.resolve().name}: tokens of each expert", path)
    return f"the load of the experts of {len(blocks)} block{'s' * (len(blocks) != 1)}"


PICTURES: dict[str, Picture] = {
    "timeline": timeline,
    "memory": memory,
    "messages": messages,
    "scaling": scaling,
    "bubble": bubble,
    "experts": experts,
}


def only(traces: Sequence[Trace], name: str) -> Trace:
    """The one run of a picture of one run; raises PlanError where there are several."""
    if len(traces) > 1:
        raise PlanError(f"--png draws one run as {name}, {len(traces)} are given; call analyse for each of them")
    return traces[0]


def every_step(step: str | None, name: str) -> None:
    """Raises PlanError for a step where a picture shows all."""
    if step is not None:
        raise PlanError(f"--step {step}: the picture {name} shows every step; leave --step out")


def _point(name: str, report: dict) -> dict:
    """What the scaling picture needs of a run."""
    rate = report["throughput"] or {}
    return {"name": name, "ranks": report["run"]["ranks"], "tokens_per_s": rate.get("tokens_per_s"), "tokens": rate.get("tokens_per_step")}
