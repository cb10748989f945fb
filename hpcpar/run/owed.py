"""What compression owes, into a checkpoint and back.

    owed.0, owed.1, ...     what each rank of a stage's replicas left out, by parameter       powersgd.factor     Q, the same on all

Owed gradients add up: of another number of replicas, rank i takes what ranks i, i + N, ... of before owed, so that nothing is lost. The two
uses of a tied weight that stand on two stages owe apart; on one stage together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcpar.checkpoint import Checkpoint
from hpcpar.checkpoint.boxes import whole
from hpcpar.checkpoint.store import Tensor
from hpcpar.errors import PlanError
from hpcpar.ops.array import host_array
from hpcpar.parallel.compress import Compressed
from hpcpar.parallel.compress.powersgd import PowerSGD
from hpcpar.run.part import Part

OWED, FACTOR = "owed.", "powersgd.factor"
HEAD = "tokens.weight of the head"


def compressed_parts(parts: Mapping[int, Part]) -> Iterator[tuple[Part, Compressed]]:
    """The parts whose gradients are compressed, and what compresses them."""
    for part in parts.values():
        if isinstance(part.buckets, Compressed):
            yield part, part.buckets


def tensors(parts: Mapping[int, Part]) -> Iterator[Tensor]:
    """What this rank owes, and its turn of what all hold."""
    for part, compressed in compressed_parts(parts):
        codec, group = compressed.codec, compressed.group
        if codec.memory:
            for name, view in part.map.by_name(codec.memory.owed).items():
                yield f"{OWED}{group.index}", _name(part, name), view.shape, whole(view.shape), host_array(view)
        if isinstance(codec, PowerSGD):
            for i, (name, q) in enumerate(codec.factors.items()):
                if i % group.size == group.index:
                    yield FACTOR, _name(part, name), q.shape, whole(q.shape), host_array(q)


def restore(parts: Mapping[int, Part], found: Checkpoint) -> None:
    """Take over what a checkpoint owes; raises PlanError where there is no one to owe it, or its factors have another rank."""
    kinds = sorted((k for k in found.kinds() if k.startswith(OWED)), key=lambda k: int(k.removeprefix(OWED)))
    debtors = {part.index: c for part, c in compressed_parts(parts) if c.codec.memory}
    if kinds and len(debtors) < len(parts):
        before = found.fields["config"]["plan"]["sync"]["compress"]
        raise PlanError(
            f"{found.path} owes gradients that {before} left out on {len(kinds)} ranks, and this plan's plan.sync.compress remembers none; "
            f'resume with mode = "bsp", compress = "{before}"'
        )
    for index, compressed in debtors.items():
        part, codec, group = parts[index], compressed.codec, compressed.group
        assert codec.memory
        for kind in kinds[group.index :: group.size]:
            for name, view in part.map.by_name(codec.memory.owed).items():
                for source in _sources(part, name, found.names(kind)):
                    view += part.xp.asarray(found.read(kind, source), dtype=view.dtype)
        if isinstance(codec, PowerSGD) and found.names(FACTOR):
            _restore_factors(part, codec, found)


def _restore_factors(part: Part, codec: PowerSGD, found: Checkpoint) -> None:
    for name, q in codec.factors.items():
        source = next(iter(_sources(part, name, found.names(FACTOR))), name)
        rank = found.shape(FACTOR, source)[1] if source in found.names(FACTOR) else 0
        if rank != q.shape[1]:
            raise PlanError(
                f"{found.path} holds factors of {rank} columns for {name}, plan.sync.rank = {q.shape[1]}; resume with the rank that made it"
            )
        part.put(q, found.read(FACTOR, source))


def _name(part: Part, name: str) -> str:
    return HEAD if name == "tokens.weight" and not part.stage.first else name


def _sources(part: Part, name: str, known: list[str]) -> list[str]:
    """Under which names a checkpoint holds what belongs to a parameter of a part."""
    wanted = [_name(part, name)]
    if name == "tokens.weight" and part.map.twice:
        wanted.append(HEAD)
    return [n for n in wanted if n in known]
