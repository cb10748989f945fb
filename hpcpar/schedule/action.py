"""An action of a schedule and its text form.

    2F0      forward of microbatch 0 on stage 2             2D      reduction of stage 2's gradients over its replicas and copies
    2F5@3    the same of microbatch 5, with version 3       2D4     the same for the update that makes version 4
    2I5      backward, input half                           0T      exchange of stage 0's tied gradient with its other stage
    2W5      backward, weight half                          2N4     stage 2's share of the gradient norm of version 4
    2B5      both halves, operation by operation            2U      update
    2SA0>3   stage 2's output leaves for rank 3             2U4     update that makes version 4
    2RA0<1   stage 2's input arrives from rank 1
    2SG0>1   stage 2's input gradient leaves for rank 1
    2RG0<3   stage 2's output gradient arrives from rank 3

What reads a text form writes the same one again.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from hpcpar.errors import PlanError


class Kind(StrEnum):
    """What an action does."""

    F = "F"  # forward
    I = "I"  # backward, input half
    W = "W"  # backward, weight half
    B = "B"  # I then W, operation by operation
    U = "U"  # update
    SA = "SA"  # send an activation
    RA = "RA"  # receive an activation
    SG = "SG"  # send a gradient
    RG = "RG"  # receive a gradient
    D = "D"  # reduction of a stage's gradients over replicas and copies
    T = "T"  # exchange of tied gradients
    N = "N"  # share of the gradient norm


COMPUTE = frozenset({Kind.F, Kind.I, Kind.W, Kind.B})
_FORM = re.compile(r"(\d+)(?:(F|I|W|B)(\d+)(?:@(\d+))?|(U|D|T|N)(\d+)?|(SA|SG)(\d+)>(\d+)|(RA|RG)(\d+)<(\d+))")


class Action(NamedTuple):
    """One action of one rank.

    `microbatch` is None for U, D, T and N; `version` is the weights that F, I, W or B use, or the version that U makes (D, T and N
    serve); `peer` is the other pipeline rank of a message.
    """

    kind: Kind
    stage: int
    microbatch: int | None = None
    version: int | None = None
    peer: int | None = None

    def __str__(self) -> str:
        kind, stage, k, version, peer = self
        if k is None:
            return f"{stage}{kind.value}{'' if version is None else version}"
        at = "" if version is None else f"@{version}"
        to = "" if peer is None else f"{'>' if kind in (Kind.SA, Kind.SG) else '<'}{peer}"
        return f"{stage}{kind.value}{k}{at}{to}"

    def _key(self) -> tuple[int, int, int, int, str]:
        return (self.stage, _low(self.microbatch), _low(self.version), _low(self.peer), self.kind.value)

    def __lt__(self, other: Action) -> bool:  # type: ignore[override]  # None sorts first
        return self._key() < other._key()

    def __le__(self, other: Action) -> bool:  # type: ignore[override]
        return self._key() <= other._key()

    def __gt__(self, other: Action) -> bool:  # type: ignore[override]
        return self._key() > other._key()

    def __ge__(self, other: Action) -> bool:  # type: ignore[override]
        return self._key() >= other._key()


def parse(word: str) -> Action:
    """Read the text form of one action; raises PlanError for anything else."""
    found = _FORM.fullmatch(word.strip())
    if not found:
        raise PlanError(f"{word.strip()!r} is no action; write one such as 2F0, 2B5@3, 2U4 or 2SA0>3")
    stage, compute, k, version, whole, made, send, sent, to, receive, received, source = found.groups()
    if compute:
        return Action(Kind(compute), int(stage), int(k), _int(version))
    if whole:
        return Action(Kind(whole), int(stage), None, _int(made))
    if send:
        return Action(Kind(send), int(stage), int(sent), None, int(to))
    return Action(Kind(receive), int(stage), int(received), None, int(source))


def _int(text: str | None) -> int | None:
    return None if text is None else int(text)


def _low(number: int | None) -> int:
    return -1 if number is None else number
