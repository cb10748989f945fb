"""The writer of one rank's trace: recording appends a tuple to a list; `flush` writes all of them as one block.

    record -> [(start, end, kind, ...), ...] -> flush, at every step -> events (n,) EVENT in trace.00003.h5

HDF5's default format with a flush at every step: a process that is killed leaves a file that reads up to its last flush.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from hpcpar.errors import PlanError
from hpcpar.trace import schema, seal
from hpcpar.trace.rank_file import RankFile

CLOSES = 3  # tries: a flush that failed on its way makes HDF5 refuse the first
CHUNK = 1024  # rows; a flush rewrites the last chunk, so it is small


class Writer:
    """Writes `folder`/trace.NNNNN.h5 for one of `ranks` ranks.

    `description` is the complete description of the run: config, hosts (one a rank), versions, machine, mpi; anything that JSON holds.
    `after = n` goes on with the file of a run that is resumed after step n: later steps are dropped from it first. The file of another plan
    is kept beside, as trace.NNNNN.until-step<n>.h5, and one that cannot be read, as trace.NNNNN.damaged-step<n>.h5, which is in `said`.
    Raises PlanError for a folder that cannot be written.

    `step` is what the following events belong to; set it when a step begins. Times are nanoseconds of any clock that this rank uses
    throughout, such as `time.perf_counter_ns`.
    """

    def __init__(self, folder: str | Path, rank: int, ranks: int, description: Mapping[str, Any], after: int | None = None):
        self.path = Path(folder) / schema.file_name(rank)
        self.step = 0
        self._events: list[tuple[Any, ...]] = []
        self._memory: list[tuple[Any, ...]] = []
        self._metrics: list[tuple[Any, ...]] = []
        self._clock: list[tuple[Any, ...]] = []
        self._pairs: list[tuple[Any, ...]] = []
        self._sums: dict[tuple[int, ...], tuple[Sequence[int], list[int]]] = {}  # (step, block, operation, axis) -> peers, calls and bytes
        self._append = self._events.append
        self._latest = 0  # the end of the last event that was flushed
        self.said: list[str] = []  # what the user of the run should know
        try:
            kept = None if after is None else self._kept(after, ranks, description)
            self._file = _create(self.path, rank, ranks, description, kept)
        except (OSError, RuntimeError) as e:
            raise PlanError(f"cannot write {self.path}: {os.strerror(code) if (code := _code(e)) else e}") from None
        self._session = len(self._file["sessions"]) - 1
        self._tables = {name: _Table(self._file[name], dtype) for name, dtype in schema.TABLES.items()}

    def record(
        self,
        kind: int,
        start: int,
        end: int,
        stage: int = -1,
        microbatch: int = -1,
        version: int = -1,
        operation: int = 0,
        axis: int = 0,
        peer: int = -1,
        bytes: int = 0,
    ) -> None:
        """Record one event of the current step; start and end in ns."""
        self._append((start, end, kind, operation, axis, stage, microbatch, version, self.step, peer, bytes, 0))

    def memory(self, kind: str, bytes: int, time: int | None = None) -> None:
        """Record the bytes that this rank holds of a kind ("stash", "parameters", "gradients", "optimizer", "device"); time in ns.

        Without a time, the sample stands at the end of the latest event.
        """
        if time is None:
            time = self._events[-1][1] if self._events else self._latest
        self._memory.append((time, self.step, kind.encode(), bytes))

    def metric(self, name: str, value: float) -> None:
        """Record a value of the current step."""
        self._metrics.append((self.step, name.encode(), value))

    def pairs(self, block: int, operation: int, axis: int, peers: Sequence[int], sizes: Sequence[int]) -> None:
        """Add up what this rank gave to each of `peers` in an exchange of a block, in bytes; a group always has the same peers."""
        key = (self.step, block, operation, axis)
        _, found = self._sums.setdefault(key, (peers, [0] * (1 + len(peers))))
        found[0] += 1
        found[1:] = map(add, found[1:], sizes)

    def clock(self, local_ns: int, offset_ns: int, bound_ns: int = -1) -> None:
        """Record that this rank's clock showed `local_ns` when the clock of the run showed `local_ns + offset_ns`, give or take `bound_ns`.

        -1: nobody knows how far it may be wrong.
        """
        self._clock.append((local_ns, offset_ns, self._session, bound_ns))

    def flush(self) -> None:
        """Write what was recorded since the last flush; what is flushed survives a SIGKILL.

        Raises OSError (a full disk): the file then ends with what was written before, and nothing is recorded any more.
        """
        try:
            self._flush()
        except (OSError, RuntimeError) as e:
            raise self._given_up(e) from None

    def _flush(self) -> None:
        for key, (peers, (calls, *sizes)) in self._sums.items():
            self._pairs.extend((*key, peer, calls, n) for peer, n in zip(peers, sizes, strict=True))
        self._sums.clear()
        rows = {name: getattr(self, f"_{name}") for name in schema.VOUCHED}
        taken = {name: self._tables[name].taken(found) for name, found in rows.items()}
        events, first = taken["events"], self._tables["events"].rows + 1
        if len(events):
            events["sequence"] = np.arange(first, first + len(events))
            self._latest = int(events["end"][-1])
        for name, block in taken.items():
            self._tables[name].extend(block)
        if any(map(len, taken.values())):
            reached = (*(self._tables[name].rows for name in taken), schema.block_crc(taken))
            self._tables["blocks"].extend(np.array([reached], schema.BLOCK))
        self._file.flush()

    def close(self) -> None:
        """Flush and close; a second close does nothing."""
        if self._file:
            self.flush()
            try:
                self._file.attrs["complete"] = True
                self._file.close()
                seal.seal(self.path)
            except (OSError, RuntimeError) as e:
                raise self._given_up(e) from None

    def _given_up(self, error: Exception) -> OSError:
        _abandon(self._file)
        code = _code(error)
        return OSError(code, os.strerror(code), str(self.path)) if code else OSError(f"{self.path}: {error}")

    def _kept(self, after: int, ranks: int, description: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
        try:
            return _kept(self.path, after, ranks, description)
        except PlanError as e:
            aside = self.path.with_name(f"{self.path.stem}.damaged-step{after}.h5")
            self.path.rename(aside)
            self.said.append(f"{e}; it is kept as {aside.name}, and the trace of rank {int(self.path.suffixes[0][1:])} starts anew")
            return None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Table:
    """A table that grows. It goes to HDF5 below h5py's indexing, which would cost ten times as much for a block of a few rows."""

    def __init__(self, dataset: Any, dtype: np.dtype[Any]):
        self.rows, self._dtype = len(dataset), dtype
        self._id, self._stored = dataset.id, dataset.id.get_type()

    def taken(self, rows: list[tuple[Any, ...]]) -> np.ndarray:
        """Take the rows out of a list. Another thread may append meanwhile: what it adds stays for the next time."""
        n = len(rows)
        out = np.array(rows[:n], self._dtype)
        del rows[:n]
        return out

    def extend(self, block: np.ndarray) -> None:
        """Write a block behind the rows that are there; it has the layout of the file, only without the names of the enums."""
        if not len(block):
            return
        from h5py import h5s

        first, self.rows = self.rows, self.rows + len(block)
        self._id.set_extent((self.rows,))
        there = self._id.get_space()
        there.select_hyperslab((first,), (len(block),))
        self._id.write(h5s.create_simple((len(block),)), there, block, self._stored)


def _create(path: Path, rank: int, ranks: int, description: Mapping[str, Any], kept: dict[str, np.ndarray] | None) -> Any:
    """A new file with the rows that are kept and one session more; it takes the place of the old one when it is whole."""
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    kept = kept or {name: np.empty(0, dtype) for name, dtype in schema.TABLES.items()}
    reached = [len(kept[name]) for name in schema.VOUCHED]
    kept["blocks"] = np.array([(*reached, schema.block_crc(kept))] if any(reached) else [], schema.BLOCK)
    kept["sessions"] = np.append(kept["sessions"], np.array([(len(kept["events"]), len(kept["memory"]))], schema.SESSION))
    file = h5py.File(fresh, "w", locking=False, userblock_size=seal.BYTES)
    try:
        file.attrs["schema"] = schema.VERSION
        file.attrs["rank"], file.attrs["ranks"] = rank, ranks
        file["description"] = text = json.dumps(description)
        file.attrs["crc"] = schema.header_crc(schema.VERSION, rank, ranks, text, kept["sessions"].tolist())
        file.attrs["complete"] = False
        for name in schema.TABLES:
            file.create_dataset(name, data=kept[name], dtype=schema.stored(name), maxshape=(None,), chunks=(CHUNK,))
        file.flush()
        os.replace(fresh, path)
    except (OSError, RuntimeError):
        _abandon(file)
        fresh.unlink(missing_ok=True)
        raise
    return file


def _abandon(file: Any) -> None:
    """Close a file that cannot be written: what HDF5 still holds goes nowhere. It would try again at exit, and crash there."""
    if not file:
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, file.id.get_vfd_handle())
    os.close(nowhere)
    for _ in range(CLOSES):
        with suppress(RuntimeError):
            file.close()
            return


def _code(error: Exception) -> int:
    """The errno of a failed write, which HDF5 has in its message alone; 0 if there is none."""
    found = re.search(r"errno = (\d+)", str(error))
    return int(found[1]) if found else getattr(error, "errno", None) or 0


def _kept(path: Path, after: int, ranks: int, description: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
    """The rows of an existing file up to step `after`; None if there is none or it is that of another plan."""
    if not path.exists():
        return None
    with RankFile(path) as old:
        tables, why = old.tables()
        if why:
            raise PlanError(f"{path.name} is {why}")
        same = old.ranks == ranks and _plan(old.description) == _plan(json.loads(json.dumps(description)))
    if not same:
        path.rename(_beside(path, after))
        return None
    for name in ("events", "memory", "metrics", "pairs"):
        stays = tables[name]["step"] <= after
        if name in (schema.SESSION.names or ()):
            before = np.concatenate([[0], np.cumsum(stays)])  # rows that stay, before each row
            tables["sessions"][name] = before[np.minimum(tables["sessions"][name], len(stays))]
        tables[name] = tables[name][stays]
    tables["events"]["sequence"] = np.arange(1, len(tables["events"]) + 1)
    return tables


def _beside(path: Path, after: int) -> Path:
    """A name for the file of another plan; one that is there already stays."""
    names = (path.with_name(f"{path.stem}.until-step{after}{more}.h5") for more in chain(("",), (f".{n}" for n in count(2))))
    return next(name for name in names if not name.exists())


def _plan(description: Mapping[str, Any]) -> Any:
    return description.get("config", {}).get("plan")
