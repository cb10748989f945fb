"""TOML to a Config and back; an unknown key is an error that names the key and the nearest known one."""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from pathlib import Path
from typing import Any

import msgspec

from hpcpar.config.description import Description
from hpcpar.config.whole import Config
from hpcpar.errors import PlanError


def load(path: str | Path, overrides: typing.Sequence[str] = ()) -> Config:
    """Read a TOML file and `table.key=value` overrides.

    Raises PlanError for a file that cannot be read, an unknown key or a value of the wrong type.
    """
    try:
        tables = tomllib.loads(Path(path).read_text())
    except OSError as e:
        raise PlanError(f"cannot read {path}: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise PlanError(f"{path} is not TOML: {e}") from None
    for item in overrides:
        override(tables, item)
    return build(tables)


def build(tables: dict[str, Any]) -> Config:
    """Turn plain tables into a Config; raises PlanError that names the key."""
    _known(tables, Config, "")
    try:
        return msgspec.convert(tables, Config)
    except msgspec.ValidationError as e:
        text, _, place = str(e).partition(" - at `$.")
        raise PlanError(f"{place.rstrip('`') or 'configuration'}: {text[:1].lower()}{text[1:]}") from None


def save(config: Config, path: str | Path) -> None:
    """Write the complete description as TOML."""
    import tomli_w

    Path(path).write_text(tomli_w.dumps(tables(config)))


def tables(config: Config) -> dict[str, Any]:
    """The complete description as plain tables, without what is None."""

    def drop(x: Any) -> Any:
        return {k: drop(v) for k, v in x.items() if v is not None} if isinstance(x, dict) else x

    return drop(msgspec.to_builtins(config))


def override(tables: dict[str, Any], item: str) -> None:
    """Apply one `table.key=value` to plain tables."""
    key, sign, text = item.partition("=")
    if not sign:
        raise PlanError(f"--set {item}: expected table.key=value, as in plan.pp=4")
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    *path, last = key.strip().split(".")
    at = tables
    for name in path:
        at = at.setdefault(name, {})
        if not isinstance(at, dict):
            raise PlanError(f"--set {item}: {name} is no table")
    at[last] = value


def _known(tables: dict[str, Any], kind: type, place: str) -> None:
    fields = {f.encode_name: f.type for f in msgspec.structs.fields(kind)}
    for key, value in tables.items():
        if key not in fields:
            near = difflib.get_close_matches(key, list(fields), 1, 0.5) or _elsewhere(key)
            hint = f"did you mean {place if '.' not in near[0] else ''}{near[0]}?" if near else f"known: {', '.join(sorted(fields))}"
            raise PlanError(f"unknown key {place}{key}; {hint}")
        inner = _table(fields[key])
        if inner and isinstance(value, dict):
            _known(value, inner, f"{place}{key}.")


def _table(kind: Any) -> type | None:
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union else (kind,)
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Description)), None)


def _elsewhere(key: str) -> list[str]:
    """The tables that do have this key."""
    return [
        f"{f.name}.{key}"
        for f in msgspec.structs.fields(Config)
        if isinstance(f.type, type) and key in {g.name for g in msgspec.structs.fields(f.type)}
    ]
