"""Pipelines as data: what every rank does, in order; proven, timed and drawn from the same lists that run."""

from hpcpar.schedule.action import Action, Kind, parse
from hpcpar.schedule.check import check
from hpcpar.schedule.clock import Times, Timing, clock
from hpcpar.schedule.generate import SCHEDULES, flow, generate, require_common_version
from hpcpar.schedule.lower import lower, stream
from hpcpar.schedule.program import Program, Schedule

__all__ = [
    "SCHEDULES",
    "Action",
    "Kind",
    "Program",
    "Schedule",
    "Times",
    "Timing",
    "check",
    "clock",
    "flow",
    "generate",
    "lower",
    "parse",
    "require_common_version",
    "stream",
]
