"""The file of one rank, read as far as it can be believed; what cannot is named in `gaps`.

    blocks    1            2            3            what each flush reached, with a checksum of its rows
    events  |xxxxxxxxxxxx|xxxxxx?xxxxx|xxxx|xx       rows behind the last block: a flush that a kill cut short
            |- believed -|                           a checksum that does not agree ends what is read, in all tables alike

Files of schema 1 and 0 have no blocks: their rows count up to the first that was not written whole.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.trace import schema

# What h5py raises where a file is damaged: its own errors, and those of what it makes of a damaged type, size or text.
DAMAGE = (
    OSError,
    KeyError,
    ValueError,
    RuntimeError,
    TypeError,
    IndexError,
    OverflowError,
    MemoryError,
    AttributeError,
    NotImplementedError,
)
NEEDED = {"events": ("start", "end", "kind", "step")}  # of any schema
ABSENT = {"operation": 0, "axis": 0}  # NONE; what else an older schema lacks is -1


class RankFile:
    """The trace file of one rank, open for reading, also while it is being written. Raises PlanError if it cannot be read."""

    def __init__(self, path: Path):
        import h5py

        self.path, self._file = path, None
        try:
            self._bytes = path.stat().st_size
            self._file = h5py.File(path, "r", locking=False)
            attributes = self._file.attrs
            self.version, self.rank, self.ranks = (int(attributes[name]) for name in ("schema", "rank", "ranks"))
            text = self._file["description"][()].decode()
            self.description: dict[str, Any] = dict(json.loads(text))
            self.sessions = self._plain("sessions", self._rows("sessions"))
            crc = schema.header_crc(self.version, self.rank, self.ranks, text, self.sessions.tolist())
            found = self._fields("events")
            self.lacks = [f for f in schema.EVENT.names or () if f not in found]
            sound = self.version < 2 or int(attributes["crc"]) == crc
            self.complete = self.version < 2 or bool(attributes["complete"])  # it was closed: not killed, not being written
        except FileNotFoundError:
            raise PlanError(f"{path.name} is missing") from None
        except DAMAGE as e:
            self.close()
            raise PlanError(f"{path.name} cannot be read: {_first_line(e)}") from None
        if self.version > schema.VERSION:
            self.close()
            raise PlanError(f"{path.name} has schema {self.version}, newer than the known {schema.VERSION}; read it with a newer hpcpar")
        if not sound or self.version < 0 or not 0 <= self.rank < self.ranks:
            self.close()
            raise PlanError(f"{path.name} cannot be read: what it says of itself is damaged")

    def tables(self, sealed: bool = False) -> tuple[dict[str, np.ndarray], str]:
        """All tables as far as they can be believed, and what is wrong with the rest, "" for nothing.

        All of a `sealed` file can be. Raises PlanError for a file of which nothing can be read.
        """
        try:
            out = {name: self._plain(name, self._rows(name)) for name in schema.TABLES}
        except DAMAGE as e:
            raise PlanError(f"{self.path.name} cannot be read: {_first_line(e)}") from None
        if sealed:
            return out, ""
        if self.version < 2:
            return _whole(out)
        reach, why = _vouched(out)
        for name in schema.VOUCHED:
            out[name] = out[name][: reach[name]]
        return out, why

    def rows(self, name: str, count: int) -> np.ndarray:
        """The first `count` rows of a table, of which `tables` said that they can be believed. Raises PlanError if they cannot be read."""
        try:
            out = self._plain(name, count)
        except DAMAGE as e:
            raise PlanError(f"{self.path.name} cannot be read: {name}: {_first_line(e)}") from None
        if name == "events" and "sequence" in self.lacks:
            out["sequence"] = np.arange(1, len(out) + 1)
        return out

    def _rows(self, name: str) -> int:
        """How many rows a table has; raises ValueError for more than the file has bytes for: a damaged size."""
        if self._file is None or name not in self._file:
            return 0
        (count,) = self._file[name].shape
        if count > self._bytes:  # a row has more than one byte
            raise ValueError(f"{name} claims {count} rows in a file of {self._bytes} bytes")
        return int(count)

    def _fields(self, name: str) -> tuple[str, ...]:
        if self._file is None or name not in self._file:
            return ()
        table = self._file[name]
        return tuple(schema.TABLES[name].names or () if _current(table, name) else table.dtype.names or ())

    def _plain(self, name: str, count: int) -> np.ndarray:
        """The first rows of a table in the type of this schema."""
        plain = schema.TABLES[name]
        if not count:
            return np.empty(0, plain)
        assert self._file is not None
        dataset = self._file[name]
        if _current(dataset, name):
            return _raw(dataset, count, plain)
        lacking = [f for f in NEEDED.get(name, ()) if f not in self._fields(name)]
        if lacking:
            raise ValueError(f"{name} has no {' and no '.join(lacking)}")
        rows, out = dataset[:count], np.empty(count, plain)
        for field in plain.names or ():
            out[field] = rows[field] if field in (rows.dtype.names or ()) else ABSENT.get(field, -1)
        return out

    def close(self) -> None:
        """Close the file."""
        try:
            if self._file is not None:
                self._file.close()
        except DAMAGE:  # it is damaged, and nothing was to be written
            self._file = None

    def __enter__(self) -> RankFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _current(dataset: Any, name: str) -> bool:
    """Whether a table has the layout of this schema; its enums may know fewer names."""
    return dataset.id.get_type() == _stored_type(name) or dataset.dtype == schema.stored(name)


@cache
def _stored_type(name: str) -> Any:
    from h5py import h5t

    return h5t.py_create(schema.stored(name), logical=True)


def _raw(dataset: Any, count: int, plain: np.dtype[Any]) -> np.ndarray:
    """The first rows of a table that has the layout of this schema, without a conversion: ten times as fast as h5py's own way."""
    from h5py import h5s

    out = np.empty(count, plain)
    there = dataset.id.get_space()
    there.select_hyperslab((0,), (count,))
    dataset.id.read(h5s.create_simple((count,)), there, out, dataset.id.get_type())
    return out


def _vouched(tables: dict[str, np.ndarray]) -> tuple[dict[str, int], str]:
    """How far the blocks vouch for each table, and what ends that, "" where the tables themselves end."""
    reach = dict.fromkeys(schema.VOUCHED, 0)
    for number, block in enumerate(tables["blocks"], 1):
        bounds = {name: (reach[name], int(block[name])) for name in schema.VOUCHED}
        inside = all(a <= b <= len(tables[name]) for name, (a, b) in bounds.items())
        if not inside or schema.block_crc({name: tables[name][a:b] for name, (a, b) in bounds.items()}) != block["crc"]:
            return (
                reach,
                f"damaged behind event {reach['events']}: block {number} of {len(tables['blocks'])} contradicts its checksum",
            )
        reach = {name: b for name, (_, b) in bounds.items()}
    return reach, ""


def _whole(tables: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], str]:
    """Tables without blocks: the events up to the first that is none; its sequence number and its kind say so."""
    events = tables["events"]
    count = np.arange(1, len(events) + 1)
    if len(events) and (events["sequence"] == -1).all():  # schema 0 had none
        events["sequence"] = count
    good = (events["sequence"] == count) & (events["kind"] > 0) & (events["step"] >= -1) & (events["end"] >= events["start"])
    if good.all():
        return tables, ""
    stop = int(np.argmin(good))
    tables["events"] = events[:stop]
    return tables, f"damaged behind event {stop} of {len(events)}"


def sessions_of(starts: np.ndarray, rows: int) -> list[tuple[int, int]]:
    """The first row and the end of each session of a table of `rows` rows; `starts` (sessions,) may lie behind what could be read."""
    bounds = [*np.clip(starts, 0, rows).tolist(), rows]
    return [(a, max(a, b)) for a, b in pairwise(bounds)]


def _first_line(e: BaseException) -> str:
    return (str(e).splitlines() or [type(e).__name__])[0]
