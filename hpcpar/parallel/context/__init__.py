"""Context parallelism: the ranks of a cp group hold positions of the same samples, and attention runs over all of them.

Each form is an attention that stands where `ops.attention` stands in a block: a file a form. What is where is in `forms.context`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpcpar.comm.world import Group
from hpcpar.config import Config
from hpcpar.forms import context
from hpcpar.nn.context import Frame
from hpcpar.parallel.context.gather import Gather
from hpcpar.parallel.context.ring import Ring
from hpcpar.parallel.context.ulysses import Ulysses

FORMS: dict[str, Any] = {"zig-zag": Ring, "ring": Ring, "gather": Gather, "ulysses": Ulysses}


def frame(config: Config, group: Group | None, xp: Any) -> Frame:
    """The frame of a run whose samples are cut over `group`; None: they are whole."""
    model, seed, dtype = config.model, config.train.seed, config.train.precision
    if group is None:
        return Frame.of(model, seed, xp, dtype)
    form = config.plan.context
    held = context.runs(form, model.context, group.size, group.index)
    return replace(Frame.of(model, seed, xp, dtype, held), attention=FORMS[form](group, form, model.context))
