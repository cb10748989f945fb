"""What routing did, by (step, first sample, layer): counted once, when a microbatch is routed, and read at the end of its step."""

from __future__ import annotations

from typing import Any, NamedTuple


class Seen(NamedTuple):
    """The routing of one layer for one microbatch; arrays without dims are of the array module of the run."""

    tokens: tuple[int, ...]  # rows that each expert computes
    dropped: Any  # wanted assignments that found no place
    unrouted: Any  # tokens without any expert
    entropy: Any  # the sum over tokens, nats
    routed: int  # tokens
    balance: Any  # this microbatch's share of the step's auxiliary loss, with its coefficient
    z: Any  # and of its z-loss
    wanted: tuple[int, ...] | None = None  # assignments to each expert before the drop; none where experts choose, or nothing is dropped


class Tally:
    """Collects `Seen` until a step is settled."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int, str], Seen] = {}

    def add(self, step: int, first: int, name: str, seen: Seen) -> None:
        """Keep what a layer saw of a microbatch."""
        self._seen[step, first, name] = seen

    def take(self, step: int, name: str) -> list[Seen]:
        """What was seen in a step by a layer, in order of the samples; it is forgotten here."""
        keys = sorted(k for k in self._seen if k[0] == step and k[2] == name)
        return [self._seen.pop(k) for k in keys]
