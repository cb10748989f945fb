"""Where parameters lie in another program's layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcpar.errors import PlanError


@dataclass(frozen=True)
class Place:
    """One array of a layout: the parameters `parts` one below the other, (out, in); `turned` where it is stored (in, out)."""

    parts: tuple[str, ...]
    turned: bool = False


def first_unlike(wanted: dict[str, tuple[Any, Any]]) -> str | None:
    """The first of {setting: (has, needs)} that differs, in words."""
    return next((f"model.{key} = {has!r}, not {needs!r}" for key, (has, needs) in wanted.items() if has != needs), None)


def refuse_unless(kind: str, wanted: dict[str, tuple[Any, tuple[Any, ...]]]) -> None:
    """Raise PlanError for the first of {key of config.json: (has, known)} whose value is not known here."""
    for key, (has, known) in wanted.items():
        if has not in known:
            raise PlanError(
                f"config.json ({kind}) has {key} = {has!r}, known is {' or '.join(map(repr, known))}: another model; use one without it"
            )
