"""The reader: a folder becomes a Trace, as far as its files go; what is missing is named, never zeros.

    trace = hpcpar.trace.open("runs/first")
    trace.ranks, trace.missing        4, {}
    trace.events(2)                   (n,) EVENT, start and end on the clock of the run

An event's time is corrected by its rank's clock points: linear between two points, constant before the first and after the last.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.trace import schema

KEPT_BYTES = 256 << 20  # of events that a Trace keeps, so that several analyses of a few ranks read them once


class RankFile:
    """The trace file of one rank, open for reading, also while it is being written. Raises PlanError if it cannot be read."""

    def __init__(self, path: Path):
        import h5py

        self.path = path
        try:
            self._file = h5py.File(path, "r", locking=False)
            self.version = int(self._file.attrs["schema"])
            self.rank, self.ranks = int(self._file.attrs["rank"]), int(self._file.attrs["ranks"])
            self.description: dict[str, Any] = json.loads(self._file["description"][()])
        except FileNotFoundError:
            raise PlanError(f"{path.name} is missing") from None
        except (OSError, KeyError, ValueError, RuntimeError) as e:
            raise PlanError(f"{path.name} cannot be read: {_first_line(e)}") from None
        if self.version > schema.VERSION:
            raise PlanError(f"{path.name} has schema {self.version}, newer than the known {schema.VERSION}; read it with a newer hpcpar")

    def table(self, name: str) -> np.ndarray:
        """The rows of a table that were written whole. A field that an older schema lacks is -1, a table that it lacks is empty."""
        plain = schema.TABLES[name]
        try:
            rows = self._file[name][:] if name in self._file else np.empty(0, plain)
        except (OSError, KeyError, ValueError, RuntimeError) as e:
            raise PlanError(f"{self.path.name} cannot be read: {name}: {_first_line(e)}") from None
        out = np.empty(len(rows), plain)
        for field in plain.names or ():
            out[field] = rows[field] if field in (rows.dtype.names or ()) else -1
        if name == "events":
            whole = out["sequence"] == np.arange(1, len(out) + 1)
            out = out[: len(out) if whole.all() else int(np.argmin(whole))]
        return out

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> RankFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Trace:
    """The trace of a run.

    ranks          how many ranks the run had
    present        those whose files can be read, ascending
    missing        {rank: why} of the others
    description    config, hosts, versions, machine, mpi as the run stored them
    """

    def __init__(self, folder: Path, ranks: int, description: dict[str, Any], missing: dict[int, str]):
        self.folder, self.ranks, self.description, self.missing = folder, ranks, description, missing
        self.present = tuple(r for r in range(ranks) if r not in missing)
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()

    def events(self, rank: int) -> np.ndarray:
        """The events of a rank (n,) EVENT in the order of recording, corrected to the clock of the run; read-only.

        Raises PlanError for a rank that is missing.
        """
        if rank not in self._kept:
            self._kept[rank] = self._corrected(rank, "events", ("start", "end"))
            self._kept[rank].flags.writeable = False  # it is handed out again
            while len(self._kept) > 1 and sum(e.nbytes for e in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)
        return self._kept[rank]

    def memory(self, rank: int) -> np.ndarray:
        """The memory samples of a rank (n,) MEMORY, corrected to the clock of the run."""
        return self._corrected(rank, "memory", ("time",))

    def metrics(self, rank: int) -> np.ndarray:
        """The metrics of a rank (n,) METRIC."""
        return self._table(rank, "metrics")

    def clock(self, rank: int) -> np.ndarray:
        """The clock points of a rank (n,) CLOCK."""
        return self._table(rank, "clock")

    def _corrected(self, rank: int, name: str, fields: tuple[str, ...]) -> np.ndarray:
        """A table with its times on the clock of the run; each session has clock points of its own."""
        with self._open(rank) as file:
            rows, clock, sessions = file.table(name), file.table("clock"), file.table("sessions")
        bounds = [*sessions[name].tolist(), len(rows)]
        for session, (first, stop) in enumerate(pairwise(bounds)):
            points = clock[clock["session"] == session]
            for field in fields:
                _correct(rows[field][first:stop], points)
        return rows

    def _table(self, rank: int, name: str) -> np.ndarray:
        with self._open(rank) as file:
            return file.table(name)

    def _open(self, rank: int) -> RankFile:
        if rank in self.missing:
            raise PlanError(f"rank {rank}: {self.missing[rank]}")
        return RankFile(self.folder / schema.file_name(rank))


def open(folder: str | Path) -> Trace:
    """Open the trace of a run; a missing or damaged rank is named in `missing`. Raises PlanError if the folder holds no trace."""
    folder = Path(folder)
    found = sorted(int(p.name.split(".")[1]) for p in folder.iterdir() if _is_rank(p.name)) if folder.is_dir() else []
    index = _index(folder / schema.INDEX)
    ranks, description = index or (1 + max(found, default=-1), {})
    missing = {}
    for rank in [r for r in found if r < ranks or not index]:  # beyond them: of an earlier plan with more ranks
        try:
            with RankFile(folder / schema.file_name(rank)) as file:
                description = description or file.description
                ranks = ranks if index else max(ranks, file.ranks)
        except PlanError as e:
            missing[rank] = str(e)
    for rank in sorted(set(range(ranks)) - set(found)):
        missing[rank] = f"{schema.file_name(rank)} is missing"
    if len(missing) == ranks:
        why = "; ".join(missing[r] for r in sorted(missing)[:3])
        raise PlanError(f'{folder} holds no trace that can be read ({why or "no trace.h5"}); a run leaves one with run.trace = "full"')
    return Trace(folder, ranks, description, dict(sorted(missing.items())))


def _index(path: Path) -> tuple[int, dict[str, Any]] | None:
    """The number of ranks and the description, or None where there is no index that can be read (a run that was killed early)."""
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as file:
            return int(file.attrs["ranks"]), json.loads(file["description"][()])
    except (OSError, KeyError, ValueError, RuntimeError):
        return None


def _is_rank(name: str) -> bool:
    parts = name.split(".")
    return len(parts) == 3 and parts[0] == "trace" and parts[1].isdigit() and parts[2] == "h5"


def _correct(times: np.ndarray, points: np.ndarray) -> None:
    """Add the clock's offset to times (n,) in ns, in place; interpolated from the first point on, so that no digit is lost."""
    if len(points):
        points = np.sort(points, order="local_ns")
        at, offset = points["local_ns"], points["offset_ns"]
        drift = np.interp(times - at[0], at - at[0], offset - offset[0])
        times += offset[0] + np.rint(drift).astype(np.int64)


def _first_line(e: BaseException) -> str:
    return (str(e).splitlines() or [type(e).__name__])[0]
