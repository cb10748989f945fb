"""What a rank holds for Psi parameters over N replicas, by kind, as the ZeRO paper counts it (Rajbhandari et al. 2020, section 3).

    zero          0     1     2     3          with bytes a parameter of    float32   float64   float16 (mixed, the paper's)
    parameters    Psi   Psi   Psi   Psi/N                                   4         8         2
    gradients     Psi   Psi   Psi/N Psi/N                                   4         8         2
    optimizer     Psi   Psi/N Psi/N Psi/N      Adam: two moments            4 + 4     8 + 8     4 + 4, and 4 for a master copy

Arrays that the formula does not know, such as buckets on their way, are named and counted beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

KINDS = {"parameters": 3, "gradients": 2, "optimizer": 1}  # and the plan.zero from which each is cut over the replicas


@dataclass(frozen=True)
class Policy:
    """Bytes of one parameter, of its gradient, of each state of the optimizer, and of a master copy that the optimizer keeps."""

    parameters: int
    gradients: int
    state: int
    master: int = 0

    def coefficients(self, states: int) -> dict[str, int]:
        """Bytes a parameter by kind, for an optimizer with so many states."""
        return {"parameters": self.parameters, "gradients": self.gradients, "optimizer": states * self.state + self.master}


POLICIES = {"float32": Policy(4, 4, 4), "float64": Policy(8, 8, 8), "float16": Policy(2, 2, 4, 4)}


def share(kind: str, zero: int, owners: int) -> Fraction:
    """The part of a kind that a rank holds: all of it, or 1/N."""
    return Fraction(1, owners) if zero >= KINDS[kind] else Fraction(1)


def formula_bytes(coefficients: Mapping[str, int], zero: int, elements: int, owners: int) -> dict[str, float]:
    """Bytes by kind that a rank holds of a stage of so many parameters."""
    return {kind: float(c * elements * share(kind, zero, owners)) for kind, c in coefficients.items()}


def formula(coefficients: Mapping[str, int], zero: int) -> str:
    """The sum over kinds in letters: 4Ψ + 12Ψ/N."""
    whole = sum(c for kind, c in coefficients.items() if zero < KINDS[kind])
    cut = sum(c for kind, c in coefficients.items() if zero >= KINDS[kind])
    return " + ".join([f"{whole}Ψ"] * bool(whole) + [f"{cut}Ψ/N"] * bool(cut))
