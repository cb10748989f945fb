"""The names and parameters of the real module, from names.txt."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any


class NotOffered(RuntimeError):
    """The real module has this; the stand-in does not, yet."""


@functools.cache
def table() -> dict[str, dict[str, str]]:
    """{place: {name: parameters, or ""}}."""
    found: dict[str, dict[str, str]] = {}
    for line in (Path(__file__).parents[1] / "names.txt").read_text().splitlines():
        if line.startswith("["):
            found[line[1:-1]] = at = {}
        elif line and not line.startswith("#"):
            name, sign, parameters = line.partition("(")
            at[name] = sign + parameters
    return found


@functools.cache
def signature(place: str, name: str) -> inspect.Signature | None:
    """The real parameters, or None where they are not known."""
    parameters = table()[place][name]
    if not parameters:
        return None
    made: dict[str, Any] = {}
    exec(f"def f{parameters}: pass", {"nan": float("nan")}, made)
    return inspect.signature(made["f"])


def check(place: str, name: str, *args: Any, **kwargs: Any) -> None:
    """Raise TypeError for parameters that the real function does not have."""
    known = signature(place, name)
    if known is not None:
        try:
            known.bind(*args, **kwargs)
        except TypeError as e:
            raise TypeError(f"{place}.{name}: {e}") from None


def missing(place: str, name: str) -> Exception:
    """The error for a name that the stand-in does not have: the real module lacks it, or the stand-in only."""
    if name in table()[place]:
        return NotOffered(f"the stand-in does not offer {place}.{name} yet; the real one does")
    return AttributeError(f"{place} has no attribute {name!r}")
