"""Closed forms of the literature, each with the domain in which it holds, for stages of equal times and messages without latency.

p ranks, m microbatches (minibatches of an asynchronous schedule from drain to drain), v chunks; F, I and W are the times of a whole rank's
share of one microbatch (of one stage for the two-copy schedules). Outside its domain a form is None: then the clock alone says.

Idle time, that is cost - m (F + I + W):

    naive          (p - 1) m (F + I + W)
    gpipe, 1f1b    (p - 1)(F + I + W)              Huang et al. 2019; Narayanan et al. 2021; pipedream has it once, at fill and drain
    interleaved    (p - 1)(F + I + W) / v          Narayanan et al. 2021, section 2.2; p divides m
    zb-h1          (p - 1)(F + I - W)              Qi et al. 2024, table 2; m >= p, W <= F, W <= I
    zb-h2          (p - 1)(F + I - 2W)             the same; m >= 2p - 1
    zb-v           0                               the same, section 6; m >= 2p - 1, F = I = W
    dualpipe       (p/2 - 1)(F + 2I - W)           DeepSeek 2025 with F&B = F + I + W; even m >= 2p, W <= F = I
    dualpipe-v     (p - 1)(F + 2I - W) / 2         the same with 2p stages; m >= 2p, W <= F = I
    chimera        (p/2 - 1)(F + I + W)            Li and Hoefler 2021; p divides m, F = I + W
"""

from __future__ import annotations

from fractions import Fraction
from math import isclose

ASYNCHRONOUS = ("pipedream", "pipedream-vertical", "pipedream-2bw")


def idle(name: str, p: int, m: int, v: int = 1, F: float = 1.0, I: float = 1.0, W: float = 1.0) -> float | None:
    """The idle time of the rank with the longest span; None outside the domain."""
    whole, small = F + I + W, W <= F and W <= I
    same = isclose(F, I)
    if name == "naive":
        return (p - 1) * m * whole
    if name in ("gpipe", "1f1b", *ASYNCHRONOUS):
        return (p - 1) * whole
    if name == "interleaved":
        return (p - 1) * whole / v if m % p == 0 else None
    if name == "zb-h1":
        return (p - 1) * (F + I - W) if m >= p and small else None
    if name == "zb-h2":
        return (p - 1) * (F + I - 2 * W) if m >= 2 * p - 1 and small else None
    if name == "zb-v":
        return 0.0 if m >= 2 * p - 1 and same and isclose(I, W) else None
    if name == "dualpipe":
        return (p / 2 - 1) * (F + 2 * I - W) if m >= 2 * p and m % 2 == 0 and same and small else None
    if name == "dualpipe-v":
        return (p - 1) / 2 * (F + 2 * I - W) if m >= 2 * p and same and small else None
    if name == "chimera":
        return (p / 2 - 1) * whole if m % p == 0 and isclose(F, I + W) else None
    return None


def makespan(name: str, p: int, m: int, v: int = 1, F: float = 1.0, I: float = 1.0, W: float = 1.0) -> float | None:
    """From the first start to the last end of all ranks; None outside the domain.

    Where the last rank to start has no bubble, as in ZB-H2 and ZB-V, this can be more than the longest span of one rank.
    """
    waited = idle(name, p, m, v, F, I, W)
    if waited is None:
        return None
    start = {"zb-h2": (p - 1) * F, "zb-v": (p - 1) * F / 2}.get(name, 0.0)  # of the last rank, which never waits
    return m * (F + I + W) + max(waited, start)


def bubble_total(name: str, p: int, m: int, v: int = 1, F: float = 1.0, I: float = 1.0, W: float = 1.0) -> float | None:
    """Idle time over the whole; None outside the domain."""
    waited = idle(name, p, m, v, F, I, W)
    return None if waited is None else waited / (waited + m * (F + I + W))


def bubble_ideal(name: str, p: int, m: int, v: int = 1, F: float = 1.0, I: float = 1.0, W: float = 1.0) -> float | None:
    """Idle time over the work; None outside the domain."""
    waited = idle(name, p, m, v, F, I, W)
    return None if waited is None else waited / (m * (F + I + W))


def peak_stash(name: str, p: int, m: int, rank: int, v: int = 1) -> Fraction | None:
    """Microbatches from the start of F to the end of I on a rank at most, a chunk counting 1/v; None outside the domain."""
    if name == "naive":
        return Fraction(1)
    if name == "gpipe":
        return Fraction(m)
    if name in ("1f1b", "zb-h1", *ASYNCHRONOUS):
        return Fraction(min(p - rank, m))
    if name == "interleaved":
        ahead = min(2 * (p - rank - 1) + (v - 1) * p, m * v)
        return Fraction(min(ahead + 1, m * v), v) if m % p == 0 else None
    if name == "zb-h2":
        return Fraction(min(2 * (p - rank) - 1, m))
    if name == "zb-v":
        return Fraction(p) if m >= 2 * p - 1 else None
    if name == "dualpipe":
        return Fraction(p + 1) if m >= 2 * p and m % 2 == 0 else None
    if name == "dualpipe-v":
        return Fraction(2 * p + 1, 2) if m >= 2 * p else None
    if name == "chimera":
        return Fraction(p // 2 + 1 + min(rank, p - 1 - rank)) if m % p == 0 else None
    return None


def weight_versions(name: str, p: int, m: int, stage: int, updates: str = "lazy") -> int | None:
    """Weight versions that a stage of a straight pipeline holds at most; None outside the domain.

    Synchronous schedules hold one (in each copy). Stashing holds p - s. Vertical sync holds p on every stage with eager updates; with lazy
    ones p - s, and s + 1 gradient buffers instead. 2BW holds two; its last stage needs one until a lazy update. For long flows, m >= 2p.
    """
    if name not in ASYNCHRONOUS:
        return 1
    if m < 2 * p:
        return None
    if name == "pipedream-2bw":
        return 1 if p == 1 or (stage == p - 1 and updates == "lazy") else 2
    return p if name == "pipedream-vertical" and updates == "eager" else p - stage
