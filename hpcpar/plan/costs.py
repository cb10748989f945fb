"""What a cut of a model costs, term by term: the numbers that the partition makes as small as it can.

Layers l = 0 .. N - 1 with seconds T_l of a forward and backward of one minibatch, activations a_l and weights w_l in bytes. Level k joins
m_k components of the level below by links of B_k bytes/s; a component of level 0 is a worker. A stage on r components of level k takes

    T^k(i -> j, r) = 1/r max( A^(k-1)(i -> j, m_(k-1)), 2 (r - 1) sum w_l / B_k )        seconds a minibatch, A^0(i -> j) = sum T_l

and the border behind layer s 2 a_s / B_k (Narayanan et al. 2019, "PipeDream", section 3.1).

**Memory.** In steady state a stage with r replicas and c workers behind it has n = 1 + ceil(c / r) minibatches in flight on each replica:
PipeDream's warm-up, ceil(workers from this stage on / r). Each has its activations and, at most, weights of its own, so a worker holds

    n (sum w_l + sum stash_l) + sum w_l (gradients) + sum optimizer state of l        bytes

which is an upper bound for schedules that flush, whose weights have one version.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

from hpcpar.errors import PlanError
from hpcpar.layer_times import LayerTimes


@dataclass(frozen=True)
class Level:
    """`components` of the level below, joined by links of `bytes_per_s`."""

    components: int
    bytes_per_s: float = inf


@dataclass(frozen=True)
class Layers:
    """The layers of a profile, and what layers i .. j together hold."""

    names: tuple[str, ...]
    compute_s: tuple[float, ...]
    output_bytes: tuple[int, ...]
    weight_bytes: tuple[int, ...]
    stash_bytes: tuple[int, ...]
    optimizer_bytes: tuple[int, ...]

    @classmethod
    def of(cls, times: LayerTimes) -> Layers:
        """Those of a profile."""
        x = times.layers
        return cls(
            tuple(layer.name for layer in x),
            tuple(layer.compute_s for layer in x),
            tuple(layer.output_bytes for layer in x),
            tuple(layer.parameter_bytes for layer in x),
            tuple(layer.stash_bytes for layer in x),
            tuple(layer.optimizer_bytes for layer in x),
        )

    def __len__(self) -> int:
        return len(self.compute_s)

    def held_bytes(self, i: int, j: int, in_flight: int) -> int:
        """What a worker of a stage of layers i .. j holds with so many minibatches in flight."""
        part = slice(i, j + 1)
        weights = sum(self.weight_bytes[part])
        return in_flight * (weights + sum(self.stash_bytes[part])) + weights + sum(self.optimizer_bytes[part])


def in_flight(behind: int, replicas: int) -> int:
    """Minibatches that one of `replicas` holds at once, with `behind` workers after the stage."""
    return 1 + -(-behind // replicas)


def parse_levels(text: str, ranks: int) -> tuple[Level, ...]:
    """Read "4@1e9,2@1e10": 4 nodes joined at 1e9 bytes/s, of 2 ranks joined at 1e10 each; innermost first in the result.

    Raises PlanError where that is no such list, or where the product is not the number of ranks.
    """
    levels = []
    for item in text.split(","):
        count, sign, rate = item.partition("@")
        try:
            level = Level(int(count), float(rate))
        except ValueError:
            level = Level(0)
        if not sign or level.components < 1 or not level.bytes_per_s > 0:
            raise PlanError(f"--levels {text}: {item!r} is no count@bytes/s; write the outermost level first, as in 4@1e9,2@1e10")
        levels.append(level)
    total = prod(level.components for level in levels)
    if total != ranks:
        raise PlanError(f"--levels {text} joins {total} ranks, --ranks is {ranks}; their product must be the number of ranks")
    return tuple(reversed(levels))
