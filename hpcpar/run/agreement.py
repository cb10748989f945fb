"""Is what several ranks hold the same on all of them? Every train.check_replicas steps each rank hashes its weights and optimizer state.

    rank 0   weights norm.gain  3f0a..   weights blocks.0.mlp.up.weight [0:96]    77c1..
    rank 1   weights norm.gain  3f0a..   weights blocks.0.mlp.up.weight [96:192]  90be..     another box: another array
    rank 2   weights norm.gain  b2d4..                                                       of one box: must be equal

What has one kind, name and box is one array, whatever the reason for which several ranks hold it: data parallelism, copies of a stage,
parameters that tensor parallelism does not cut, key/value heads that several ranks share, a tied weight at both ends of a pipeline.
Optimizer state is left out where each replica has its own or a shard of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from hpcpar.errors import Aborted
from hpcpar.ops.array import host_array
from hpcpar.run.trainer import Trainer

Key = tuple[bool, str, str, tuple[tuple[int, int], ...]]  # not a weight, name, kind, box: sorted, weights come first, by name


class Diverged(Exception):
    """What must be equal on several ranks is not."""


def check(trainer: Trainer) -> None:
    """Compare the hashes of all ranks; collective. Raises Diverged on rank 0, which names the first array, the ranks and the step."""
    world = trainer.world
    found = world.gather(dict(_hashes(trainer)))
    text = world.share(_difference(found, trainer.steps) if found is not None else None)
    if text:
        raise Diverged(text) if world.rank == 0 else Aborted(text)


def _hashes(trainer: Trainer) -> Iterator[tuple[Key, bytes]]:
    for part in trainer.parts.values():
        kinds: dict[str, Mapping[str, Any]] = {"weights": part.weights_by_name(), **(part.state_by_name() if trainer.shares_state else {})}
        for kind, views in kinds.items():
            for name, view in views.items():
                box = tuple((s.start, s.stop) for s in part.map.parameters[name].slices)
                raw = host_array(view.reshape(-1)).view("uint8").data
                yield (kind != "weights", name, kind, box), hashlib.blake2b(raw, digest_size=16).digest()


def _difference(found: list[dict[Key, bytes]], step: int) -> str:
    """What is to be said of the first array whose hashes differ; nothing where all agree."""
    for key in sorted(set().union(*found)):
        ranks: dict[bytes, list[int]] = {}
        for rank, mine in enumerate(found):
            if key in mine:
                ranks.setdefault(mine[key], []).append(rank)
        if len(ranks) > 1:
            _, name, kind, _ = key
            most, *others = sorted(ranks.values(), key=lambda r: (-len(r), r))
            odd = " and ".join(_named(r) for r in others)
            return f"after step {step} the {kind} of {name} on {odd} differ from those on {_named(most)}; they must be equal"
    return ""


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
