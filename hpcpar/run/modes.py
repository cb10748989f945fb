"""How data-parallel replicas are kept together: the trainer of each mode."""

from __future__ import annotations

from hpcpar.run.asynchronous import Asynchronous
from hpcpar.run.local import Local
from hpcpar.run.stale import Stale
from hpcpar.run.synchronous import Synchronous
from hpcpar.run.trainer import Trainer

TRAINERS: dict[str, type[Trainer]] = {"bsp": Synchronous, "local": Local, "ssp": Stale, "asp": Stale}


def trainer_for(mode: str, synchronous: bool) -> type[Trainer]:
    """The trainer of plan.sync.mode for a schedule with (`synchronous`) or without flushes."""
    return TRAINERS[mode] if synchronous else Asynchronous
